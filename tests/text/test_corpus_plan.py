"""Plans of texts apart: each file's windows are its own, and nothing crosses from one to the next."""

import hashlib

import numpy as np
import pytest

from scoremode.errors import CorpusError, ProtocolError
from scoremode.text.corpus import from_files, from_rows, from_string
from scoremode.text.corpus_plan import joined, plan_of, texts_sha256
from scoremode.text.plan import make_plan
from scoremode.text.protocol import PRESETS, preset
from scoremode.text.tokenizer import load_tokenizer, tokenize

TEXTS = {"b.txt": "Once upon a time. " * 40, "a.txt": "The end of it.\n" * 25, "c.txt": "x " * 190}


@pytest.fixture
def folder(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture(scope="module")
def tokenizer(demo):
    return load_tokenizer(demo / "model")


def rules(name):
    length = {"exl3-qbench": 16}.get(name, 32)
    stride = 8 if PRESETS[name].stride else None
    return preset(name).override(context_length=length, stride=stride).resolve(None)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "chat"])
def test_each_file_has_the_windows_that_it_has_alone(name, folder, tokenizer):
    protocol = rules(name)
    corpus = from_files([folder], "file")
    plan = plan_of(corpus, tokenizer, protocol)
    alone = [
        tokenize(from_string(TEXTS[n]).text(protocol.text), tokenizer, protocol)
        for n in sorted(TEXTS)
    ]
    windows = [window for one in alone for window in one]
    assert len(plan) == len(windows)
    for ours, wanted in zip(plan, windows, strict=True):
        assert np.array_equal(ours.inputs, wanted.inputs)
        assert np.array_equal(ours.targets, wanted.targets)
        assert np.array_equal(ours.scored, wanted.scored)
    assert plan.scored == sum(one.scored for one in alone)
    assert plan.unique == sum(one.unique for one in alone)
    by_file = dict(zip(sorted(TEXTS), (one.scored for one in alone), strict=True))
    assert plan.to_json()["labels"] == by_file
    weights = [one.weights() for one in alone]
    if protocol.average == "token":
        assert plan.weights() is None
    else:
        assert np.array_equal(plan.weights(), np.concatenate(weights))


def test_windows_drawn_at_random_are_of_all_files(folder, tokenizer):
    protocol = preset("disjoint").override(context_length=32).resolve(None)
    drawn = protocol.override(stop_when="ppl±5%", seed=3)
    corpus = from_files([folder], "file")
    plan, whole = plan_of(corpus, tokenizer, drawn), plan_of(corpus, tokenizer, protocol)
    assert plan.start.tolist() != whole.start.tolist()
    assert sorted(plan.start.tolist()) == whole.start.tolist()
    assert plan.to_json()["labels"] == whole.to_json()["labels"]


def test_a_text_too_short_is_named(folder, tokenizer):
    corpus = from_files([folder], "file")
    with pytest.raises(ProtocolError, match=r"a\.txt: the text has \d+ tokens: protocol gptq"):
        plan_of(corpus, tokenizer, preset("gptq").override(context_length=256).resolve(None))
    (folder / "b.txt").write_text("")
    with pytest.raises(CorpusError, match=r"b\.txt: the text has"):
        plan_of(from_files([folder], "file"), tokenizer, preset("disjoint").resolve(None))


def test_one_file_alone_is_planned_as_ever(folder, tokenizer):
    protocol = preset("disjoint").resolve(None)
    apart = plan_of(from_files([folder / "a.txt"], "file"), tokenizer, protocol)
    plain = plan_of(from_files([folder / "a.txt"]), tokenizer, protocol)
    assert apart.sha256 == plain.sha256 and plain.labels is None
    assert apart.to_json()["labels"] == {"a.txt": apart.scored}


def test_rows_are_one_text_whose_plan_is_the_same_with_labels(tokenizer):
    rows = ["Once upon a time.", "", "The end of it.", "x = 1"] * 30
    protocol = preset("score-mode").override(context_length=32, stride=8).resolve(None)
    groups = "kind", ["story", "none", "story", "code"] * 30
    plain = from_rows(rows, name="x", source="x", digest="")
    grouped = from_rows(rows, name="x", source="x", digest="", groups=groups)
    one, other = plan_of(plain, tokenizer, protocol), plan_of(grouped, tokenizer, protocol)
    assert one.sha256 == other.sha256 and one.labels is None
    assert sum(other.to_json()["labels"].values()) == other.scored
    assert set(other.to_json()["labels"]) == {"story", "none", "code"}


def test_the_hash_of_texts_tells_where_each_ends():
    assert texts_sha256(["ab"]) == hashlib.sha256(b"ab").hexdigest()
    assert len({texts_sha256(t) for t in (["a", "b"], ["ab"], ["b", "a"], ["", "ab"])}) == 4


def test_plans_are_joined_over_one_stream():
    protocol = preset("disjoint").override(context_length=4).resolve(None)
    ids = [np.arange(n, dtype=np.int32) for n in (6, 3)]
    plan = joined([make_plan(own, protocol) for own in ids], ["x", "y"])
    assert plan.tokens.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert plan.start.tolist() == [0, 4, 6] and plan.stop.tolist() == [4, 6, 9]
    assert plan.labels is not None
    assert plan.labels.at(np.arange(9)).tolist() == ["x"] * 6 + ["y"] * 3

"""Calibration texts: files of text, of rows and of chats, and what of a scored text is in them."""

import gzip
import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from support.fake_hub import Repo, call, serve

from scoremode.errors import CorpusError
from scoremode.text.calibration import calibration_of_file, calibration_of_hub
from scoremode.text.plan import Labels, make_plan
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import load_tokenizer


def jsonl(path: Path, *rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_text_file_is_one_document(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n\ntwo")
    found = calibration_of_file(file)
    assert found.documents == ("one\n\ntwo",) and found.name == "a.txt"
    assert found.source == str(file) and len(found.source_sha256) == 64


def test_rows_are_documents_and_so_are_messages(tmp_path):
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "r"},
    ]
    file = jsonl(
        tmp_path / "a.jsonl",
        {"text": "one"},
        {"messages": said},
        {"prompt": "p", "completion": "c"},
        {"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]},
    )
    assert calibration_of_file(file).documents == ("one", "q", "r", "a", "pc", "h", "g")
    other = jsonl(tmp_path / "b.jsonl", {"body": "x", "text": "y"})
    assert calibration_of_file(other, "body").documents == ("x",)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"text": "a"}, {"body": "b"}], "a.jsonl, line 2: has body.*nor has it a text in 'text'"),
        ([{"text": " "}], "a.jsonl: the calibration text is empty"),
        ([{"text": 3}], "line 1: has text.*nor has it a text"),
    ],
)
def test_bad_rows_are_named(rows, line, tmp_path):
    with pytest.raises(CorpusError, match=line):
        calibration_of_file(jsonl(tmp_path / "a.jsonl", *rows))


def test_packed_rows_are_the_rows(tmp_path):
    rows = [{"text": "one"}, {"text": "two"}]
    plain = jsonl(tmp_path / "a.jsonl", *rows)
    for name in ("a.jsonl.gz", "a.JSON.GZ"):
        file = tmp_path / name
        file.write_bytes(gzip.compress(plain.read_bytes()))
        assert calibration_of_file(file).documents == ("one", "two")
        assert calibration_of_file(file).source_sha256 == sha256(file.read_bytes()).hexdigest()
    # Rows that are not packed after all are no text, either.
    (tmp_path / "b.jsonl.gz").write_bytes(plain.read_bytes())
    with pytest.raises(CorpusError, match=r"b\.jsonl\.gz: not a readable gzip file"):
        calibration_of_file(tmp_path / "b.jsonl.gz")


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.txt.gz", "a.parquet.gz"])
def test_other_files_of_rows_are_refused(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(CorpusError, match=f"{name}: a calibration text is a text file, or rows in"):
        calibration_of_file(tmp_path / name)


def test_half_a_surrogate_pair_is_named_before_anything_is_scored(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "fine"}\n{"text": "a\\ud800"}\n')
    with pytest.raises(CorpusError, match=r"a\.jsonl, line 2: not Unicode text at character 1"):
        calibration_of_file(file)


def test_missing_and_empty_files_are_refused(tmp_path):
    with pytest.raises(CorpusError, match="No such file"):
        calibration_of_file(tmp_path / "none.txt")
    with pytest.raises(CorpusError, match="No such file"):
        calibration_of_file(tmp_path / "none.jsonl")
    (tmp_path / "a.txt").touch()
    with pytest.raises(CorpusError, match="the calibration text is empty"):
        calibration_of_file(tmp_path / "a.txt")


def test_a_split_of_the_hub_is_read(monkeypatch):
    from scoremode.text import calibration
    from scoremode.text.hub import HubRows

    def rows(dataset, config, *, split, revision, text_field, flag):
        assert (dataset, config, split, revision, text_field) == ("o/d", "c", "train", None, None)
        assert flag == "--calibration"
        return HubRows([{"text": "t"}], ["row 0"], "o/d c train", "hub:o/d@1", "0" * 64, 1)

    monkeypatch.setattr(calibration, "rows_of_hub", rows)
    found = calibration_of_hub("o/d", "c")
    assert (found.name, found.source, found.documents) == ("o/d c train", "hub:o/d@1", ("t",))


SCRIPT = """
import json
from scoremode.errors import CorpusError
from scoremode.text.calibration import calibration_of_hub

found = {}
for name in ("lab/set-2.5", "lab/none"):
    try:
        calibration_of_hub(name)
    except CorpusError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


def test_what_the_hub_lacks_is_said_by_the_flags_of_calibration(tmp_path):
    files = {"a/train-00000-of-00001.parquet": b"", "b/train-00000-of-00001.parquet": b""}
    with serve({"datasets/lab/set-2.5": Repo(files)}) as hub:
        found = call(hub.endpoint, tmp_path / "home", SCRIPT)
    assert found["lab/set-2.5"].endswith("split 'train' (a, b): choose with --calibration-config")
    assert found["lab/none"].endswith("give a local copy with --calibration")


@pytest.fixture
def planned(demo):
    tokenizer = load_tokenizer(demo / "model")
    text = (Path(demo / "heldout.txt")).read_text()[:6000]
    ids = tokenizer.encode(text, special_tokens=False)
    plan = make_plan(ids, Protocol("test", context_length=64, tail="keep").resolve(None))
    return text, plan, tokenizer


def test_a_text_is_in_itself_and_its_half_in_its_half(planned, tmp_path):
    text, plan, tokenizer = planned
    file = tmp_path / "a.txt"
    file.write_text(text)
    whole = calibration_of_file(file).looked_for(plan, tokenizer).section(plan)
    # The last window may be shorter than an n-gram.
    last = int(plan.counts[-1]) if plan.lengths[-1] < 13 else 0
    assert whole["targets"] == plan.scored - last and whole["ngram"] == 13
    assert whole["tokens"] == len(plan.tokens) and whole["documents"] == 1
    file.write_text(text[:3000])
    half = calibration_of_file(file).looked_for(plan, tokenizer).section(plan)
    assert 0.4 < half["share"] < 0.6 and "labels" not in half


def test_groups_have_shares_of_their_own(planned, tmp_path):
    _, plan, tokenizer = planned
    middle = len(plan.tokens) // 2
    places = (np.arange(len(plan.tokens)) >= middle).astype(np.int64)
    plan = replace(plan, labels=Labels.of_places(["front", "back"], places))
    file = tmp_path / "a.txt"
    file.write_text(tokenizer.backend.decode(plan.tokens[:middle].tolist()))
    found = calibration_of_file(file).looked_for(plan, tokenizer).section(plan)
    assert found["labels"]["front"] > 0.9 and found["labels"]["back"] < 0.05

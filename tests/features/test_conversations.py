"""Conversations through the whole program, recomputed by transformers in float32."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chats.runs import (
    TEMPLATE,
    chat_model,
    expected_targets,
    in_file_order,
    logprobs,
    write_rows,
)
from support.models import edit_tensors
from support.tampered_runs import Stop, interrupted_after, run

from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import CorpusError, ProtocolError, ReferenceUnusable, RunFolderError
from scoremode.results.folders.store import find_runs
from scoremode.runs.check.check import check
from scoremode.runs.check.inputs import Sources
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset
from scoremode.text.rows import drawn_rows

CPU = TorchOptions(device="cpu", dtype="float32", batch_windows=3)


@pytest.fixture(scope="module")
def place(demo, tmp_path_factory) -> Path:
    """`base`, `quant` (the base with its weights a little off), `chats.jsonl`."""
    folder = tmp_path_factory.mktemp("chats")
    chat_model(demo, folder / "base")
    chat_model(demo, folder / "quant")

    def off(tensors):
        torch.manual_seed(1)
        for tensor in tensors.values():
            tensor += tensor * (torch.rand_like(tensor) - 0.5) * 0.4

    edit_tensors(folder / "quant", off)
    write_rows(demo, folder / "chats.jsonl")
    return folder


@pytest.fixture(scope="module")
def rows(place) -> list[dict]:
    return [json.loads(line) for line in (place / "chats.jsonl").read_text().splitlines()]


def request(place: Path, output: Path, **how) -> Request:
    more = {k: how.pop(k) for k in ("reference", "keep", "resume") if k in how}
    rules = preset("chat").override(
        context_length=how.pop("context_length", 256),
        scored=how.pop("score", None),
        long=how.pop("long", None),
    )
    corpus = from_conversations_file(place / "chats.jsonl", **how)
    return Request(str(place / "quant"), corpus, rules, CPU, output, **more)


def test_scores_are_those_of_transformers(place, rows, tmp_path):
    result = measure(request(place, tmp_path))
    scores, extras = in_file_order(result.folder)
    nll, window, position, target = [], [], [], []
    for i, (ids, places) in enumerate(expected_targets(place / "quant", rows)):
        found = logprobs(place / "quant", ids, places)
        nll += (-found[np.arange(len(places)), np.array(ids)[places]]).tolist()
        window += [i] * len(places)
        position += places.tolist()
        target += np.array(ids)[places].tolist()
    assert extras["conversation"].tolist() == window
    # Each conversation is one window.
    pairs = set(zip(scores.window.tolist(), window, strict=True))
    assert len(pairs) == len(rows) == len({w for w, _ in pairs})
    assert scores.position.tolist() == position and scores.target.tolist() == target
    np.testing.assert_allclose(scores.nll, nll, rtol=0, atol=2e-5)
    # Of one turn's end and the next one's beginning there is more between them than one token.
    assert (np.diff(position) > 1).any()
    metric = result.record.document["metrics"]["ppl"]
    assert metric["value"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-6)
    assert result.record.document["plan"]["scored"] == len(nll) == metric["n"]


def test_divergences_and_groups_are_those_of_transformers(place, rows, tmp_path):
    how = {"reference": str(place / "base"), "group_by": "domain"}
    result = measure(request(place, tmp_path, **how))
    kld, label = [], []
    for row, (ids, places) in zip(rows, expected_targets(place / "quant", rows), strict=True):
        base, own = (logprobs(place / name, ids, places) for name in ("base", "quant"))
        kld += (np.exp(base) * (base - own)).sum(-1).tolist()
        label += [row["domain"]] * len(places)
    scores, extras = in_file_order(result.folder)
    assert scores.against is not None and extras["label"].tolist() == label
    np.testing.assert_allclose(scores.against.kld, kld, rtol=1e-3, atol=1e-6)
    groups = {g["group"]: g for g in result.record.document["breakdown"]["label"]}
    means = {name: float(np.mean(np.array(kld)[np.array(label) == name])) for name in groups}
    assert {n: g["kld"]["value"] for n, g in groups.items()} == pytest.approx(means, rel=1e-4)
    assert list(groups) == sorted(means, key=lambda name: -means[name])
    assert result.record.document["intervals"]["blocks"] == len(rows)


@pytest.mark.parametrize("score", ["all", "completion"])
def test_what_counts_is_a_choice(place, rows, tmp_path, score):
    result = measure(request(place, tmp_path, score=score))
    scores, _ = in_file_order(result.folder)
    wanted = []
    for ids, places in expected_targets(place / "quant", rows):
        last = places[np.flatnonzero(np.diff(places, prepend=-9) > 1)[-1] :]
        wanted += list(range(1, len(ids))) if score == "all" else places[places >= last[0]].tolist()
    assert scores.position.tolist() == wanted


def test_windows_of_a_long_conversation_see_what_went_before(place, rows, tmp_path):
    length = 48
    result = measure(request(place, tmp_path, context_length=length, long="split"))
    scores, extras = in_file_order(result.folder)
    at = 0
    for i, (ids, places) in enumerate(expected_targets(place / "quant", rows)):
        mine = np.flatnonzero(extras["conversation"] == i)
        assert len(mine) == len(places) and mine.tolist() == list(range(at, at + len(mine)))
        at += len(mine)
        for row, t in zip(mine, places, strict=True):
            # The window's first token lies so many before the target.
            begin = t - scores.position[row]
            assert begin >= 0 and scores.position[row] >= min(t, length // 2)
            found = logprobs(place / "quant", ids[begin : t + 1], np.array([t - begin]))
            assert -found[0, ids[t]] == pytest.approx(scores.nll[row], abs=2e-5)
    assert result.record.document["corpus"]["conversations"]["long"] == sum(
        len(ids) > length for ids, _ in expected_targets(place / "quant", rows)
    )


def test_a_killed_run_goes_on_to_the_same_bits(place, tmp_path):
    whole = run(request(place, tmp_path / "whole", group_by="domain"))
    with pytest.raises(Stop):
        run(request(place, tmp_path / "cut", group_by="domain"), interrupted_after(1))
    ((folder, _),) = find_runs(tmp_path / "cut")
    again = run(request(place, folder, group_by="domain", resume=True))
    both = [(each.folder / "scores.parquet").read_bytes() for each in (whole, again)]
    assert (
        both[0] == both[1] and whole.record.document["metrics"] == again.record.document["metrics"]
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": "all"}, "plan"),
        ({"long": "split", "context_length": 40}, "plan"),
        ({"arguments": {"x": 1}}, "conversations.template"),
        ({"group_by": "domain"}, "labels"),
        ({"file": True}, "conversations.sha256"),
    ],
)
def test_another_way_to_read_them_is_another_run(place, tmp_path, monkeypatch, change, words):
    # However long the hashes take, what was scored before an error is kept.
    monkeypatch.setattr("scoremode.lib.tasks.Task.is_done", False)
    with pytest.raises(Stop):
        run(request(place, tmp_path / "cut"), interrupted_after(1))
    ((folder, _),) = find_runs(tmp_path / "cut")
    if change.pop("file", None):
        other = tmp_path / "chats.jsonl"
        other.write_text((place / "chats.jsonl").read_text().replace('"domain"', '"kind"'))
        asked = request(place, folder, resume=True)
        asked = replace(asked, corpus=from_conversations_file(other))
    else:
        asked = request(place, folder, resume=True, **change)
    with pytest.raises(RunFolderError, match=words):
        run(asked)


def test_drawn_rows_are_called_by_their_numbers(place, tmp_path):
    corpus = from_conversations_file(place / "chats.jsonl", group_by="domain").limited_to(5, seed=1)
    result = measure(replace(request(place, tmp_path), corpus=corpus))
    _, extras = in_file_order(result.folder)
    numbers = drawn_rows(range(12), 5, 1)
    assert numbers != list(range(5)) and sorted(set(extras["conversation"])) == numbers
    domains = [("code", "math", "talk")[row % 3] for row in extras["conversation"]]
    assert extras["label"].tolist() == domains
    findings = check([result.folder], Sources())["runs"][0]["findings"]
    found = {f"{f['part']} {f['name']}": f["status"] for f in findings}
    assert found["scores.parquet conversation"] == "held" and "wrong" not in found.values()


@pytest.mark.parametrize(("own", "base"), [(64, 512), (512, 64)])
def test_a_base_has_the_windows_of_the_model(place, tmp_path, own, base):
    """The one with fewer positions than the longest chat has tokens is the model, or the base."""
    for name, positions in (("quant", own), ("base", base)):
        shutil.copytree(place / name, tmp_path / name)
        config = json.loads((place / name / "config.json").read_text())
        config["max_position_embeddings"] = positions
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    asked = request(place, tmp_path / "runs", reference=str(tmp_path / "base"))
    asked = replace(asked, model=str(tmp_path / "quant"), protocol=preset("chat"))
    lines: list[str] = []
    if base < own:
        with pytest.raises(
            ProtocolError, match=r"base: context length 4096 exceeds .* 64 positions"
        ):
            measure(asked)
        return
    record = measure(asked, notify=lines.append).record.document
    assert record["protocol"]["name"] == "chat+context-length=64"
    assert record["protocol"]["context_length"] == 64 and record["metrics"]["kld"]["value"] > 0
    assert any("longer than the model's 64 positions" in line for line in lines)


def test_a_base_with_another_template_is_refused_by_its_name(place, demo, tmp_path):
    base = chat_model(demo, tmp_path / "base", TEMPLATE.replace("[{{ m.role }}]", "<{{ m.role }}>"))
    with pytest.raises(ReferenceUnusable) as caught:
        measure(request(place, tmp_path / "runs", reference=str(base)))
    words = str(caught.value)
    assert words.startswith(f"{base}: its chat template ({base}/chat_template.jinja) writes these")
    assert "--chat-template FILE gives both the same one" in words and "\n" not in words
    # The same text by another template is the same text.
    (base / "chat_template.jinja").write_text(TEMPLATE + "{# as before #}")
    assert measure(request(place, tmp_path / "runs", reference=str(base))).folder.is_dir()


def test_one_template_for_both(place, demo, tmp_path):
    base = chat_model(demo, tmp_path / "base", "{{ messages[0].content }}")
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    how = {"reference": str(base), "template": tmp_path / "t.jinja"}
    record = measure(request(place, tmp_path / "runs", **how)).record.document
    facts = record["corpus"]["conversations"]
    assert facts["template"]["source"] == str(tmp_path / "t.jinja")
    # Weights of the demo against the same ones a little off.
    assert record["metrics"]["kld"]["value"] > 0


def test_a_model_without_a_template_is_told_what_to_give(place, demo, tmp_path):
    chat_model(demo, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    asked = replace(request(place, tmp_path), model=str(tmp_path / "model"))
    with pytest.raises(CorpusError, match=r"line 1: is a chat, and .* has no chat template: give"):
        measure(asked)


def test_bad_rows_are_counted_in_the_record_and_told(place, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    text = (place / "chats.jsonl").read_text()
    (folder / "chats.jsonl").write_text('{"messages": []}\n' + text)
    corpus = from_conversations_file(folder / "chats.jsonl", skip_bad_rows=1)
    lines: list[str] = []
    asked = replace(request(place, tmp_path / "runs"), corpus=corpus)
    facts = measure(asked, notify=lines.append).record.document["corpus"]["conversations"]
    assert facts["bad_rows"] == 1 and facts["read"] == 13
    assert lines[0].startswith("left out: chats.jsonl, line 1: messages is")

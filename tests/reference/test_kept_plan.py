"""Plans of kept runs: those that were scored, with their groups, whatever the text."""

from dataclasses import replace

import numpy as np
import pytest
from support.chats.runs import chat_model, write_rows
from support.records import with_fields

from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ReferenceUnusable
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import SCORES, read_columns
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.corpus import from_files, from_rows
from scoremode.text.kept_text import kept_text
from scoremode.text.protocol import preset

SENTENCES = ["Once upon a time.", "", "x = [1, 2]", "The end of it, they said.\n"]


@pytest.fixture(scope="module")
def place(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    chat_model(demo, folder / "model")
    write_rows(demo, folder / "chats.jsonl")
    (folder / "texts").mkdir()
    (folder / "texts" / "b.txt").write_text("Once upon a time there was one. " * 20)
    (folder / "texts" / "a.txt").write_text("x = [1, 2, 3]\n" * 30)
    return folder


def asked(place, kind) -> Request:
    groups = "kind", [("story", "none", "code", "story")[i % 4] for i in range(80)]
    corpus, name = {
        "apart": (from_files([place / "texts"], "file"), "disjoint"),
        "apart, weighed": (from_files([place / "texts"], "file"), "hf-strided"),
        "rows": (from_rows(SENTENCES * 20, name="x", source="x", digest="", groups=groups), "gptq"),
        "conversations": (
            from_conversations_file(place / "chats.jsonl", group_by="domain"), "chat",
        ),
    }[kind]  # fmt: skip
    stride = 16 if name == "hf-strided" else None
    length = 256 if name == "chat" else 32
    return Request(
        model=str(place / "model"),
        corpus=corpus,
        protocol=preset(name).override(context_length=length, stride=stride),
        options=TorchOptions(device="cpu", dtype="float32"),
        output=place / kind,
        keep="stored",
        resume="if-there",
    )


@pytest.mark.parametrize("kind", ["apart", "apart, weighed", "rows", "conversations"])
def test_the_plan_is_the_one_that_was_scored(place, kind):
    request = asked(place, kind)
    result = measure(request)
    kept = StoredReference(result.folder).plan()
    plan = plan_text(request.corpus, request.protocol, model=request.model).plan
    assert kept.sha256 == plan.sha256 == result.record.document["plan"]["sha256"]
    at = plan.targets()[2]
    assert np.array_equal(kept.targets()[2], at)
    assert kept.labels is not None and plan.labels is not None
    assert kept.labels.at(at).tolist() == plan.labels.at(at).tolist()
    assert kept.labels.sha256(at) == plan.labels.sha256(at)
    assert (kept.turn_place is not None) == (kind == "conversations")
    if kept.turn_place is not None and plan.turn_place is not None:
        assert np.array_equal(kept.turn_place[at], plan.turn_place[at])
        assert np.array_equal(kept.conversation, plan.conversation)
    weights = plan.weights()
    assert (weights is not None) == (kind == "apart, weighed")
    if weights is not None:
        assert np.array_equal(kept.weights(), weights)


@pytest.mark.parametrize("kind", ["apart", "rows"])
def test_a_run_on_the_kept_text_has_its_groups(place, tmp_path, kind):
    request = asked(place, kind)
    base = measure(request)
    stored = StoredReference(base.folder)
    corpus = kept_text(str(base.folder), stored.record.document, stored.plan())
    more = {"keep": None, "resume": False, "output": tmp_path, "reference": str(base.folder)}
    again = measure(replace(request, corpus=corpus, **more))
    assert again.record.document["plan"] == base.record.document["plan"]
    assert again.record.document["corpus"] == base.record.document["corpus"]
    labels = again.record.document["breakdown"]["label"]
    assert {g["group"] for g in labels} == set(base.record.document["plan"]["labels"])
    assert all(g["kld"]["value"] == 0 for g in labels)
    columns = [read_columns(folder / SCORES)[1]["label"] for folder in (base.folder, again.folder)]
    assert columns[0].tolist() == columns[1].tolist()
    # The text itself gives the same run.
    whole = measure(replace(request, **more | {"output": tmp_path / "whole"}))
    assert whole.record.document["identity"] == again.record.document["identity"]
    assert whole.record.document["breakdown"] == again.record.document["breakdown"]


def test_other_tokens_make_another_plan(place, tmp_path):
    base = measure(asked(place, "apart"))
    stored = StoredReference(base.folder)
    stored.record = with_fields(stored.record, {"plan.sha256": "00" * 32})
    with pytest.raises(ReferenceUnusable, match="its tokens make another plan"):
        stored.plan()

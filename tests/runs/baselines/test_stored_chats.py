"""Conversations against a kept base."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.chats.runs import chat_model, write_rows
from support.models import edit_tensors

from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ProtocolError, ReferenceUnusable
from scoremode.reference.stored import StoredReference
from scoremode.results.folders.store import read_scores
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.kept_text import kept_text
from scoremode.text.protocol import preset


@pytest.fixture(scope="module")
def chats(demo, tmp_path_factory) -> Path:
    """`base`, `quant`, and conversations of unequal lengths."""
    folder = tmp_path_factory.mktemp("chats")
    chat_model(demo, folder / "base")
    chat_model(demo, folder / "quant")

    def off(tensors):
        for tensor in tensors.values():
            tensor *= 1.05

    edit_tensors(folder / "quant", off)
    write_rows(demo, folder / "chats.jsonl", 40)
    return folder


def chat_request(chats: Path, output: Path, **more) -> Request:
    rules = preset("chat").override(context_length=64, long="split", **more.pop("rules", {}))
    corpus = from_conversations_file(chats / "chats.jsonl", group_by="domain")
    options = TorchOptions(device="cpu", dtype="float32", batch_windows=6, max_memory=4_000_000)
    return replace(Request(str(chats / "quant"), corpus, rules, options, output), **more)


@pytest.fixture(scope="module")
def kept_chats(chats, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "reference"
    asked = chat_request(chats, folder, model=str(chats / "base"), keep="stored")
    record = measure(asked).record.document
    assert len(record["kept"]["states"]["files"]) > 1 and record["schedule"]["pads"]
    return folder


@pytest.mark.parametrize("rules", [{}, {"stop_when": "kld±0.001%", "seed": 3}])
def test_conversations_against_a_kept_base_give_the_bits_of_a_live_one(
    chats, kept_chats, tmp_path, rules
):
    live = measure(
        chat_request(chats, tmp_path / "live", reference=str(chats / "base"), rules=rules)
    )
    kept = measure(chat_request(chats, tmp_path / "kept", reference=str(kept_chats), rules=rules))
    ours, theirs = (read_scores(each.folder).columns() for each in (kept, live))
    for name, column in theirs.items():
        # Drawn, a window has other neighbours than it had when it was kept.
        is_rounded = rules and name.startswith(("base_logprob", "base_top1_logprob", "kld", "tv"))
        same = (
            np.allclose(column, ours[name], atol=1e-5)
            if is_rounded
            else (column == ours[name]).all()
        )
        assert same, name
    assert rules or kept.record.document["reference"]["replay"]["bitwise"]
    assert kept.record.document["reference"]["replay_at_load"]["bitwise"]
    if rules:
        assert (
            kept.record.document["stopping"]["after"] == live.record.document["stopping"]["after"]
        )
        looks = [look["windows"] for look in live.record.document["stopping"]["looks"]]
        # After whole conversations: 32 of 40, and all of them.
        assert looks[-1] == live.record.document["plan"]["windows"] > 40 and len(looks) == 2
    else:
        assert kept.record.document["breakdown"] == live.record.document["breakdown"]


def test_the_plan_of_kept_conversations_is_the_one_that_was_scored(chats, kept_chats):
    stored = StoredReference(kept_chats)
    plan, made = stored.plan(), chat_request(chats, kept_chats)
    wanted = plan_text(made.corpus, made.protocol, model=str(chats / "quant")).plan
    assert plan.sha256 == wanted.sha256 == stored.record.document["plan"]["sha256"]
    for name in ("start", "stop", "first", "conversation", "counts", "tokens"):
        assert np.array_equal(getattr(plan, name), getattr(wanted, name)), name
    assert plan.labels is not None and wanted.labels is not None
    index = plan.targets()[2]
    assert plan.labels.sha256(index) == wanted.labels.sha256(index)
    # Its own text, for a run that names none.
    text = kept_text(str(kept_chats), stored.record.document, plan)
    assert plan_text(text, made.protocol, model=str(chats / "quant")).plan is plan
    with pytest.raises(
        ReferenceUnusable, match=r"its protocol's scored is assistant, this run's all"
    ):
        plan_text(text, made.protocol.override(scored="all"), model=str(chats / "quant"))


def test_kept_conversations_of_another_protocol_are_refused(chats, kept_chats, tmp_path):
    asked = chat_request(chats, tmp_path, reference=str(kept_chats))
    with pytest.raises(
        ReferenceUnusable, match=r"is of another plan: its protocol's context_length"
    ):
        measure(replace(asked, protocol=asked.protocol.override(context_length=128)))
    with pytest.raises(ProtocolError, match=r"is for rows, and chats\.jsonl is conversations"):
        measure(replace(asked, protocol=preset("disjoint").override(context_length=64)))

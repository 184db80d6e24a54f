"""References of a sweep: opened once, checked once, named by what made them."""

import shutil
from dataclasses import replace

import pytest
from support.chats.runs import chat_model, write_rows
from support.models import edit_tensors
from support.sweeps import pair
from support.tampered_runs import copy_model

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import ReferenceUnusable
from scoremode.lib.json import json_text
from scoremode.reference.stored import StoredReference
from scoremode.runs.planning import plan_text
from scoremode.runs.sweep.bases import Bases, KeptOnce, folder_of_base, options_of
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset


def test_files_are_read_through_once_and_again_when_one_is_touched(copied, monkeypatch):
    read = []
    check = StoredReference.check_files
    counted = lambda stored, rows: (read.append(1), check(stored, rows))  # noqa: E731
    monkeypatch.setattr(StoredReference, "check_files", counted)
    stored = KeptOnce(copied)
    stored.check_files()
    stored.check_files()
    assert len(read) == 1
    states = copied / "states" / "00001.safetensors"
    data = bytearray(states.read_bytes())
    data[-1] ^= 1
    states.write_bytes(data)
    with pytest.raises(ReferenceUnusable, match="sha256"):
        stored.check_files()
    assert len(read) == 2


def test_the_same_reference_is_opened_once_and_the_one_before_let_go(copied, kept, text, base):
    request = replace(pair(base, text), reference=str(copied))
    planned = plan_text(request.corpus, request.protocol, model=str(base))
    bases, checkpoint = Bases(), open_checkpoint(str(base))
    first = bases.baseline(request, planned, checkpoint)
    assert bases.baseline(request, planned, checkpoint).stored is first.stored  # pyright: ignore
    import torch

    head = first.stored.head(torch.device("cpu"))  # pyright: ignore[reportAttributeAccessIssue]
    assert first.stored.head(torch.device("cpu")) is head  # pyright: ignore
    bases.baseline(replace(request, reference=str(kept)), planned, checkpoint)
    assert not first.stored._heads  # pyright: ignore[reportAttributeAccessIssue]


def test_a_folder_is_named_by_base_plan_and_options(base, text, tmp_path):
    request = pair(base, text)
    checkpoint = open_checkpoint(str(base))

    def named(request):
        planned = plan_text(request.corpus, request.protocol, model=str(base))
        return folder_of_base(tmp_path, checkpoint, planned, request)

    first = named(request)
    assert named(request) == first and first.parent == tmp_path
    assert named(pair(base, text[:1000])) != first and named(pair(base, text, 32)) != first
    other = replace(request, options=replace(request.options, dtype="bfloat16"))
    assert named(other) != first
    # What moves no score of the base has no part in it that a resumed call would miss.
    assert named(replace(request, resume="if-there")) == first


def test_a_base_of_the_same_headers_and_other_weights_has_another_folder(demo, text, tmp_path):
    model = tmp_path / "model"
    copy_model(demo, model)
    request = pair(model, text)
    planned = plan_text(request.corpus, request.protocol, model=str(model))
    first = folder_of_base(tmp_path, open_checkpoint(str(model)), planned, request)
    first.mkdir()
    files = open_checkpoint(str(model)).hash_files()
    (first / "record.json").write_text(json_text({"checkpoint": {"files": files}}))
    assert folder_of_base(tmp_path, open_checkpoint(str(model)), planned, request) == first

    def change(tensors):
        tensors["model.norm.weight"][0] += 1

    edit_tensors(model, change)
    second = folder_of_base(tmp_path, open_checkpoint(str(model)), planned, request)
    assert second == first.with_name(f"{first.name}-2")
    shutil.rmtree(first)


def test_options_are_all_that_may_move_a_score(base, text):
    request = pair(base, text)
    found = options_of(request)
    assert found["engine"] == "TorchOptions" and found["batch_windows"] == 2
    assert options_of(replace(request, full=True)) != found
    assert options_of(replace(request, token_text=True)) != found


def test_the_same_tokens_of_conversations_told_otherwise_are_another_reference(demo, tmp_path):
    model = chat_model(demo, tmp_path / "model")
    write_rows(demo, tmp_path / "chats.jsonl")
    checkpoint = open_checkpoint(str(model))

    def named(**how):
        corpus = from_conversations_file(tmp_path / "chats.jsonl", **how)
        rules = preset("chat").override(context_length=128)
        request = replace(pair(model, "text"), corpus=corpus, protocol=rules)
        planned = plan_text(corpus, rules, model=str(model))
        return folder_of_base(tmp_path, checkpoint, planned, request)

    assert named() == named() != named(arguments={"x": 1})

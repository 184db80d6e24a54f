"""The counts of a record, and which file it is of."""

import json
from hashlib import sha256

from scoremode.runs.generation.record import counts_of, finished_record
from scoremode.text.conversations.corpus import KIND


def reply(reason="stop", exact=True, kept=True, form="messages", tokens=3, **fields):
    about = {"exact": exact, "tokens": tokens}
    return {
        "row": {"finish_reason": reason, "generated": about, **fields},
        "form": form,
        "kept": kept,
    }


def test_each_reply_counts_once_of_each_kind():
    written = [
        reply(),
        reply("length", tokens=10),
        reply("length", tokens=5, generated_ids=[1]),
        reply(form="text"),
        reply(exact=False, generated_ids=[1]),
        reply(exact=False, kept=False),
    ]
    assert counts_of(written) == {
        "replies": 6,
        "written": 5,
        "left_out": 1,
        "ended": 4,
        "cut": 2,
        "exact": 4,
        "respelled": 1,
        "inexact": 2,
        "texts": 1,
        "tokens": 27,
    }


def test_a_record_is_of_the_file_whose_sha256_it_has(tmp_path):
    file, beside = tmp_path / "a.jsonl", tmp_path / "a.jsonl.json"
    file.write_bytes(b"one\n")
    record = {
        "kind": KIND,
        "identity": {"seed": 0},
        "output": {"sha256": sha256(b"one\n").hexdigest()},
    }
    assert finished_record(file) is None
    beside.write_text(json.dumps(record))
    assert finished_record(file) == record
    for broken in ("{", "[]", json.dumps(record | {"kind": "x"}), json.dumps({"kind": KIND})):
        beside.write_text(broken)
        assert finished_record(file) is None
    beside.write_text(json.dumps(record))
    file.write_bytes(b"two\n")
    assert finished_record(file) is None

"""The counts of a record, and which file it is of."""

import json
from hashlib import sha256

from scoremode.runs.generate import counts_of, finished_record
from scoremode.text.conversations.corpus import KIND


def reply(reason="stop", tokens=3, **fields):
    return {"finish_reason": reason, "generated": {"tokens": tokens}, **fields}


def test_each_reply_counts_once_of_each_kind():
    replies = [
        reply(),
        reply("length", tokens=10),
        reply("length", tokens=5, generated_ids=[1]),
        reply(prompt="a", completion="b"),
        reply(generated_ids=[1]),
        None,
    ]
    assert counts_of(replies) == {
        "replies": 6,
        "written": 5,
        "left_out": 1,
        "ended": 3,
        "cut": 2,
        "respelled": 2,
        "tokens": 24,
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

"""The record beside generated conversations, which is believed of the very file that it is of."""

import json
from hashlib import sha256

import pytest

from scoremode.errors import CorpusError
from scoremode.text.conversations.corpus import (
    KIND,
    from_conversations_file,
    generated_by,
    record_path,
)

CHAT = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
DIGEST = sha256(CHAT).hexdigest()
RECORD = {
    "kind": KIND,
    "base": {"source": "m"},
    "engine": {"engine": "torch"},
    "sampling": {"seed": 0},
    "template": {"sha256": "0"},
    "output": {"sha256": DIGEST},
    "begun": "today",
}


@pytest.fixture
def chats(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_bytes(CHAT)
    return path


def put(chats, record) -> str:
    text = json.dumps(record)
    record_path(chats).write_text(text)
    return sha256(text.encode()).hexdigest()


def test_a_run_repeats_who_said_it(chats):
    digest = put(chats, RECORD)
    expected = {name: RECORD[name] for name in ("base", "engine", "sampling", "template")}
    assert generated_by(chats, DIGEST) == expected | {"record_sha256": digest}
    assert from_conversations_file(chats).to_json()["generated"] == generated_by(chats, DIGEST)


def test_without_a_record_of_this_file_nobody_is_named(chats):
    assert generated_by(chats, DIGEST) is None
    assert "generated" not in from_conversations_file(chats).to_json()
    put(chats, RECORD | {"output": {"sha256": "0" * 64}})
    assert generated_by(chats, DIGEST) is None
    for other in ([], RECORD | {"kind": "another tool's"}, RECORD | {"output": "x"}):
        put(chats, other)
        assert generated_by(chats, DIGEST) is None
    record_path(chats).write_bytes(b"\xff{")
    assert generated_by(chats, DIGEST) is None


def test_a_record_of_this_file_that_is_not_whole_is_refused(chats):
    for name in ("base", "engine", "sampling", "template"):
        put(chats, RECORD | {name: None})
        with pytest.raises(CorpusError, match=f"chats.jsonl.json: .* without its {name}"):
            generated_by(chats, DIGEST)


def test_what_is_no_file_is_refused(chats):
    record_path(chats).mkdir()
    with pytest.raises(CorpusError, match="is a folder, not a file"):
        generated_by(chats, DIGEST)

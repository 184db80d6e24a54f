"""Flags of conversations, and what they mean together."""

import datetime

import pytest
from support import specs

from scoremode.cli.screen import shown
from scoremode.cli.text import corpus_of, protocol_of
from scoremode.errors import UsageError
from scoremode.spec.text import Protocol
from scoremode.text.conversations.corpus import Conversations


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "chats.jsonl"
    path.write_text('{"prompt": "1 + 1 =", "completion": " 2", "domain": "math"}\n')
    return str(path)


def given(*flags: str):
    spec = specs.given(Protocol, *flags)
    with shown(hidden=True) as session:
        return corpus_of(spec, session), protocol_of(spec)


def test_flags_reach_the_conversations(file):
    chats, protocol = given(
        "--conversations", file, "--group-by", "domain", "--chat-template", "t.jinja",
        "--chat-template-kwargs", '{"a": 1}', "--chat-date", "2024-07-26", "--score", "completion",
        "--long", "split", "-c", "1k",
    )  # fmt: skip
    assert isinstance(chats, Conversations)
    assert (chats.group_by, str(chats.template)) == ("domain", "t.jinja")
    assert chats.arguments == {"a": 1} and chats.date == datetime.date(2024, 7, 26)
    changes = "scored=completion+long=split"
    assert sorted(protocol.name.split("+")) == sorted(
        ["chat", "context-length=1024", *changes.split("+")]
    )


def test_the_protocol_of_conversations_is_chat(file):
    chats, protocol = given("--conversations", file)
    assert isinstance(chats, Conversations)
    assert protocol.name == "chat" and protocol.scored == "assistant"
    assert protocol.long == "truncate" and chats.date == datetime.date(2025, 1, 1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chat-date", "26.7.2024"], "'26.7.2024' is not a day such as 2025-01-31"),
        (["--chat-template-kwargs", "[1]"], r"'\[1\]' is not an object in JSON"),
        (["--chat-template-kwargs", "{"], "'{' is not an object in JSON"),
        (["--text", "a"], "several texts: --text and --conversations"),
        (["--score", "none"], "invalid choice: 'none'"),
        (["--conversations", "again"], "--conversations: is given twice"),
    ],
)
def test_what_can_not_be_is_one_line(file, flags, words):
    with pytest.raises(UsageError, match=words):
        given("--conversations", file, *flags)

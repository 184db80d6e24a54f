"""Conversations of data sets in the one form that templates take."""

import json
from typing import Any

import pytest

from scoremode.errors import CorpusError
from scoremode.text.conversations.messages import conversation_of, fields_of

HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def messages(*values: dict[str, Any], **row: Any) -> list[dict[str, Any]]:
    return list(conversation_of({"messages": list(values), **row}, "row 0").messages)


def said(speaker: str, value: Any) -> dict[str, Any]:
    return {"from": speaker, "value": value}


def test_openais_messages_stay_as_they_are():
    found = conversation_of({"messages": HELLO, "id": 7}, "row 0")
    assert list(found.messages) == HELLO
    assert found.tools is None and found.text is None and found.completes is None
    assert found.row == {"id": 7}


def test_sharegpts_speakers_become_roles():
    row = {
        "system": "Be kind.",
        "conversations": [said("human", "Hi"), said("gpt", "Hello"), said("observation", "1")],
    }
    assert [(m["role"], m["content"]) for m in conversation_of(row, "r").messages] == [
        ("system", "Be kind."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("tool", "1"),
    ]


def test_sharegpts_function_call_is_a_tool_call():
    row = {
        "conversations": [
            said("human", "Hi"),
            said("function_call", '{"name": "f", "arguments": {}}'),
        ]
    }
    call = conversation_of(row, "r").messages[1]
    assert call["role"] == "assistant" and call["tool_calls"] == [{"name": "f", "arguments": {}}]


def test_a_prompt_and_its_completion_as_text():
    found = conversation_of({"prompt": "1 + 1 =", "completion": " 2"}, "r")
    assert found.text == ("1 + 1 =", " 2") and not found.messages


def test_a_prompt_beside_messages_is_a_copy_of_theirs():
    # As ultrachat_200k has it.
    row = {"prompt": HELLO[0]["content"], "prompt_id": "f0e3", "messages": HELLO}
    found = conversation_of(row, "x")
    assert list(found.messages) == HELLO and found.text is found.completes is None
    said = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    assert len(conversation_of({"prompt": "a", "conversations": said}, "x").messages) == 2


def test_a_prompt_and_its_completion_as_messages():
    found = conversation_of({"prompt": HELLO[:1], "completion": HELLO[1:]}, "r")
    assert list(found.messages) == HELLO and found.completes == 1


def test_parts_of_a_content_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]
    assert messages({"role": "user", "content": parts})[0]["content"] == "abc"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_there_under_the_names_that_templates_read(name):
    (message,) = messages({"role": "assistant", "content": "2", name: "1 + 1"})
    assert message["reasoning_content"] == message["thinking"] == "1 + 1"


def test_arguments_of_a_tool_call_are_read_from_their_json():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    (message,) = messages({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert message["content"] == ""


def test_what_parquet_adds_is_left_out():
    """A column of structs has every field of any row in all rows."""
    (message,) = messages({"role": "user", "content": "a", "tool_calls": None, "name": None})
    assert message == {"role": "user", "content": "a"}
    tool = {"type": "function", "function": {"name": "f", "x": None}}
    found = conversation_of({"messages": HELLO, "tools": json.dumps([tool])}, "r")
    assert found.tools == ({"type": "function", "function": {"name": "f"}},)


@pytest.mark.parametrize("value", [None, "", [], "[]"])
def test_no_tools(value):
    assert conversation_of({"messages": HELLO, "tools": value}, "r").tools is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("text", "of type str, not an object"),
        ({}, "has nothing"),
        ({"text": "a"}, "has text: a conversation is messages"),
        ({"messages": HELLO, "conversations": []}, "has messages and conversations"),
        ({"messages": HELLO, "prompt": "Hi", "completion": "x"}, "has messages and prompt"),
        ({"messages": HELLO, "prompt": HELLO}, "has messages and prompt"),
        ({"messages": []}, "messages is of type list"),
        ({"messages": ["a"]}, "message 0: is no object with a role"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 0: its content is of type int"),
        (
            {"messages": [{"role": "assistant", "content": ""}]},
            "message 0: the assistant says nothing",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "message 0: a part of its content is 'image'",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "not Unicode text at character 0"),
        ({"conversations": [said("alien", "a")]}, "is from 'alien'"),
        ({"conversations": [{"value": "a"}]}, "no object with a speaker"),
        ({"prompt": "a"}, "has a prompt as text and no completion"),
        ({"prompt": "a", "completion": 3}, "prompt is of type str: prompt and completion"),
        ({"conversations": [said("a" * 10**6, "a")]}, "is from"),
        ({"prompt": HELLO, "completion": HELLO}, "messages that are not the assistant's"),
        ({"prompt": "a", "completion": "b", "tools": [{}]}, "has tools"),
        ({"messages": HELLO, "tools": "{"}, "tools: is not JSON"),
        ({"messages": HELLO, "tools": [1]}, "tools is of type list"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"arguments": 1}]}]},
            "a tool call has no name",
        ),
    ],
)
def test_anything_else_is_refused_by_its_place(row, words):
    with pytest.raises(CorpusError, match=r"^data\.jsonl, row 3") as caught:
        conversation_of(row, "data.jsonl, row 3")
    assert words in str(caught.value) and len(str(caught.value)) < 300


def test_of_many_fields_the_first_are_named():
    assert fields_of({}, "none") == "none" and fields_of({"a": 1, "b": 2}, "none") == "a, b"
    many = fields_of({f"{i}" + "x" * 99: 1 for i in range(12)}, "none")
    assert many.startswith("0xxx") and many.endswith(" and 2 more") and len(many) == 429


def test_a_reply_that_was_cut_and_its_ids_are_read_of_the_row():
    row = {"messages": [{"role": "user", "content": "a"}]}
    assert not conversation_of(row, "r").is_cut
    assert not conversation_of(row | {"finish_reason": "stop"}, "r").is_cut
    assert conversation_of(row | {"finish_reason": "length"}, "r").is_cut
    assert conversation_of(row | {"generated_ids": [5, 0]}, "r").generated_ids == (5, 0)
    for other in (None, [], "5", [5.0], [True], [5, None], 5):
        assert conversation_of(row | {"generated_ids": other}, "r").generated_ids is None

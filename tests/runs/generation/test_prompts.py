"""Prompts from rows and lines."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scoremode.errors import CorpusError, UsageError
from scoremode.runs.replies import prompts_from_file, prompts_of

USER = {"role": "user", "content": "Hi"}
SAID = {"role": "assistant", "content": "Hello"}


def prompt(row):
    (found,) = prompts_of([row], ["r"], "name", "source", "0").prompts
    return found


@pytest.mark.parametrize(
    ("row", "contents"),
    [
        ({"prompt": "Hi"}, ["Hi"]),
        ({"prompt": "Hi", "completion": "of another model"}, ["Hi"]),
        ({"prompt": [USER], "completion": [SAID]}, ["Hi"]),
        ({"messages": [USER]}, ["Hi"]),
        ({"messages": [USER, SAID]}, ["Hi"]),
        ({"messages": [USER, SAID, USER, SAID]}, ["Hi", "Hello", "Hi"]),
        ({"messages": [USER, SAID, SAID]}, ["Hi"]),
        ({"conversations": [{"from": "human", "value": "Hi"}]}, ["Hi"]),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "x"}]}, ["Hi"]),
    ],
)  # fmt: skip
def test_a_row_is_its_chat_without_the_reply_that_it_ends_with(row, contents):
    assert [m["content"] for m in prompt(row).messages] == contents


def test_what_a_tool_says_is_replied_to():
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "w", "arguments": "{}"}}]}
    tools = [{"type": "function", "function": {"name": "w"}}]
    found = prompt({"messages": [USER, call, {"role": "tool", "content": "sunny"}], "tools": tools})
    assert [m["role"] for m in found.messages] == ["user", "assistant", "tool"]
    assert found.tools == ({"type": "function", "function": {"name": "w"}},)


def test_other_fields_stay_but_for_those_that_a_reply_has_itself():
    row = {"prompt": "Hi", "domain": "talk", "finish_reason": "length", "generated_ids": [1]}
    assert prompt(row).row == {"domain": "talk"}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("Hi", "r: is of type str, not an object"),
        ({"text": "Hi"}, "r: has text: a conversation is messages"),
        ({"prompt": " "}, "r: its prompt is empty"),
        ({"messages": []}, "r: messages is of type list, not a list"),
        ({"messages": [SAID]}, "r: has nothing to reply to"),
        ({"messages": [{"content": "x"}]}, "r, message 0: is no object with a role"),
        ({"prompt": 3}, "r: messages is of type int"),
        ({"prompt": "Hi", "domain": "\ud800"}, "r: has a field that is not Unicode text"),
        ({"messages": [{"role": "\udc00", "content": "a"}]}, "r: has a field that is not Unicode"),
    ],
)
def test_what_is_no_prompt_is_refused_by_its_row(row, words):
    with pytest.raises(CorpusError, match=words):
        prompt(row)


def test_a_text_has_a_prompt_a_line(tmp_path):
    file = tmp_path / "p.txt"
    file.write_bytes("Hi\n\n  \r\nWhat's\u2028this?\r\n  x".encode())
    found = prompts_from_file(file)
    assert [p.messages[0]["content"] for p in found.prompts] == ["Hi", "What's\u2028this?", "  x"]
    assert [p.where for p in found.prompts] == ["p.txt, line 1", "p.txt, line 4", "p.txt, line 5"]


def test_rows_of_both_kinds_of_files_are_the_same_prompts(tmp_path):
    rows = [{"messages": [USER, SAID], "domain": "a"}, {"messages": [USER], "domain": "b"}]
    lines, table = tmp_path / "p.jsonl", tmp_path / "p.parquet"
    lines.write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), table)
    one, other = prompts_from_file(lines), prompts_from_file(table)
    assert [p.sha256 for p in one.prompts] == [p.sha256 for p in other.prompts]
    assert [p.row for p in one.prompts] == [p.row for p in other.prompts]
    assert one.dropped == other.dropped == 1
    assert [p.where for p in one.prompts] == ["p.jsonl, line 1", "p.jsonl, line 2"]
    assert one.sha256 != other.sha256


def test_files_that_are_no_prompts(tmp_path):
    for name, data, words in [
        ("p.txt", b"\n", "p.txt: has no prompts"),
        ("p.txt", b"a\0", "byte 1 is NUL"),
        ("p.csv", b"a,b", "prompts are rows of .jsonl or .parquet, or lines of a text"),
        ("p.jsonl", b"{", "line 1 is not JSON"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(CorpusError, match=words):
            prompts_from_file(tmp_path / name)
    with pytest.raises(CorpusError, match="No such file"):
        prompts_from_file(tmp_path / "none.txt")


def test_the_first_so_many_behind_a_system_message(tmp_path):
    own = {"messages": [{"role": "system", "content": "mine"}, USER]}
    rows = [{"prompt": "a"}, own, {"messages": [USER, SAID, USER]}]
    found = prompts_of(rows, ["0", "1", "2"], "n", "s", "0")
    told = found.limited_to(2).with_system("Be brief.")
    assert [[m["content"] for m in p.messages] for p in told.prompts] == [
        ["Be brief.", "a"],
        ["mine", "Hi"],
    ]
    assert told.prompts[0].sha256 != found.prompts[0].sha256
    assert (found.with_history, told.with_history) == (1, 0)
    assert found.limited_to(None) is found and found.with_system(None) is found
    with pytest.raises(UsageError, match="--num-samples 0"):
        found.limited_to(0)

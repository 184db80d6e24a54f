"""Conversations: what data sets of chats hold, in the one form that chat templates take.

Three ways of writing them are read. OpenAI's `messages` (roles, contents, tool calls, reasoning);
ShareGPT's `conversations` (`from`, `value`); pairs of `prompt` and `completion`, which are texts as
they are, or lists of messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scoremode.errors import CorpusError

__all__ = ["REASONING", "Conversation", "conversation_of", "fields_of"]

# The names under which data sets and templates have a message's reasoning.
REASONING = ("reasoning_content", "thinking", "reasoning")
# ShareGPT's speakers, and those that data sets added, by the roles of templates.
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_FORMS = "messages, conversations, or prompt and completion"


@dataclass(frozen=True)
class Conversation:
    """One conversation, or one text and what follows it.

    - `where`: its file and row, for errors.
    - `messages`: with `role` and `content` each, whose other fields templates read; `tools`: JSON
      schemas of functions, None without.
    - `text`: a prompt and its completion as they are, in place of messages; None else.
    - `completes`: messages of the completion alone, at the end; None where the data don't tell one.
    - `row`: the other fields of the data set's row.
    """

    where: str
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] | None = None
    text: tuple[str, str] | None = None
    completes: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """Tells whether the last turn broke off at a limit: the model didn't end it (OpenAI's
        `finish_reason` of the row is `length`)."""
        return self.row.get("finish_reason") == "length"

    @property
    def generated_ids(self) -> tuple[int, ...] | None:
        """The ids with which the row says that the last turn was generated, None where it has none."""
        ids = self.row.get("generated_ids")
        if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
            return None
        return tuple(ids)


def conversation_of(row: Any, where: str) -> Conversation:
    """The conversation that a row of a data set is. Raises CorpusError, naming row and field."""
    if not isinstance(row, dict):
        raise CorpusError(f"{where}: is {_kind(row)}, not an object")
    found = [k for k in ("messages", "conversations", "prompt") if row.get(k) is not None]
    if len(found) > 1 and isinstance(row.get("prompt"), str) and row.get("completion") is None:
        # A copy of the first message, as ultrachat_200k has: without a completion it is none of these.
        found.remove("prompt")
    if len(found) != 1:
        has = " and ".join(found) if found else fields_of(row, "nothing")
        raise CorpusError(f"{where}: has {has}: a conversation is {_FORMS}")
    (form,) = found
    tools = _tools(row.get("tools"), where)
    rest = {k: v for k, v in row.items() if k not in {form, "tools", "completion"}}
    if form == "prompt":
        return _pair(row, tools, rest, where)
    value = row[form]
    if not isinstance(value, list) or not value:
        raise CorpusError(f"{where}: {form} is {_kind(value)}, not a list of messages")
    if form == "messages":
        messages = [_message(m, f"{where}, message {i}") for i, m in enumerate(value)]
    else:
        messages = [_said(m, f"{where}, message {i}") for i, m in enumerate(value)]
        if row.get("system") is not None and messages[0]["role"] != "system":
            messages.insert(0, _message({"role": "system", "content": row["system"]}, where))
            rest.pop("system")
    return Conversation(where, tuple(messages), tools, row=rest)


def fields_of(row: Mapping[Any, Any], none: str) -> str:
    """The names of a row's fields for an error, `none` where it has none."""
    names = [str(name)[:40] for name in row]
    more = f" and {len(names) - 10:,} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) + more) or none


def _pair(
    row: dict[str, Any], tools: tuple[dict[str, Any], ...] | None, rest: dict[str, Any], where: str
) -> Conversation:
    prompt, completion = row["prompt"], row.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        if tools is not None:
            raise CorpusError(f"{where}: has tools, and a prompt as text has no place for them")
        pair = (_text(prompt, f"{where}: prompt"), _text(completion, f"{where}: completion"))
        return Conversation(where, text=pair, row=rest)
    if completion is None and isinstance(prompt, str):
        raise CorpusError(f"{where}: has a prompt as text and no completion")
    for name, value in (("prompt", prompt), ("completion", completion)):
        if not isinstance(value, list) or not value:
            raise CorpusError(
                f"{where}: {name} is {_kind(value)}: prompt and completion are texts, or both "
                "lists of messages"
            )
    before = [_message(m, f"{where}, prompt {i}") for i, m in enumerate(prompt)]
    after = [_message(m, f"{where}, completion {i}") for i, m in enumerate(completion or ())]
    if any(m["role"] != "assistant" for m in after if m["role"] != "tool"):
        raise CorpusError(f"{where}: its completion has messages that are not the assistant's")
    return Conversation(where, (*before, *after), tools, completes=len(after), row=rest)


def _message(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(role := value.get("role"), str) or not role:
        raise CorpusError(f"{where}: is no object with a role")
    # Parquet has every field of any message in all of them.
    message = {k: v for k, v in value.items() if v is not None}
    message["content"] = _content(value.get("content"), where)
    reasoning = next((message[k] for k in REASONING if k in message), None)
    if reasoning is not None:
        # Qwen's and DeepSeek's templates read one name, gpt-oss' another.
        reasoning = _text(reasoning, f"{where}: its reasoning")
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if calls := message.pop("tool_calls", None):
        if not isinstance(calls, list):
            raise CorpusError(f"{where}: tool_calls is {_kind(calls)}, not a list")
        message["tool_calls"] = [_call(call, where) for call in calls]
    elif not message["content"] and reasoning is None and role == "assistant":
        raise CorpusError(f"{where}: the assistant says nothing")
    return message


def _content(value: Any, where: str) -> str:
    """The text of a message, of which OpenAI has several parts; none beside a tool call."""
    if value is None:
        return ""
    if isinstance(value, str):
        return _text(value, where)
    if not isinstance(value, list):
        raise CorpusError(f"{where}: its content is {_kind(value)}, not text")
    texts = []
    for part in value:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind == "text" and isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            what = repr(str(kind)[:40]) if kind else _kind(part)
            raise CorpusError(f"{where}: a part of its content is {what}: texts alone are scored")
    return _text("".join(texts), where)


def _call(call: Any, where: str) -> dict[str, Any]:
    """A tool call whose arguments are an object: OpenAI has JSON in a string, templates write JSON."""
    if not isinstance(call, dict):
        raise CorpusError(f"{where}: a tool call is {_kind(call)}, not an object")
    call = {k: v for k, v in call.items() if v is not None}
    if "function" in call:
        return {**call, "function": _call(call["function"], where)}
    if not isinstance(call.get("name"), str):
        raise CorpusError(f"{where}: a tool call has no name")
    if isinstance(call.get("arguments"), str):
        call["arguments"] = _json(call["arguments"], f"{where}: arguments of {call['name']}")
    if isinstance(call.get("arguments"), dict):
        call["arguments"] = _Arguments(call["arguments"])
    return call


class _Arguments(dict[str, Any]):
    """An object that is JSON where a template adds it to a text: DeepSeek's take no other."""

    def __add__(self, text: Any) -> str:
        return json.dumps(self, ensure_ascii=False) + text

    def __radd__(self, text: Any) -> str:
        return text + json.dumps(self, ensure_ascii=False)


def _said(value: Any, where: str) -> dict[str, Any]:
    """A message of ShareGPT's."""
    if not isinstance(value, dict) or not isinstance(speaker := value.get("from"), str):
        raise CorpusError(f"{where}: is no object with a speaker (from)")
    if speaker == "function_call":
        call = _json(value.get("value"), f"{where}: its value")
        calls = call if isinstance(call, list) else [call]
        return _message({"role": "assistant", "content": None, "tool_calls": calls}, where)
    if speaker not in _ROLES:
        raise CorpusError(
            f"{where}: is from {speaker[:40]!r}, which is none of {', '.join(_ROLES)}"
        )
    rest = {k: v for k, v in value.items() if k not in {"from", "value"}}
    return _message({**rest, "role": _ROLES[speaker], "content": value.get("value")}, where)


def _tools(value: Any, where: str) -> tuple[dict[str, Any], ...] | None:
    if isinstance(value, str):
        value = _json(value, f"{where}: tools") if value.strip() else None
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise CorpusError(f"{where}: tools is {_kind(value)}, not a list of objects")
    return tuple(_without_none(tool) for tool in value)


def _without_none(value: Any) -> Any:
    """A value without the fields that Parquet added."""
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list) else value


def _json(value: Any, what: str) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        raise CorpusError(f"{what}: is not JSON: {str(value)[:40]!r}") from None


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise CorpusError(f"{what} is {_kind(value)}, not text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{what} is not Unicode text at character {error.start}") from None
    return value


def _kind(value: Any) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"

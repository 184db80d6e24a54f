"""The parts of an assistant's turn: reasoning, the name and arguments of each call, answer, code in it.

Where a template writes a field of a message is learned from the template: the message is written again
with a probe between all characters of the field. If that text is the same but for the probes, they lie
where the field does. A template that splits a content by what stands in it, as Qwen 3's does with
`</think>`, writes another text then: the longest end of the content that can be probed is the answer,
and what is written of the rest is reasoning. Arguments are an object, of which a template makes JSON or
tags: they are where the text differs from one with other arguments.

No text is searched for marks, but for the fences of code in an answer, which no template knows of.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, TokenizerError
from scoremode.text.conversations.messages import REASONING, Conversation
from scoremode.text.conversations.template import PROBE, ChatTemplate, Turn, common

__all__ = ["BY_SPAN", "SPANS", "span_of_tokens"]

# What `--group-by` calls them.
BY_SPAN = "span"
# The last is what the template writes itself, such as `<tool_call>` and the end of the turn.
SPANS = ("reasoning", "tool name", "tool arguments", "answer", "code", "template")
_REASONING, _TOOL, _ARGUMENTS, _ANSWER, _CODE, _TEMPLATE = range(len(SPANS))
# A line that opens a block of code (CommonMark 4.5), perhaps in a list. The line that closes it has at
# least as many of the same character and nothing else.
_FENCE = re.compile(r"^[ \t]*(`{3,}(?=[^`\n]*$)|~{3,}).*$", re.MULTILINE)

# Begin, end and kind of characters.
Part = tuple[int, int, int]


def span_of_tokens(
    turn: Turn,
    spans: NDArray[np.int64],
    conversation: Conversation,
    template: ChatTemplate | None,
) -> NDArray[np.int8]:
    """int8 [n]: the part, by its place in SPANS, that each token of a turn's text is of; a token of
    several is of the first.

    `spans` int64 [n, 2]: the characters of each token. Raises CorpusError, naming the conversation,
    where the template rewrites a field so that its part can't be told.
    """
    first, last = spans.T
    found = np.full(len(spans), _TEMPLATE, np.int8)
    try:
        parts = sorted(_parts(turn, conversation, template), reverse=True)
    except TokenizerError as error:
        raise CorpusError(f"{conversation.where}: {error}") from None
    for begin, end, kind in parts:
        found[(last > begin) & (first < end)] = kind
    return found


def _parts(turn: Turn, conversation: Conversation, template: ChatTemplate | None) -> Iterator[Part]:
    if conversation.text is not None:
        # Two texts as they are, of which no template says anything.
        yield from _with_code(turn.text, turn.begin, turn.end)
        return
    assert template is not None
    before, message = conversation.messages[: turn.message], conversation.messages[turn.message]

    def written(changed: Mapping[str, Any]) -> str:
        return template.render([*before, {**message, **changed}], conversation.tools).text

    text, where = written({}), f"{conversation.where}, message {turn.message}"
    names = [name for name in REASONING if isinstance(message.get(name), str)]
    if names:
        # Whichever name the template reads.
        own = message[names[0]]
        thought = _Field(text, own, lambda value: written(dict.fromkeys(names, value)))
        yield from ((*at, _REASONING) for at in thought.whole(f"{where}: reasoning"))
    content = _Field(text, message["content"], lambda value: written({"content": value}))
    yield from content.parts(f"{where}: content")
    calls = message.get("tool_calls", ())
    for i, call in enumerate(calls):

        def with_call(changed: Mapping[str, Any], i: int = i) -> str:
            return written({"tool_calls": [*calls[:i], changed, *calls[i + 1 :]]})

        yield from _of_call(text, call, with_call, f"{where}: call {i}")


@dataclass(frozen=True)
class _Field:
    """A text in a message; `text`: all that the template writes, `write`: the same of another value."""

    text: str
    value: str
    write: Callable[[str], str]

    def at(self, begin: int, end: int) -> list[tuple[int, int]] | None:
        """Where these characters of the value are written, perhaps more than once or not at all; None
        where probes between them change the text."""
        inside = "".join(c + PROBE for c in self.value[begin:end])
        changed = self.write(self.value[:begin] + PROBE + inside + self.value[end:])
        if changed.replace(PROBE, "") != self.text:
            return None
        probes = [i for i, c in enumerate(changed) if c == PROBE]
        count = end - begin + 1
        if len(probes) % count:
            return None
        places = [at - i for i, at in enumerate(probes)]
        return [(places[i], places[i + count - 1]) for i in range(0, len(places), count)]

    @property
    def core(self) -> tuple[int, int]:
        """The value without white space at its ends, which templates leave out."""
        begin = len(self.value) - len(self.value.lstrip())
        return begin, max(begin, len(self.value.rstrip()))

    def whole(self, what: str) -> list[tuple[int, int]]:
        """Where the value is written as one. Raises CorpusError."""
        begin, end = self.core
        found = [] if begin == end else self.at(begin, end)
        if found is None:
            raise CorpusError(
                f"{what} ({self.value[:30]!r}): the chat template rewrites it, so its tokens can't be "
                f"told (--group-by {BY_SPAN})"
            )
        return found

    def parts(self, what: str) -> Iterator[Part]:
        """The parts of a content. Raises CorpusError."""
        begin, end = self.core
        if begin == end:
            return
        if self.at(begin, end) is not None:
            split = begin
        else:
            split = begin + bisect_left(
                range(begin, end), True, key=lambda i: self.at(i, end) is not None
            )
        for first, last in (split < end and self.at(split, end)) or ():
            yield from _with_code(self.text, first, last)
        if split > begin and self.write(self.value[split:]) != self.text:
            yield from ((*at, _REASONING) for at in self._front(begin, split, what))

    def _front(self, begin: int, end: int, what: str) -> list[tuple[int, int]]:
        """Where what stands before a mark, at which the template splits the value, is written."""
        # The mark is at the end, and another may be at the beginning.
        places = ((begin + end) // 2, *range(begin, end))
        inside = next((i for i in places if self.at(i, i + 1)), None)
        if inside is not None:
            ends, begins = range(inside + 2, end + 1), range(begin, inside)
            last = inside + 1 + bisect_left(ends, True, key=lambda i: self.at(inside, i) is None)
            first = begin + bisect_left(begins, True, key=lambda i: self.at(i, last) is not None)
            if self.value[last:end].strip():
                return self.at(first, last) or []
        return self.whole(what)


def _of_call(
    text: str, call: Mapping[str, Any], write: Callable[[Mapping[str, Any]], str], what: str
) -> Iterator[Part]:
    """The parts of a call; `write` gives what the template writes with another call in its place."""
    has = call.get("function", call)

    def changed(**values: Any) -> str:
        inner = {**has, **values}
        return write({**call, "function": inner} if "function" in call else inner)

    name = _Field(text, has["name"], lambda value: changed(name=value))
    named = name.whole(f"{what}: its name")
    if not named and isinstance(call.get("id"), str):
        # Kimi K2 writes an id that has the name in it.
        id_ = _Field(text, call["id"], lambda value: write({**call, "id": value}))
        named = id_.whole(f"{what}: its id")
    yield from ((*at, _TOOL) for at in named)
    # A text in place of the object shows where all of it is; a template that walks through it, which
    # refuses or skips a text, shows the first name to the last value.
    for other in (PROBE, {PROBE: PROBE}):
        try:
            without = changed(arguments=other)
        except TokenizerError:
            continue
        if PROBE in without:
            begin = common(text, without)
            end = len(text) - common(text[begin:][::-1], without[begin:][::-1])
            if begin < end:
                yield begin, end, _ARGUMENTS
            return


def _with_code(text: str, begin: int, end: int) -> Iterator[Part]:
    """An answer, and in it the lines between the fences of each block of code."""
    at, opened = begin, None
    # By itself: templates write an answer behind a mark, and its first line begins there.
    for fence in _FENCE.finditer(text[begin:end]):
        mark = fence[1]
        if opened is None:
            opened = mark
            inside = min(begin + fence.end() + 1, end)
            yield at, inside, _ANSWER
            at = inside
        elif mark.startswith(opened) and not fence[0].strip(f"{mark[0]} \t\r"):
            opened = None
            yield at, begin + fence.start(), _CODE
            at = begin + fence.start()
    yield at, end, _ANSWER if opened is None else _CODE

"""What of a conversation's text the model would have generated.

An assistant's turn is what its template writes after the prompt that it gives for that turn: the text
of the messages up to the turn, with it, less the text of those before it and the beginning of a reply.
So nothing is searched for in a text, which may say anything.

A template that marks what is generated, in as many places of a turn as it likes, is believed: of a turn
its marks alone count, and one that it leaves without a mark doesn't count at all, wherever it stands.
What the prompt gives is never the model's, though: a mark that begins before the turn does counts from
there on.

Many templates write a turn otherwise once another follows: Qwen 3's and DeepSeek's leave out its
reasoning, gpt-oss' its `<|return|>`. The model generated it as it was, so every turn is written as the
last one; those that a later text has with the same tokens share it (`tokens.py`).

A turn that was cut at a limit has no end that the model generated. What the template writes behind it
is what stays where the turn is made longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scoremode.errors import CorpusError, TokenizerError
from scoremode.text.conversations.messages import REASONING, Conversation
from scoremode.text.conversations.template import ChatTemplate

__all__ = ["Scored", "Turn", "turns"]

# What no prompt begins with and no reply goes on with: Unicode has no such character.
_PROBE = "\ufdd2"

Scored = Literal["assistant", "completion", "all"]


Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Turn:
    """A text that ends with what the model generated.

    - `begin`, `end`: characters of that; its template may have more in it than the model generates,
      such as a newline behind the end of the turn.
    - `as_prompted`: whether it begins where the template's prompt for a reply ends. DeepSeek R1's
      prompt opens a `<think>` that no turn of its history has: such a turn begins where the two part.
    - `is_last`: whether it ends the conversation.
    - `marks`: characters that its template marks as generated in it, some perhaps before `begin`; None
      of a template that marks nothing.
    """

    text: str
    begin: int
    end: int
    as_prompted: bool = True
    is_last: bool = True
    marks: Spans | None = None

    @property
    def spans(self) -> Spans:
        """The characters that count, in order, what touches made one; none of a turn without a mark.
        An empty one is of a model that ends its turn at once."""
        found: list[tuple[int, int]] = []
        for begin, end in ((self.begin, self.end),) if self.marks is None else self.marks:
            begin, end = max(begin, self.begin), min(end, self.end)
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            if begin <= end:
                found.append((begin, end))
        return tuple(found)


def turns(conversation: Conversation, template: ChatTemplate | None, scored: Scored) -> list[Turn]:
    """The turns of a conversation that count, in order, each with all that came before it; with `all`
    one, the whole text.

    Raises CorpusError, naming the conversation, where its template refuses it, where the assistant
    says nothing in it, and where the template changes what came before a turn with the turn.
    """
    if conversation.text is not None:
        prompt, completion = conversation.text
        whole = prompt + completion
        return [Turn(whole, 0 if scored == "all" else len(prompt), len(whole))]
    if template is None:
        raise CorpusError(f"{conversation.where}: is a chat, and there is no chat template for it")
    try:
        if scored == "all":
            text = template.render(conversation.messages, conversation.tools).text
            whole = Turn(text, 0, len(text))
            return [_as_generated(whole, conversation, template, len(conversation.messages) - 1)]
        if not (wanted := _wanted(conversation, scored)):
            raise CorpusError(f"{conversation.where}: no message of it is the assistant's")
        return [
            _as_generated(_turn(conversation, template, message), conversation, template, message)
            for message in wanted
        ]
    except TokenizerError as error:
        raise CorpusError(f"{conversation.where}: {error}") from None


def _wanted(conversation: Conversation, scored: Scored) -> list[int]:
    said = [i for i, m in enumerate(conversation.messages) if m["role"] == "assistant"]
    if scored == "assistant":
        return said
    if conversation.completes is None:
        return said[-1:]
    begin = len(conversation.messages) - conversation.completes
    return [i for i in said if i >= begin]


def _turn(conversation: Conversation, template: ChatTemplate, message: int) -> Turn:
    """A message of the assistant's with all before it."""
    before, tools = conversation.messages[:message], conversation.tools
    where = f"{conversation.where}, message {message}"
    whole = template.render(conversation.messages[: message + 1], tools)
    as_prompted = True
    if before:
        prompt = template.render(before, tools, prompts=True).text
        begin = _common(prompt, whole.text)
        as_prompted = begin == len(prompt)
        if not as_prompted and begin < len(template.render(before, tools).text):
            raise CorpusError(
                f"{where}: its chat template writes what came before the turn otherwise with it: "
                f"{whole.text[begin : begin + 30]!r} for {prompt[begin : begin + 30]!r}"
            )
        if not as_prompted:
            begin = min(begin, _header(template, before, tools, prompt))
    elif template.marks_turns:
        begin = _opening(template, conversation, whole.text)
    else:
        raise CorpusError(f"{where}: is the assistant's, and nothing before it prompts for it")
    # One that ends where the turn begins is an earlier turn's, unless the turn says nothing in it.
    own = (m for m in whole.marks if m[1] > begin or m[0] == m[1] == begin)
    marks = tuple(own) if template.marks_turns else None
    return Turn(whole.text, begin, len(whole.text), as_prompted, marks=marks)


def _opening(template: ChatTemplate, conversation: Conversation, text: str) -> int:
    """Where a turn begins in `text` that nothing comes before: behind what the template prompts later
    replies with, if that stands before what is said."""
    tools = conversation.tools
    later = [conversation.messages[0], {"role": "user", "content": _PROBE}]
    bare, prompt = (template.render(later, tools, prompts=p).text for p in (False, True))
    opens = prompt[_common(bare, prompt) :]
    at = text.find(opens, 0, _header(template, (), tools, text))
    return 0 if at < 0 else at + len(opens)


def _header(
    template: ChatTemplate,
    before: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    prompt: str,
) -> int:
    """Characters of a prompt that a turn has as well, whatever is said in it: a reply that begins like
    the prompt's end, as `<b>` does like `<think>`, begins no later."""
    try:
        probe = template.render([*before, {"role": "assistant", "content": _PROBE}], tools)
    except TokenizerError:
        # It takes no such reply; then what the two have in common is all there is to go by.
        return len(prompt)
    return _common(prompt, probe.text)


def _as_generated(
    turn: Turn, conversation: Conversation, template: ChatTemplate, message: int
) -> Turn:
    """The turn of a message; of one that was cut without what its template writes behind it."""
    messages = conversation.messages
    last = messages[-1]
    if message != len(messages) - 1:
        return replace(turn, is_last=False)
    if not conversation.is_cut or last["role"] != "assistant":
        return turn
    # One that was cut while it reasoned has no content yet.
    names = ("content",) if last["content"] else tuple(name for name in REASONING if name in last)
    longer = last | {name: last[name] + _PROBE for name in names}
    end = _common(turn.text, template.render([*messages[:-1], longer], conversation.tools).text)
    return replace(turn, text=turn.text[:end], end=max(end, turn.begin))


def _common(one: str, other: str) -> int:
    """Characters that two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low

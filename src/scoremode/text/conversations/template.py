"""A model's chat template, and the turns in a conversation's text that the model would have generated.

Templates are Jinja and come with checkpoints; `environment.py` runs them as transformers does.

An assistant's turn is the text that its template writes after the prompt for that turn: the text of the
messages up to the turn, with it, less the text of those before it and the beginning of a reply. So
nothing is searched for in a text, which may say anything.

A template that marks what is generated, in as many places of a turn as it likes, is believed: only the
marked parts of a turn count, and a turn without a mark doesn't count at all. The prompt itself is never
the model's, though: a mark that begins before the turn does counts from the turn's beginning on.

Many templates write a turn differently once another follows: Qwen 3's and DeepSeek's leave out its
reasoning, gpt-oss' its `<|return|>`. The model generated it as it was, so every turn is written as the
last one; turns that a later text has with the same tokens share that text (`tokens.py`).

A turn that was cut at a limit has no end that the model generated. The part that the template writes
behind it is the one that stays where the turn is made longer.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from scoremode.errors import CorpusError, TokenizerError, words_of
from scoremode.text.conversations.messages import REASONING, Conversation

if TYPE_CHECKING:
    import jinja2

__all__ = [
    "BEGIN",
    "DATE",
    "END",
    "PROBE",
    "ChatTemplate",
    "Rendered",
    "Scored",
    "Turn",
    "common",
    "turns",
]


# Around what a template says that the model generated, while it is rendered. Unicode keeps these two
# for a program's own use, so no text has them; one that does is refused.
BEGIN, END = "\ufdd0", "\ufdd1"

# The date given to templates that ask for today's; Llama 3's is wrong in any case.
DATE = datetime.date(2025, 1, 1)

# How Python writes an object that has no text of its own, such as a filter's generator or a function.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")

# Values that a conversation has itself.
_OWN = {"messages", "tools", "documents", "add_generation_prompt"}

# A character that no prompt begins with and no reply goes on with: Unicode has none such.
PROBE = "\ufdd2"

Scored = Literal["assistant", "completion", "all"]
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rendered:
    """A conversation as text; `marks`: begin and end, in characters, of what its template says that
    the model generated, in order, none where it doesn't say."""

    text: str
    marks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template with the values that stay the same over all conversations.

    - `source`: where it is from; `jinja`: its text.
    - `tokens`: names of special tokens, such as `bos_token`, to their texts.
    - `arguments`: given by the user, such as `enable_thinking`; `date`: of `strftime_now`.
    """

    source: str
    jinja: str = field(repr=False)
    tokens: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: datetime.date = DATE

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the template's text alone."""
        return sha256(self.jinja.encode()).hexdigest()

    @cached_property
    def asks_for_date(self) -> bool:
        return "strftime_now" in self.jinja

    @cached_property
    def marks_turns(self) -> bool:
        """Tells whether it has a `{% generation %}` anywhere, whether or not a chat gets there."""
        from scoremode.text.conversations.environment import environment

        _ = self._compiled  # so that what follows is a template
        kinds = [t[1:] for t in environment(self.date).lex(self.jinja) if t[1] != "whitespace"]
        return any(
            begin[0] == "block_begin" and name == ("name", "generation")
            for begin, name in pairwise(kinds)
        )

    def check(self) -> None:
        """Raises TokenizerError where it is no template, or is given what a conversation gives."""
        if taken := sorted(self.arguments.keys() & _OWN):
            raise TokenizerError(
                f"--chat-template-kwargs: {taken[0]} is each conversation's own, and can't be given"
            )
        _ = self._compiled

    @cached_property
    def _compiled(self) -> "jinja2.Template":

        from scoremode.text.conversations.environment import environment

        try:
            return environment(self.date).from_string(self.jinja)
        # Python's own compiler has its say, too: of a break outside a loop, of blocks too deep.
        except Exception as error:  # noqa: BLE001
            raise TokenizerError(
                f"{self.source}: its chat template is not one: {words_of(error, 200)}"
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        prompts: bool = False,
    ) -> Rendered:
        """The text of `messages`; `prompts`: with the beginning of the assistant's next turn.

        Raises TokenizerError with what the template says of messages that it doesn't take.
        """
        import jinja2

        values = {
            **self.tokens,
            **self.arguments,
            "messages": [dict(m) for m in messages],
            "tools": None if tools is None else [dict(t) for t in tools],
            "documents": None,
            "add_generation_prompt": prompts,
        }
        try:
            text = self._written(values)
        except TokenizerError:
            raise
        except RecursionError:
            raise TokenizerError(f"{self.source}: its chat template recurses too deep") from None
        # Not hidden: a template is a program, which may raise whatever it likes.
        except Exception as error:  # noqa: BLE001
            words = words_of(error, 200, named=not isinstance(error, jinja2.TemplateError))
            raise TokenizerError(f"{self.source}: its chat template refuses: {words}") from None
        if " at 0x" in text and (strange := self._addresses(text, values)):
            raise TokenizerError(
                f"{self.source}: its chat template writes a program's object, whose address "
                f"({min(strange)[4:-1]}) is another one each time"
            )
        if (BEGIN in text or END in text) and _has_marks([*messages, *(tools or ())]):
            # Balanced ones would be believed, and choose the targets.
            raise TokenizerError(
                f"{self.source}: a message has one of the characters {BEGIN!a} and {END!a}, which mark "
                "what is generated"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            around = text[max(error.start - 10, 0) : error.start + 1]
            raise TokenizerError(
                f"{self.source}: its chat template writes no Unicode text: {around!a}"
            ) from None
        return self._without_marks(text)

    def _written(self, values: Mapping[str, Any]) -> str:
        import jinja2

        from scoremode.text.conversations.environment import MOST_CHARACTERS

        pieces, size = [], 0
        for piece in self._compiled.generate(values):
            size += len(piece)
            if size > MOST_CHARACTERS:
                raise jinja2.TemplateError(f"it writes more than {MOST_CHARACTERS:,} characters")
            pieces.append(piece)
        return "".join(pieces)

    def _addresses(self, text: str, values: Mapping[str, Any]) -> set[str]:
        """Addresses of objects in a rendered text that neither the template nor `values` have."""
        own = json.dumps(values, ensure_ascii=False, default=str) + self.jinja
        return set(_ADDRESS.findall(text)) - set(_ADDRESS.findall(own))

    def _without_marks(self, text: str) -> Rendered:
        pieces, spans, end = [], [], 0
        for i, part in enumerate(text.split(BEGIN)):
            inside, *behind = part.split(END)
            if len(behind) != (i > 0):
                raise TokenizerError(
                    f"{self.source}: marks of what is generated lie in each other, or the text has "
                    f"one of the characters {BEGIN!a} and {END!a}"
                )
            if i:
                spans.append((end, end + len(inside)))
            pieces += [inside, *behind]
            end += len(inside) + sum(map(len, behind))
        return Rendered("".join(pieces), tuple(spans))

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "sha256": self.sha256,
            "arguments": dict(self.arguments),
            "date": self.date.isoformat() if self.asks_for_date else None,
        }


def _has_marks(values: Sequence[Mapping[str, Any]]) -> bool:
    """Tells whether any text in messages or tools has a mark."""
    said = json.dumps(values, ensure_ascii=False, default=str)
    return BEGIN in said or END in said


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
    - `message`: its place in the conversation; the last message of a whole one.
    - `writes_calls`: whether its tool calls, if it has any, are in the text: some templates leave them
      out.
    """

    text: str
    begin: int
    end: int
    as_prompted: bool = True
    is_last: bool = True
    marks: Spans | None = None
    message: int = -1
    writes_calls: bool = True

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
    writes_calls = True
    if conversation.messages[message].get("tool_calls"):
        bare = {k: v for k, v in conversation.messages[message].items() if k != "tool_calls"}
        # A template that takes no empty reply writes them.
        with suppress(TokenizerError):
            writes_calls = whole.text != template.render([*before, bare], tools).text
    as_prompted = True
    if before:
        prompt = template.render(before, tools, prompts=True).text
        begin = common(prompt, whole.text)
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
    return Turn(
        whole.text, begin, len(whole.text), as_prompted,
        marks=marks, message=message, writes_calls=writes_calls,
    )  # fmt: skip


def _opening(template: ChatTemplate, conversation: Conversation, text: str) -> int:
    """The beginning of a turn in `text` that nothing comes before: behind the template's prompt for
    later replies, if that prompt stands before the turn's words."""
    tools = conversation.tools
    later = [conversation.messages[0], {"role": "user", "content": PROBE}]
    bare, prompt = (template.render(later, tools, prompts=p).text for p in (False, True))
    opens = prompt[common(bare, prompt) :]
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
        probe = template.render([*before, {"role": "assistant", "content": PROBE}], tools)
    except TokenizerError:
        # It takes no such reply; then what the two have in common is all there is to go by.
        return len(prompt)
    return common(prompt, probe.text)


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
    longer = last | {name: last[name] + PROBE for name in names}
    end = common(turn.text, template.render([*messages[:-1], longer], conversation.tools).text)
    return replace(turn, text=turn.text[:end], end=max(end, turn.begin))


def common(one: str, other: str) -> int:
    """Characters that two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low

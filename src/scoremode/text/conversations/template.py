"""A model's chat template: conversations as the text that the model was trained on.

Templates are Jinja and come with checkpoints; `environment.py` runs them as transformers does.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from scoremode.errors import TokenizerError, words_of

if TYPE_CHECKING:
    import jinja2

__all__ = ["BEGIN", "DATE", "END", "ChatTemplate", "Rendered"]

# Around what a template says that the model generated, while it is rendered. Unicode keeps these two
# for a program's own use, so no text has them; one that does is refused.
BEGIN, END = "\ufdd0", "\ufdd1"

# What templates that ask for today's date are told; Llama 3's is wrong in any case.
DATE = datetime.date(2025, 1, 1)

# How Python writes an object that has no text of its own, such as a filter's generator or a function.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")

# Values that a conversation has itself.
_OWN = {"messages", "tools", "documents", "add_generation_prompt"}


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
        """Of the template's text alone."""
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

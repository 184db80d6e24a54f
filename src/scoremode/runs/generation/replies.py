"""Rows of a data set that a model's replies become, each read back as a run will read it.

A row is exact if the reader (`text.conversations.tokens`) makes the very ids of it that were prompted
and generated, and counts those that were generated and no other. A reply is written in the first exact
one of these ways: its text as a message's content; its reasoning in a field of its own, where the
template knows one; prompt and completion as the texts that they are, for a template that trims, or
leaves reasoning out. A model may also spell a word in tokens that its tokenizer would not choose: then
the row has the `generated_ids` beside the text, which the reader takes.

What is exact in none of these ways says so.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.sampling import Reply
from scoremode.errors import CorpusError, TokenizerError
from scoremode.runs.generation.prompts import Prompt
from scoremode.text.conversations.messages import REASONING, conversation_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, tokens_of
from scoremode.text.tokenizer import Tokenizer

__all__ = ["Replying", "Written"]

# What decoders write for bytes that are no character, such as the first ones of a character cut in two.
_NO_CHARACTER = "\ufffd"
_MOST_BYTES = 4
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class Written:
    """A reply as a row. `form`: which of the three ways; `is_exact`: whether its ids come back;
    `is_readable`: whether the reader takes it at all."""

    row: dict[str, Any]
    form: str
    is_exact: bool
    is_readable: bool


@dataclass(frozen=True)
class Replying:
    """What turns prompts into ids, and ids into rows; `ends`: ids of tokens that end a turn."""

    tokenizer: Tokenizer
    template: ChatTemplate
    ends: frozenset[int]

    def prompted(self, prompt: Prompt) -> str:
        """The text after which the model replies. Raises CorpusError, naming the prompt."""
        try:
            return self.template.render(prompt.messages, prompt.tools, prompts=True).text
        except TokenizerError as error:
            raise CorpusError(f"{prompt.where}: {error}") from None

    def ids(self, prompt: Prompt) -> NDArray[np.int32]:
        """The ids of that text, int32 [n]; BOS is the template's to write. Raises CorpusError."""
        ids, _ = self.tokenizer.encode_with_spans(self.prompted(prompt))
        if not len(ids):
            raise CorpusError(f"{prompt.where}: its chat template prompts for no reply")
        return ids

    def written(self, prompt: Prompt, reply: Reply, about: Mapping[str, Any]) -> Written:
        """The row of a reply to a prompt; `about`: what it says of itself in the field `generated`."""
        ids = self._without_half_characters(reply)
        expected = np.concatenate([self.ids(prompt), np.array(ids, np.int32)])
        marks = {
            "finish_reason": "stop" if reply.ended else "length",
            "generated": {**about, "tokens": len(ids), "exact": True},
        }
        forms = list(self._forms(prompt, ids, ended=reply.ended))
        for own in ({}, {"generated_ids": ids}):
            for form, said in forms:
                row = _as_json({**prompt.row, **said, **marks, **own})
                if self._comes_back(row, expected, len(ids), prompt.where):
                    return Written(row, form, is_exact=True, is_readable=True)
        form, said = forms[0]
        marks["generated"]["exact"] = False
        row = _as_json({**prompt.row, **said, **marks, "generated_ids": ids})
        return Written(row, form, is_exact=False, is_readable=self._reads(row, prompt.where))

    def _without_half_characters(self, reply: Reply) -> tuple[int, ...]:
        """The ids of a reply; of one that was cut in the middle of a character, without that."""
        ids = reply.ids
        for _ in range(_MOST_BYTES - 1):
            if reply.ended or len(ids) < 2 or not self._text(ids).endswith(_NO_CHARACTER):
                break
            ids = ids[:-1]
        return ids

    def _text(self, ids: tuple[int, ...]) -> str:
        return self.tokenizer.decode(ids)

    def _forms(
        self, prompt: Prompt, ids: tuple[int, ...], *, ended: bool
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """The ways of writing a reply: their names, and the row's fields."""
        content = self._text(ids[:-1] if ended else ids)
        before = list(prompt.messages)
        tools = {} if prompt.tools is None else {"tools": list(prompt.tools)}
        said = {"role": "assistant", "content": content}
        yield "messages", {"messages": [*before, said], **tools}
        if _THOUGHT in content and any(name in self.template.jinja for name in REASONING):
            reasoning, _, rest = content.partition(_THOUGHT)
            reasoning = reasoning.removeprefix(_THINK).strip("\n")
            said = {"role": "assistant", "content": rest.lstrip("\n"), REASONING[0]: reasoning}
            yield "reasoning", {"messages": [*before, said], **tools}
        # The reader puts what the tokenizer adds before a text, which the template has written too.
        front = self._text(self.tokenizer.added[0])
        text = self.prompted(prompt)
        if text.startswith(front):
            yield "text", {"prompt": text.removeprefix(front), "completion": self._text(ids)}

    def _comes_back(
        self, row: Mapping[str, Any], expected: NDArray[np.int32], generated: int, where: str
    ) -> bool:
        """Tells whether the reader makes these ids of a row, and counts the last `generated` ones."""
        spoken = Spoken(self.tokenizer, self.template, self.ends, "completion")
        try:
            *_, tokens = tokens_of(conversation_of(row, where), spoken)
        except CorpusError:
            return False
        if not np.array_equal(tokens.ids, expected):
            return False
        counts = np.arange(len(expected)) >= max(len(expected) - generated, 1)
        return bool(np.array_equal(tokens.counts, counts))

    def _reads(self, row: Mapping[str, Any], where: str) -> bool:
        spoken = Spoken(self.tokenizer, self.template, self.ends, "completion")
        try:
            tokens_of(conversation_of(row, where), spoken)
        except CorpusError:
            return False
        return True


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is read back: Parquet's days and bytes are texts then."""
    return json.loads(json.dumps(row, default=str))

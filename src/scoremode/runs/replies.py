"""Prompts for a model to reply to, and the rows that its replies become.

A prompt is a chat as conversations are (`messages`, ShareGPT's `conversations`) without the reply that
it ends with, if it does; or a `prompt`, a text that the user says, or messages; or a line of a text.
The other fields of its row go on into what is written, so that a domain stays a domain.

A reply's row is read back as a run will read it: the reader (`text.conversations.tokens`) must make the
very ids of it that were prompted and generated, and count those that were generated and no other. The
reply is a message, or, for a template that trims or drops part of it, prompt and completion are the
texts that they are. A model may also spell a word in tokens that its tokenizer would not choose: then
the row has the `generated_ids` beside the text, which the reader takes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.sampling import Reply
from scoremode.errors import CorpusError, TokenizerError, UsageError
from scoremode.lib.files import MOST_TEXT, read_regular
from scoremode.lib.json import json_digest
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.conversations.tokens import Spoken, tokens_of
from scoremode.text.corpus import text_of
from scoremode.text.hub import rows_of_hub
from scoremode.text.rows import read_rows, row_names
from scoremode.text.tokenizer import Tokenizer

_ROWS = (".jsonl", ".ndjson", ".parquet")
# Fields that describe the reply, in place of those that a row may have of another.
_OURS = ("finish_reason", "generated", "generated_ids")
# Decoders write this for bytes that are no character, such as the first ones of a character cut in two.
_NO_CHARACTER = "\ufffd"
_MOST_BYTES = 4


@dataclass(frozen=True)
class Prompt:
    """A chat for a model to reply to: `messages`, and `tools` it may call, None without; `row`: the
    other fields of its row. `where` names it in errors."""

    where: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        return json_digest([list(self.messages), self.tools and list(self.tools)])


@dataclass(frozen=True)
class Prompts:
    """Prompts in the order of their data set.

    - `name`, `source`, `sha256`: of the file, or of the hub's files.
    - `dropped`: prompts whose own last reply was left out.
    """

    name: str
    source: str
    sha256: str
    prompts: tuple[Prompt, ...]
    dropped: int = 0

    @property
    def with_history(self) -> int:
        """Prompts in which the assistant has spoken before."""
        return sum(any(m["role"] == "assistant" for m in p.messages) for p in self.prompts)

    def limited_to(self, rows: int | None) -> "Prompts":
        """The first so many. Raises UsageError."""
        if rows is None:
            return self
        if rows < 1:
            raise UsageError(f"--num-samples {rows}: must be at least 1")
        return replace(self, prompts=self.prompts[:rows])

    def with_system(self, text: str | None) -> "Prompts":
        """These prompts, each behind a system message unless it begins with one of its own."""
        if text is None:
            return self
        system = {"role": "system", "content": text}
        told = tuple(
            p
            if p.messages[0]["role"] in ("system", "developer")
            else replace(p, messages=(system, *p.messages))
            for p in self.prompts
        )
        return replace(self, prompts=told)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "source": self.source,
            "sha256": self.sha256,
            "prompts": len(self.prompts),
            "dropped_replies": self.dropped,
            "with_history": self.with_history,
        }


def prompts_from_file(path: Path) -> Prompts:
    """The prompts of a `.jsonl` or `.parquet` file, or of a text a line each. Raises CorpusError."""
    try:
        data = read_regular(path, MOST_TEXT)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    if path.suffix.lower() in _ROWS:
        rows = read_rows(data, str(path), None)
        names = row_names(data, path.name, len(rows))
    elif path.suffix.lower() in (".json", ".csv"):
        raise CorpusError(f"{path}: prompts are rows of .jsonl or .parquet, or lines of a text")
    else:
        lines = enumerate(text_of(data, str(path)).split("\n"), 1)
        said = [(number, line.rstrip("\r")) for number, line in lines if line.strip()]
        rows = [{"prompt": line} for _, line in said]
        names = [f"{path.name}, line {number}" for number, _ in said]
    return prompts_of(rows, names, path.name, str(path), sha256(data).hexdigest())


def prompts_from_hub(
    dataset: str, config: str | None, *, split: str, revision: str | None
) -> Prompts:
    """The prompts of a hub data set's split. Raises CorpusError."""
    found = rows_of_hub(dataset, config, split=split, text_field=None, revision=revision)
    return prompts_of(found.rows, found.names, found.title, found.source, found.sha256)


def prompts_of(
    rows: Sequence[Any], names: Sequence[str], name: str, source: str, digest: str
) -> Prompts:
    """The prompts that rows are, which errors call by `names`. Raises CorpusError."""
    if not rows:
        raise CorpusError(f"{name}: has no prompts")
    found = [_prompt(row, where) for row, where in zip(rows, names, strict=True)]
    dropped = sum(has_reply for _, has_reply in found)
    return Prompts(name, source, digest, tuple(prompt for prompt, _ in found), dropped)


def _prompt(row: Any, where: str) -> tuple[Prompt, bool]:
    """The prompt that a row is, and whether it had a reply."""
    if isinstance(row, dict) and row.get("prompt") is not None:
        said = row["prompt"]
        if isinstance(said, str):
            if not said.strip():
                raise CorpusError(f"{where}: its prompt is empty")
            said = [{"role": "user", "content": said}]
        # A pair of texts has no messages, and its completion isn't looked at.
        row = {k: v for k, v in row.items() if k not in ("prompt", "completion", "messages")}
        row["messages"] = said
    chat = conversation_of(row, where)
    messages = list(chat.messages)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise CorpusError(f"{where}: has nothing to reply to: the assistant alone speaks in it")
    rest = {k: v for k, v in chat.row.items() if k not in _OURS}
    has_reply = len(messages) < len(chat.messages)
    try:
        # It is written into the output as it is.
        json.dumps([messages, chat.tools, rest], ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{where}: has a field that is not Unicode text") from None
    return Prompt(where, tuple(messages), chat.tools, rest), has_reply


@dataclass(frozen=True)
class Replying:
    """Turns prompts into ids, and ids into rows; `ends`: ids of tokens that end a turn."""

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

    def row(self, prompt: Prompt, reply: Reply, about: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of a reply to a prompt, None where none reads back as the tokens that were generated.

        `about`: what it says of itself in the field `generated`.
        """
        ids = self._without_half_characters(reply)
        expected = np.concatenate([self.ids(prompt), np.array(ids, np.int32)])
        marks = {
            "finish_reason": "stop" if reply.ended else "length",
            "generated": {**about, "tokens": len(ids)},
        }
        forms = list(self._forms(prompt, ids, ended=reply.ended))
        for own in ({}, {"generated_ids": ids}):
            for said in forms:
                # As it is read back: Parquet's days and bytes are texts then.
                row = json.loads(json.dumps({**prompt.row, **said, **marks, **own}, default=str))
                if self._comes_back(row, expected, len(ids), prompt.where):
                    return row
        return None

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
    ) -> Iterator[dict[str, Any]]:
        """The row's fields that a reply is written in: a message, or the texts as they are."""
        content = self._text(ids[:-1] if ended else ids)
        before = list(prompt.messages)
        tools = {} if prompt.tools is None else {"tools": list(prompt.tools)}
        said = {"role": "assistant", "content": content}
        yield {"messages": [*before, said], **tools}
        # The reader puts what the tokenizer adds before a text, which the template has written too.
        front = self._text(self.tokenizer.added[0])
        text = self.prompted(prompt)
        if text.startswith(front):
            yield {"prompt": text.removeprefix(front), "completion": self._text(ids)}

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

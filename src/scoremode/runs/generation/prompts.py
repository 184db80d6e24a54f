"""Prompts for a model to reply to: rows of a data set, or lines of a text.

A row is a chat as conversations are (`messages`, ShareGPT's `conversations`) without the reply that it
ends with, if it does; or has a `prompt`, a text that the user says, or messages. Its other fields go on
into what is written, so that a domain stays a domain.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.errors import CorpusError, UsageError
from scoremode.lib.files import MOST_TEXT, read_regular
from scoremode.lib.json import json_digest
from scoremode.text.conversations.messages import conversation_of
from scoremode.text.corpus import text_of
from scoremode.text.hub import rows_of_hub
from scoremode.text.rows import read_rows, row_names

__all__ = ["Prompt", "Prompts", "prompts_from_file", "prompts_from_hub", "prompts_of"]

_ROWS = (".jsonl", ".ndjson", ".parquet")
# What is written of a reply itself, in place of what a row may say of another.
_OURS = ("finish_reason", "generated", "generated_ids")


@dataclass(frozen=True)
class Prompt:
    """What a model replies to: `messages`, and `tools` it may call, None without; `row`: the other
    fields of its row. `where` names it in errors."""

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
        """The same, behind that message of the system where a prompt begins with none."""
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

"""A text of conversations: read from a file or from rows of the hub, and planned by a model's template.

Its bytes are those of the data set. What a model is given of them is its own chat template's work, so
two models have the same text only where the templates write the same.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from scoremode.errors import CorpusError, UsageError
from scoremode.text.conversations.messages import Conversation, conversation_of
from scoremode.text.conversations.template import DATE, ChatTemplate
from scoremode.text.conversations.tokens import Spoken, Tally, Tokens, tokens_of
from scoremode.text.conversations.windows import cut
from scoremode.text.corpus import Corpus, read_rows
from scoremode.text.hub import rows_of_hub
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol, TextRule
from scoremode.text.tokenizer import Tokenizer
from scoremode.untrusted_files import MOST_TEXT, read_regular

__all__ = [
    "Conversations",
    "Talk",
    "conversations_of",
    "from_conversations_file",
    "from_conversations_hub",
]


@dataclass(frozen=True, eq=False)
class Conversations(Corpus):
    """Conversations in the order of their data set.

    - `chats`: all of them; `size`: bytes of the data set's files.
    - `template`: a file with a chat template in place of the model's own; `arguments` for it, and the
      `date` of the day that it is told.
    - `group_by`: the field of a row that names its group, None for no groups.
    - `skips`: whether conversations that the template refuses are left out, and counted.
    """

    chats: tuple[Conversation, ...] = field(kw_only=True, repr=False)
    size: int = field(kw_only=True)
    template: Path | None = field(default=None, kw_only=True)
    arguments: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    date: datetime.date = field(default=DATE, kw_only=True)
    group_by: str | None = field(default=None, kw_only=True)
    skips: bool = field(default=False, kw_only=True)

    def text(self, rule: TextRule) -> str:
        raise CorpusError(
            f"{self.name}: holds conversations, which are no one text: --protocol chat scores them"
        )

    def limited_to(self, rows: int | None) -> "Conversations":
        if rows is None:
            return self
        if rows < 1:
            raise UsageError(f"--num-samples {rows}: must be at least 1")
        return replace(self, chats=self.chats[:rows], row_limit=rows)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"rows": len(self.chats)}

    def planned(
        self,
        protocol: Protocol,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        ends: frozenset[int],
    ) -> "Talk":
        """The windows of all conversations, by the model's `template` and the `ends` of its turns.

        Raises CorpusError, naming the conversation, for what can't be scored.
        """
        assert protocol.text == "conversations" and protocol.long and protocol.context_length
        if template is not None:
            template = replace(template, arguments=self.arguments, date=self.date)
        spoken = Spoken(tokenizer, template, ends, protocol.scored)  # pyright: ignore[reportArgumentType]
        texts, refused = self._texts(spoken)
        found = cut(texts, protocol.context_length, protocol.long)
        plan = Plan(
            protocol,
            found.tokens,
            found.start,
            found.stop,
            found.first,
            counted=found.counts,
            conversation=found.conversation,
            label=self._labels(found.conversation.tolist()),
        )
        facts = {
            "template": None if template is None else template.to_json(),
            "read": len(self.chats),
            "refused": refused,
            "long": found.long,
            "lost": found.lost,
            **asdict(spoken.tally),
        }
        return Talk(plan, facts)

    def _labels(self, conversations: list[int]) -> tuple[str, ...] | None:
        """The groups of these conversations. Raises CorpusError for one that names none."""
        if self.group_by is None:
            return None
        labels = []
        for chat in (self.chats[place] for place in conversations):
            label = chat.row.get(self.group_by)
            if not isinstance(label, str | int) or not str(label).strip():
                has = ", ".join(map(str, chat.row)) or "no other field"
                raise CorpusError(
                    f"{chat.where}: {self.group_by} is {str(label)[:40]!r}, which names no group (it "
                    f"has {has})"
                )
            labels.append(str(label))
        return tuple(labels)

    def _texts(self, spoken: Spoken) -> tuple[list[list[Tokens]], int]:
        """The tokens of each conversation, none of one that is left out, and how many of these."""
        texts, refused = [], 0
        for chat in self.chats:
            try:
                texts.append(tokens_of(chat, spoken))
            except CorpusError as error:
                if not self.skips:
                    raise CorpusError(
                        f"{error} (--skip-refused leaves such conversations out)"
                    ) from None
                texts.append([])
                refused += 1
        return texts, refused


@dataclass(frozen=True, eq=False)
class Talk:
    """Planned conversations.

    - `facts`, for the record: the chat template, how many conversations were `read`, `refused` by the
      template, `long` (longer than a window) and `lost` (no target of them is left); how many turns
      count, and the rest of `tokens.Tally`.
    """

    plan: Plan
    facts: dict[str, Any]


def conversations_of(
    rows: Sequence[Any], *, name: str, source: str, digest: str, size: int, **how: Any
) -> Conversations:
    """The conversations that rows of a data set are; `how`: further fields. Raises CorpusError."""
    if not rows:
        raise CorpusError(f"{name}: no rows")
    chats = tuple(conversation_of(row, f"{name}, row {i}") for i, row in enumerate(rows))
    return Conversations(name, (), "rows", source, digest, chats=chats, size=size, **how)


def from_conversations_file(path: Path, **how: Any) -> Conversations:
    """The conversations of a `.jsonl` or `.parquet` file; `how`: further fields. Raises CorpusError."""
    try:
        data = read_regular(path, MOST_TEXT)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    if path.suffix.lower() not in {".jsonl", ".ndjson", ".parquet"}:
        raise CorpusError(f"{path}: a data set of conversations is .jsonl or .parquet")
    rows = read_rows(data, str(path), None)
    return conversations_of(
        rows,
        name=path.name,
        source=str(path),
        digest=sha256(data).hexdigest(),
        size=len(data),
        **how,
    )


def from_conversations_hub(
    dataset: str, config: str | None, *, split: str, revision: str | None, **how: Any
) -> Conversations:
    """The conversations of a hub data set's split; `how`: further fields. Raises CorpusError."""
    found = rows_of_hub(dataset, config, split=split, text_field=None, revision=revision)
    return conversations_of(
        found.rows,
        name=found.title,
        source=found.source,
        digest=found.sha256,
        size=found.bytes,
        **how,
    )

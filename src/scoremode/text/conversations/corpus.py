"""A text of conversations: read from a file or from rows of the hub, and planned by a model's template.

Its bytes are those of the data set. What a model is given of them is its own chat template's work, so
two models have the same text only where the templates write the same.

A file that `scoremode generate` wrote has a record beside it that says which model generated the
conversations. It counts only for the very file that it describes, by that file's sha256.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.errors import CorpusError, UsageError
from scoremode.lib.files import MOST_JSON, MOST_TEXT, read_regular
from scoremode.text.conversations.messages import Conversation, conversation_of, fields_of
from scoremode.text.conversations.spans import BY_SPAN, SPANS
from scoremode.text.conversations.template import DATE, ChatTemplate
from scoremode.text.conversations.tokens import Cut, Spoken, Tally, Tokens, cut, tokens_of
from scoremode.text.corpus import Corpus
from scoremode.text.hub import rows_of_hub
from scoremode.text.plan import Labels, Plan
from scoremode.text.protocol import Protocol, TextRule
from scoremode.text.rows import check_labels, drawn_rows, label_of, read_rows, row_names
from scoremode.text.tokenizer import Tokenizer

__all__ = [
    "KIND",
    "BadRow",
    "Conversations",
    "Talk",
    "conversations_of",
    "from_conversations_file",
    "from_conversations_hub",
    "generated_by",
    "record_path",
]


# So many bad rows an error names, and a record.
_NAMED, _KEPT = 3, 20

# The kind of the record that `scoremode generate` writes beside a file of conversations.
KIND = "scoremode generated conversations"
# The fields of it that a run's record repeats.
_REPEATED = ("base", "engine", "sampling", "template")


@dataclass(frozen=True)
class BadRow:
    """A row that is no conversation; `line` names it and says why."""

    line: str


@dataclass(frozen=True)
class Conversations(Corpus):
    """Conversations in the order of their data set.

    - `chats`: all of its rows; `size`: bytes of the data set's files.
    - `template`: a file with a chat template in place of the model's own; `arguments` for it, and the
      `date` of the day that it is told.
    - `skip_bad_rows`: how many rows may be left out that are no conversation, or have nothing to score.
    - `taken`: the numbers of the rows in the data set that `chats` are, None for all; `taken_of`: how
      many rows there were, where only some are taken.
    - `generated`: what the record beside the file says of the model that wrote it, None without one.
    """

    chats: tuple[Conversation | BadRow, ...] = field(kw_only=True, repr=False, hash=False)
    size: int = field(kw_only=True)
    template: Path | None = field(default=None, kw_only=True)
    arguments: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False)
    date: datetime.date = field(default=DATE, kw_only=True)
    skip_bad_rows: int = field(default=0, kw_only=True)
    generated: Mapping[str, Any] | None = field(default=None, kw_only=True)
    taken: tuple[int, ...] | None = field(default=None, kw_only=True, repr=False)
    taken_of: int | None = field(default=None, kw_only=True)

    def text(self, rule: TextRule) -> str:
        raise CorpusError(
            f"{self.name}: holds conversations, which are no one text: --protocol chat scores them"
        )

    def limited_to(self, rows: int | None, seed: int | None = None) -> "Conversations":
        if rows is None:
            return self
        if rows < 1:
            raise UsageError(f"--num-samples {rows}: must be at least 1")
        places = range(len(self.chats))
        places = places[:rows] if seed is None else drawn_rows(places, rows, seed)
        return replace(
            self,
            chats=tuple(self.chats[i] for i in places),
            taken=tuple(self._row(i) for i in places),
            taken_of=len(self.chats),
            row_limit=rows,
            row_seed=seed,
        )

    def _row(self, place: int) -> int:
        """The row of the data set that the one at a place of `chats` is."""
        return place if self.taken is None else self.taken[place]

    def to_json(self) -> dict[str, Any]:
        value = super().to_json() | {"rows": self.taken_of or len(self.chats)}
        return value if self.generated is None else value | {"generated": dict(self.generated)}

    def planned(
        self,
        protocol: Protocol,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        ends: frozenset[int],
        positions: int | None = None,
    ) -> "Talk":
        """The windows of all conversations, by the model's `template` and the `ends` of its turns.

        `positions`: the model's, which no window may exceed: where one would, the context length is so
        many, and the protocol says so. None for no limit, and where the length is not to change.

        Raises CorpusError for more bad rows than may be left out, naming them, and where no target is
        left; TokenizerError for a template that is none.
        """
        assert protocol.text == "conversations" and protocol.long and protocol.context_length
        if template is not None:
            template = replace(template, arguments=self.arguments, date=self.date)
            template.check()
        chats = (c for c in self.chats if isinstance(c, Conversation) and c.messages)
        if template is None and (first := next(chats, None)):
            raise CorpusError(
                f"{first.where}: is a chat, and {tokenizer.source} has no chat template: give one with "
                "--chat-template FILE"
            )
        by_span = self.group_by == BY_SPAN
        if by_span and protocol.scored == "all":
            raise CorpusError(
                f"{self.name}: --group-by {BY_SPAN} groups what the assistant says, and protocol "
                f"{protocol.name} scores all tokens"
            )
        spoken = Spoken(tokenizer, template, ends, protocol.scored, by_span=by_span)  # pyright: ignore[reportArgumentType]
        texts, labels, bad = self._texts(spoken)
        found, protocol, notes = self._cut(texts, protocol, positions)
        if n := spoken.tally.without_calls:
            notes = (
                *notes,
                f"{self.name}: the chat template leaves out the tool calls of {n:,} turns, which are "
                "scored without them; --chat-template FILE takes one that writes them",
            )
        rows = np.array([self._row(i) for i in range(len(self.chats))], np.int32)
        plan = Plan(
            protocol.whole(),
            found.tokens,
            found.start,
            found.stop,
            found.first,
            counted=found.counts,
            conversation=rows[found.conversation],
            labels=None if self.group_by is None else self._labels(found, labels),
            turn_place=None if protocol.scored == "all" else found.place,
        ).limited_to(protocol.max_windows)
        given = {"given": self.template is not None}
        facts = {
            "template": None if template is None else template.to_json() | given,
            "ends": sorted(ends),
            "read": len(self.chats),
            "bad_rows": len(bad),
            "bad": bad[:_KEPT],
            "long": found.long,
            "lost": found.lost - len(bad),
            "beyond": found.targets - len(found.scored),
            **asdict(spoken.tally),
            **({} if protocol.scored == "all" else {"turn_targets": _spread(found, spoken.tally)}),
        }
        return Talk(plan if protocol.seed is None else plan.drawn(protocol), facts, notes)

    def _cut(
        self, texts: list[list[Tokens]], protocol: Protocol, positions: int | None
    ) -> tuple[Cut, Protocol, tuple[str, ...]]:
        """The windows of all texts, the protocol with the context length that they have, and lines on
        that."""
        assert protocol.long and protocol.context_length
        found = cut(texts, protocol.context_length, protocol.long)
        if positions is None or (found.stop - found.start).max() <= positions:
            return found, protocol, ()
        shorter = replace(protocol.override(context_length=positions), stride=positions)
        found = cut(texts, positions, protocol.long)
        line = (
            f"{found.long:,} of {len(self.chats):,} conversations are longer than the model's "
            f"{positions:,} positions, so these are the context length (protocol {shorter.name})"
        )
        return found, shorter, (line,)

    def _labels(self, found: Cut, labels: list[str]) -> Labels:
        """The groups of all tokens: the parts of their turns, or by the groups of all rows."""
        if found.span is not None:
            return Labels.of_places(SPANS, found.span)
        # Tokens that no window holds are no targets, and may have any group.
        whose = np.full(len(found.tokens), found.conversation[0], np.int64)
        for start, stop, row in zip(found.start, found.stop, found.conversation, strict=True):
            whose[start:stop] = row
        made = Labels.of_places(labels, whose)
        check_labels(made.names, f"{self.name}: {self.group_by}")
        return made

    def _texts(self, spoken: Spoken) -> tuple[list[list[Tokens]], list[str], list[str]]:
        """The tokens and the label of each row, none of a bad one, and a line for each of these."""
        texts: list[list[Tokens]] = []
        labels, bad = [], []
        for chat in self.chats:
            alone = replace(spoken, tally=Tally())
            try:
                if isinstance(chat, BadRow):
                    raise CorpusError(chat.line)
                labels.append(self._label(chat))
                texts.append(tokens_of(chat, alone))
                spoken.tally.add(alone.tally)
            except CorpusError as error:
                bad.append(str(error))
                labels[len(texts) :] = [""]
                texts.append([])
        if len(bad) > self.skip_bad_rows:
            more = f"; {len(bad) - _NAMED:,} more bad rows" if len(bad) > _NAMED else ""
            raise CorpusError(
                f"{'; '.join(bad[:_NAMED])}{more} (--skip-bad-rows {len(bad)} leaves "
                f"{'it' if len(bad) == 1 else 'them'} out)"
            )
        return texts, labels, bad

    def _label(self, chat: Conversation) -> str:
        """The group of a conversation. Raises CorpusError for one that names none."""
        if self.group_by in (None, BY_SPAN):
            return ""
        has = fields_of(chat.row, "no other field")
        return label_of(chat.row.get(self.group_by), chat.where, self.group_by, f" (it has {has})")


@dataclass(frozen=True, eq=False)
class Talk:
    """Planned conversations.

    - `facts`, for the record: the chat template, the tokens that end a turn, the field of groups; how
      many rows were `read`, how many of them are bad with a line for each of the first, how many
      conversations are `long` (longer than a window) and `lost` (no target of them is left); how many
      turns count, and the rest of `tokens.Tally`; the targets that lie `beyond` all windows, and how
      many of the others a turn has.
    - `notes`: lines that a user should know.
    """

    plan: Plan
    facts: dict[str, Any]
    notes: tuple[str, ...] = ()


def _spread(found: Cut, tally: Tally) -> dict[str, Any]:
    """The least, the median and the most targets that a window scores of a turn that counts."""
    counts = np.unique(found.scored, return_counts=True)[1]
    # Turns with no target left count as well.
    counts = np.pad(counts, (tally.turns - len(counts), 0))
    return {
        "least": int(counts.min()),
        "median": float(np.median(counts)),
        "most": int(counts.max()),
    }


def conversations_of(
    rows: Sequence[Any],
    names: Sequence[str],
    *,
    name: str,
    source: str,
    digest: str,
    size: int,
    **how: Any,
) -> Conversations:
    """The conversations that rows of a data set are, which errors call by `names`; `how`: further
    fields. Raises CorpusError where there are none."""
    if not rows:
        raise CorpusError(f"{name}: no rows")
    chats: list[Conversation | BadRow] = []
    for row, where in zip(rows, names, strict=True):
        try:
            chats.append(conversation_of(row, where))
        except CorpusError as error:
            chats.append(BadRow(str(error)))
    return Conversations(name, (), "rows", source, digest, chats=tuple(chats), size=size, **how)


def from_conversations_file(path: Path, **how: Any) -> Conversations:
    """The conversations of a `.jsonl` or `.parquet` file; `how`: further fields. Raises CorpusError."""
    try:
        data = read_regular(path, MOST_TEXT)
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from None
    if not path.name.lower().endswith((".jsonl", ".ndjson", ".parquet", ".jsonl.gz", ".ndjson.gz")):
        raise CorpusError(f"{path}: a data set of conversations is .jsonl, .jsonl.gz or .parquet")
    rows, digest = read_rows(data, str(path), None), sha256(data).hexdigest()
    return conversations_of(
        rows,
        row_names(data, path.name, len(rows)),
        name=path.name,
        source=str(path),
        digest=digest,
        size=len(data),
        generated=generated_by(path, digest),
        **how,
    )


def from_conversations_hub(
    dataset: str,
    config: str | None,
    *,
    split: str,
    revision: str | None,
    files: Sequence[str] = (),
    **how: Any,
) -> Conversations:
    """The conversations of a hub data set's split, or of its `files`; `how`: further fields. Raises
    CorpusError."""
    found = rows_of_hub(
        dataset, config, split=split, text_field=None, revision=revision, files=files
    )
    return conversations_of(
        found.rows,
        found.names,
        name=found.title,
        source=found.source,
        digest=found.sha256,
        size=found.bytes,
        **how,
    )


def record_path(path: Path) -> Path:
    """The path of the record of a file: `chats.jsonl` has `chats.jsonl.json`."""
    return path.with_name(f"{path.name}.json")


def generated_by(path: Path, digest: str) -> dict[str, Any] | None:
    """The part of a run's record on the file whose sha256 is `digest`: its `base`, `engine`, `sampling`
    and `template`, and the sha256 of the record that says so; None where no record is there, or one of
    another file.

    Raises CorpusError for a record that can't be read, or lacks what it should have.
    """
    file = record_path(path)
    try:
        data = read_regular(file, MOST_JSON)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CorpusError(f"{file}: {error.strerror}") from None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("kind") != KIND:
        return None
    output = record.get("output")
    if not isinstance(output, dict) or output.get("sha256") != digest:
        return None
    for name in _REPEATED:
        if not isinstance(record.get(name), dict):
            raise CorpusError(f"{file}: is a record of what a model said, without its {name}")
    return {**{n: record[n] for n in _REPEATED}, "record_sha256": sha256(data).hexdigest()}

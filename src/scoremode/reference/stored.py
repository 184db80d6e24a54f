"""Reading a reference: a base's states and its head, from the folder that `scoremode reference` wrote.

Nothing of it is as wide as the vocabulary: 150,000 positions of an 8B model take 1.2 GB of states and
1 GB of head, where their 16-bit logits would take 38 GB. The logits are made again, tile by tile.

Its plan comes from the token ids that it keeps and its own Scores (`kept_plan`). Windows that are drawn
are scored in another order than they were kept in (`OrderedReference`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import UNSET
from numpy.typing import NDArray

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, ReferenceUnusable, words_of
from scoremode.head.project import Head, HeadLogits, RoundedHead, held_logits, tile_of
from scoremode.lib.files import MOST_TEXT, check_regular, read_regular
from scoremode.lib.tasks import Task
from scoremode.reference.address import address_of
from scoremode.reference.base import Span
from scoremode.reference.states import (
    HEADER_BYTES,
    SpanPrefetch,
    StatesFile,
    StatesReader,
    begin_of_states,
    read_states,
    rows_of_files,
)
from scoremode.reference.writer import digest_of, name_of, reference_sha256
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.results.folders.finished import check_numbers, read_verified
from scoremode.results.folders.store import HEAD, RECORD, TOKENS
from scoremode.results.folders.tables import LABEL
from scoremode.results.record.checks import checked_record
from scoremode.results.record.definition import Done, Invalid
from scoremode.results.record.model import HeadPlace, Kept
from scoremode.results.record.model import StatesFile as KeptStates
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import logits_of
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText, check_same_tokens
from scoremode.text.plan import Labels, Plan, make_plan
from scoremode.text.protocol import Protocol


def is_run(path: Path) -> bool:
    """Tells whether `path` is a run's folder, which a reference is."""
    return (path / "record.json").is_file()


class StoredReference:
    """A finished reference. Raises ReferenceUnusable, RunFolderError.

    - `path`: its folder; `record`: of the run that made it. `address`: where it was fetched from,
      states and head as they are needed; None of one that nobody fetched.
    - `sha256`: of all that makes its numbers.
    - `vocabulary`: entries of its softmax.
    - `rounds`: the dtype that its logits are rounded to, where it is asked for `as_ran` and its engine
      rounded them; None else.
    """

    extra_sums = None

    def __init__(self, path: Path, *, as_ran: bool = False):
        self.path, self.address = path, address_of(path)
        record = checked_record(path)
        kept, keeps = record.kept, record.identity and record.identity.keep
        if not kept and not keeps:
            raise ReferenceUnusable(
                f"{path}: is a run that kept no states: scoremode reference makes one that does"
            )
        if isinstance(record, Invalid):
            raise ReferenceUnusable(f"{path}: ended as invalid: {record.reason}")
        if not kept or not isinstance(record, Done):
            raise ReferenceUnusable(
                f"{path}: is not finished (its status is {record.status}): "
                "scoremode reference --resume goes on with it"
            )
        self.record = record
        rounds = logits_of(record.document["engine"]) if as_ran else "float32"
        self.rounds = None if rounds == "float32" else getattr(torch, rounds)
        for name, there in (
            ("identity", record.identity),
            ("checkpoint.files", record.checkpoint.files),
        ):
            if there is UNSET:
                raise ReferenceUnusable(f"{path / RECORD}: has no {name}")
        self._states, self._head = kept.states, kept.head
        self._check_names(kept)
        # By device, heads by their entries too; `_arriving` are those on their way.
        self._prefetches: dict[torch.device, SpanPrefetch] = {}
        self._arriving: dict[torch.device, Task[None]] = {}
        self._heads: dict[tuple[torch.device, int, int], Head] = {}
        # None in references that were kept before tokens were.
        self._tokens = kept.tokens or None
        self.sha256 = kept.sha256
        self.vocabulary = self._head.vocabulary
        section = record.document["kept"]
        wanted = reference_sha256(record.plan.sha256, section["states"], section["head"])
        if wanted != self.sha256:
            raise ReferenceUnusable(f"{path / 'record.json'}: was changed: its parts have another "
                                    f"sha256 than {self.sha256[:12]}…")  # fmt: skip
        if self._states.rows != record.plan.scored:
            raise ReferenceUnusable(
                f"{path}: {self._states.rows} states for {record.plan.scored} targets"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its states."""
        return getattr(torch, self._states.dtype)

    @cached_property
    def scores(self) -> Scores:
        """The base's own, as they were when it was captured."""
        return self._columns[0]

    @cached_property
    def _columns(self) -> tuple[Scores, dict[str, Any]]:
        return read_verified(self.path, self.record)

    @property
    def source(self) -> str:
        """Its name in a record."""
        return self.address or str(self.path)

    def plan(self) -> Plan:
        """The plan whose targets its states are of, made again from its tokens and Scores."""
        if self._tokens is None:
            raise ReferenceUnusable(f"{self.path}: was kept without its tokens: capture it again")
        path, wanted = self.path / TOKENS, self.record.plan.sha256
        try:
            data = read_regular(path, MOST_TEXT, links=False)
        except OSError as error:
            raise ReferenceUnusable(f"{path}: {error.strerror}") from None
        _check_sha256(path, sha256(data).hexdigest(), self._tokens.sha256)
        tokens = np.frombuffer(data, "<i4").astype(np.int32)
        rules = {k: v for k, v in self.record.document["protocol"].items() if k != "sha256"}
        try:
            protocol = Protocol(**rules)
        except TypeError as error:
            raise ReferenceUnusable(
                f"{self.path}: its protocol is another scoremode's: {error}"
            ) from None
        plan = kept_plan(tokens, protocol, self.record, lambda: self._columns)
        if plan.sha256 != wanted:
            raise ReferenceUnusable(
                f"{self.path}: its tokens make another plan than its record has (sha256 "
                f"{plan.sha256[:12]}… and {wanted[:12]}…)"
            )
        return plan

    def check_plan(self, planned: PlannedText, corpus: Corpus) -> None:
        """Raises ReferenceUnusable where it is of another plan, with the first token where they differ
        by those alone. It has all windows, of which a run that a rule may stop draws some, and one with
        a limit takes the first."""
        plan, record = planned.plan.in_text_order(), self.record
        if plan.protocol.max_windows is not None and self._tokens:
            begun = self.plan().begun(plan.protocol)
            if begun.sha256 == plan.sha256:
                return
        ours = replace(planned, plan=plan if plan.conversation is None else plan.arranged())
        if (
            record.plan.sha256 != ours.plan.sha256
            and record.protocol.sha256 == ours.plan.protocol.sha256
            and self._tokens
        ):
            chat = record.document["corpus"].get("conversations")
            # By the names that this run's tokenizer has: the reference's may be gone.
            check_same_tokens(
                ours, self.plan().tokens, record.corpus.text.sha256, str(self.path),
                planned.tokenizer, chat,
            )  # fmt: skip
        check_same_plan(ours.to_json(corpus), record.document, str(self.path))

    def by_rows_of(self, plan: Plan) -> "StoredReference | OrderedReference":
        """The reference by the rows of a plan whose windows may be drawn from its own."""
        return self if plan.protocol.seed is None else OrderedReference(self, plan)

    def states(self, spans: Sequence[Span]) -> torch.Tensor:
        """Rows of states [N, D] on the CPU, one span behind the other."""
        parts = [part for span in spans for part in self._span(span)]
        if not parts:
            return self._files[0][:0]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def head(self, device: torch.device, begin: int = 0, end: int | None = None) -> Head:
        """The head of the entries `begin … end` of its vocabulary, on `device`, kept there."""
        end = self.vocabulary if end is None else min(end, self.vocabulary)
        key = (device, begin, end)
        if key not in self._heads:
            weight, bias = self._tensors
            kind = Head if self.rounds is None else partial(RoundedHead, dtype=self.rounds)
            self._heads[key] = kind(
                weight[begin:end].to(device),
                None if bias is None else bias[begin:end].to(device),
                self._head.scale,
                self._head.softcap,
                end - begin,
            )
        return self._heads[key]

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        """Has a GPU fetch the first span from now on, and the head beside it; each further span is
        fetched while the one before is used."""
        if device.type != "cuda":
            return
        if spans[0][0] < spans[0][1]:
            self._prefetch(device).expect(spans[0])
        if device not in self._arriving and self._whole(device) not in self._heads:
            self._arriving[device] = Task(partial(self._send_head, device))

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Gives the logits of these rows, to be used before those of others are asked for: on a GPU
        their states take turns in memory."""
        if device.type == "cuda" and len(spans) == 1 and spans[0][0] < spans[0][1]:
            states = self._prefetch(device).take(spans[0])
        else:
            states = self.states(spans).to(device)
        return HeadLogits(self._arrived_head(device), states, tile)

    def held_bytes(self, device: torch.device) -> int:
        """Bytes of a GPU's memory for its head, two spans of two tiles' rows, and the logits that
        `score_pairs` holds."""
        width = self._states.width
        head = self.vocabulary * width * getattr(torch, self._head.dtype).itemsize
        states = 2 * 2 * tile_of(device)[0] * width * self.dtype.itemsize
        return head + states + held_logits(self.vocabulary, device)

    def check_files(self, rows: int | None = None) -> None:
        """Reads everything and compares with the hashes in the record, and the record's numbers with
        its scores; of states those of the first `rows` targets. Raises ReferenceUnusable,
        RunFolderError."""
        scores, extras = self._columns
        check_numbers(self.path, self.record, scores, extras)
        needed = self.files_of(self._states.rows if rows is None else rows)
        most = {TOKENS: MOST_TEXT} | {f.name: self.most_of(f) for f in needed}
        for file in filter(None, (self._tokens, *needed)):
            path = self.path / file.name
            try:
                check_regular(path, most[file.name], links=False)
                found = hash_file(path)
            except OSError as error:
                raise ReferenceUnusable(f"{path}: {error.strerror}") from None
            _check_sha256(path, found, file.sha256)
        if words := self._misfit(self._tensors):
            raise ReferenceUnusable(f"{self.path}: {words}")

    def misfit_of_head(self, path: Path) -> str | None:
        """Why a safetensors file has another head than the record's; None where it has that one."""
        return self._misfit(self._as_described(*self._from_file(path)))

    def _misfit(self, tensors: tuple[torch.Tensor, torch.Tensor | None]) -> str | None:
        for name, tensor in zip(("weight", "bias"), tensors, strict=True):
            wanted = getattr(self._head.sha256, name) or None
            found = None if tensor is None else digest_of(tensor)
            if found != wanted:
                return (
                    f"the {name} of its head has the sha256 {str(found)[:12]}…, and the record has "
                    f"{str(wanted)[:12]}…"
                )
        return None

    def release(self) -> None:
        """Lets go of what it has on devices."""
        for arriving in self._arriving.values():
            arriving.wait()
        self._arriving.clear()
        self._heads.clear()
        self._prefetches.clear()

    def _send_head(self, device: torch.device) -> None:
        """Has the head on the device, by a stream of its own: behind what is queued on the usual one,
        the GPU would wait while a file is read."""
        with torch.cuda.stream(torch.cuda.Stream(device)):
            self.head(device)

    def _arrived_head(self, device: torch.device) -> Head:
        # Forgotten, so that after a lack of memory it is sent again.
        if (arriving := self._arriving.pop(device, None)) is not None:
            arriving.result()
        return self.head(device)

    def _whole(self, device: torch.device) -> tuple[torch.device, int, int]:
        return device, 0, self.vocabulary

    def _prefetch(self, device: torch.device) -> SpanPrefetch:
        if device not in self._prefetches:
            rows, width = self._states.rows, self._states.width
            self._prefetches[device] = SpanPrefetch(self.reader(), rows, width, self.dtype, device)
        return self._prefetches[device]

    def reader(self) -> StatesReader:
        """Reader of its states' bytes, without mapping them."""
        files = []
        # Mapped, they have been checked.
        for file, mapped in zip(self._states.files, self._files, strict=False):
            path = self.path / file.name
            try:
                files.append(StatesFile(path, begin_of_states(path), len(mapped)))
            except OSError as error:
                raise ReferenceUnusable(f"{path}: {error.strerror}") from None
        return StatesReader(files, self._states.width * self.dtype.itemsize)

    @cached_property
    def _files(self) -> list[torch.Tensor]:
        """The states, file by file, of a reference that was fetched as far as they are there."""
        result = []
        for file in self._states.files:
            path = self.path / file.name
            if result and self.address is not None and not os.path.lexists(path):
                break
            states = read_states(path, self.most_of(file))
            wanted = (file.rows, self._states.width)
            name = str(states.dtype).removeprefix("torch.")
            if tuple(states.shape) != wanted or name != self._states.dtype:
                raise ReferenceUnusable(
                    f"{path}: holds {name} {list(states.shape)}, and the record says "
                    f"{self._states.dtype} {list(wanted)}"
                )
            result.append(states)
        return result

    def _check_names(self, kept: Kept) -> None:
        """Raises ReferenceUnusable for files of other names than a reference's have, wherever those
        would lead."""
        named = [("head", kept.head.file, HEAD)]
        named += [("tokens", kept.tokens.name if kept.tokens else None, TOKENS)]
        named += [("states", f.name, name_of(i)) for i, f in enumerate(kept.states.files)]
        for what, found, wanted in named:
            if found not in (None, wanted):
                raise ReferenceUnusable(
                    f"{self.path / RECORD}: was changed: its {what} are in {found!r}, and a "
                    f"reference's in {wanted!r}"
                )

    def files_of(self, rows: int) -> list[KeptStates]:
        """The files that have the states of the first `rows` targets, and the first one in any case,
        which is replayed."""
        files = self._states.files
        ends = accumulate(file.rows for file in files)
        return [f for f, end in zip(files, ends, strict=True) if end - f.rows < max(1, rows)]

    def bytes_of(self, file: KeptStates) -> int:
        """Bytes of a file's states."""
        return file.rows * self._states.width * self.dtype.itemsize

    def most_of(self, file: KeptStates) -> int:
        """The most bytes that a file of states has, by its rows."""
        return HEADER_BYTES + self.bytes_of(file)

    @property
    def head_bytes(self) -> int:
        """Bytes of its head's tensors."""
        itemsize = getattr(torch, self._head.dtype).itemsize
        has_bias = bool(self._head.sha256.bias)
        return self.vocabulary * (self._head.width + has_bias) * itemsize

    @property
    def place_of_head(self) -> HeadPlace | None:
        """The checkpoint in which its head was left, None where it is stored."""
        return None if self._head.file else self._head.checkpoint

    def _span(self, span: Span) -> list[torch.Tensor]:
        if span[1] > (have := sum(map(len, self._files))):
            missing = self._states.files[len(self._files)].name
            raise ReferenceUnusable(f"{self.path / missing}: is not there: {have:,} states are")
        rows = rows_of_files(span, map(len, self._files))
        return [self._files[number][low:high] for number, low, high in rows]

    @cached_property
    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The head's weight [V, D] and bias [V], as views of mapped files."""
        where = self.place_of_head
        try:
            if where is None or self.address is not None:
                return self._as_described(*self._from_file(self.path / HEAD))
            return self._as_described(*self._from_checkpoint(where))
        except CheckpointError as error:
            raise ReferenceUnusable(f"{self.path}: its head is not to be had: {error}") from None

    def _as_described(
        self, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        facts, weight = self._head, weight[: self.vocabulary]
        shape, wanted = list(weight.shape), [self.vocabulary, facts.width]
        name = str(weight.dtype).removeprefix("torch.")
        if shape != wanted or name != facts.dtype:
            raise ReferenceUnusable(
                f"{self.path}: its head is {name} {shape}, and the record says {facts.dtype} "
                f"{wanted}"
            )
        return weight, None if bias is None else bias[: self.vocabulary]

    def _from_file(self, path: Path) -> tuple[torch.Tensor, torch.Tensor | None]:
        import safetensors

        entries = self.vocabulary * (self._head.width + 1)
        try:
            check_regular(path, HEADER_BYTES + 8 * entries, links=False)
            with safetensors.safe_open(str(path), framework="pt", device="cpu") as file:
                names = set(file.keys())
                return (
                    file.get_tensor("weight"),
                    file.get_tensor("bias") if "bias" in names else None,
                )
        except (safetensors.SafetensorError, OSError) as error:
            raise ReferenceUnusable(f"{path}: {words_of(error, named=False)}") from None

    def _from_checkpoint(self, where: HeadPlace) -> tuple[torch.Tensor, torch.Tensor | None]:
        checkpoint = open_checkpoint(where.path)
        bias = where.bias
        return checkpoint.read(where.weight), None if bias is None else checkpoint.read(bias)


def _check_sha256(path: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise ReferenceUnusable(
            f"{path}: its sha256 is {found[:12]}…, and the record has {wanted[:12]}…"
        )


def kept_plan(
    tokens: NDArray[np.int32],
    protocol: Protocol,
    record: Done,
    columns: Callable[[], tuple[Scores, Mapping[str, np.ndarray]]],
) -> Plan:
    """The plan of `tokens` (int32 [N]) that a run's record describes, which nothing vouches for yet.

    - `columns`: gives what `read_columns` does, where it is asked.

    Raises CorpusError, ProtocolError for tokens that can't be cut as the protocol says.
    """
    bos = {"stream_bos": record.plan.stream_bos, "window_bos": record.plan.window_bos}
    corpus = record.corpus
    is_apart = bool(corpus.conversations) or corpus.joined == "apart"
    if is_apart or protocol.is_of_requests:
        plan = _of_scores(tokens, protocol, bos, *columns())
    else:
        plan = make_plan(tokens, protocol, **bos)
    if not corpus.group_by:
        return plan
    scores, extras = columns()
    return replace(plan, labels=_labels(len(tokens), scores, extras[LABEL]))


def _of_scores(
    tokens: NDArray[np.int32],
    protocol: Protocol,
    bos: Mapping[str, int | None],
    scores: Scores,
    extras: Mapping[str, np.ndarray],
) -> Plan:
    _, begin = np.unique(scores.window, return_index=True)
    end = np.append(begin[1:], len(scores)) - 1
    counted = turn_place = None
    if protocol.text == "conversations" or protocol.is_of_requests:
        counted = np.zeros(len(tokens), bool)
        counted[scores.index] = True
    if "turn_place" in extras:
        turn_place = np.zeros(len(tokens), np.int32)
        turn_place[scores.index] = extras["turn_place"]
    weight, conversation = extras.get("weight"), extras.get(CONVERSATION)
    return Plan(
        protocol,
        tokens,
        scores.index[begin].astype(np.int64) - scores.position[begin],
        scores.index[end].astype(np.int64) + 1,
        scores.position[begin].astype(np.int64),
        bos["window_bos"],
        bos["stream_bos"],
        None if weight is None else weight[begin],
        counted=counted,
        conversation=None if conversation is None else conversation[begin].astype(np.int32),
        turn_place=turn_place,
    )


def _labels(size: int, scores: Scores, labels: NDArray[np.object_]) -> Labels:
    """The groups of all tokens; those of which none is a target have the first one's."""
    texts = labels.tolist()
    names = sorted(set(texts))
    place = {name: i for i, name in enumerate(names)}
    of = np.full(size, place[texts[0]], np.int32)
    of[scores.index] = [place[text] for text in texts]
    return Labels(tuple(names), of)


class OrderedReference:
    """The rows of `stored`, whose windows were not drawn, by those of `plan`, whose windows are: row r
    of the plan is row `rows[r]` of the reference.

    A window's rows follow each other in both.
    """

    extra_sums = None

    def __init__(self, stored: StoredReference, plan: Plan):
        self.stored, self.vocabulary = stored, stored.vocabulary
        kept = plan.undrawn
        begins = np.empty(len(plan), np.int64)
        begins[kept] = np.cumsum(plan.counts[kept]) - plan.counts[kept]
        self._begins, self._offsets = begins, plan.offsets

    def rows(self, begin: int, end: int) -> NDArray[np.int64]:
        """int64 [end - begin]: the reference's rows of the plan's `begin … end`."""
        rows = np.arange(begin, end)
        window = np.searchsorted(self._offsets, rows, side="right") - 1
        return self._begins[window] + rows - self._offsets[window]

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        """Has a GPU fetch the head; states are fetched when they are asked for."""
        self.stored.expect([(0, 0)], device)

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Gives the logits of the plan's rows `spans`, one behind the other."""
        kept: list[Span] = []
        for begin, end in spans:
            first = int(np.searchsorted(self._offsets, begin, side="right")) - 1
            while begin < end:
                stop = min(end, int(self._offsets[first + 1]))
                row = int(self._begins[first]) + begin - int(self._offsets[first])
                kept.append((row, row + stop - begin))
                begin, first = stop, first + 1
        return self.stored.logits(kept, device, tile)

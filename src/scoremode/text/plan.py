"""Plans: every window of one (token ids, protocol), counted before anything runs.

One alignment rule holds for all of scoremode: the target at position `t` of a window is predicted
from the inputs at positions `0 … t-1`. A window of n tokens therefore feeds its first n-1 tokens and
has n-1 targets; its first token is never one. A plan stores windows as spans of one token array, so
that overlapping windows cost nothing, and hands them out one at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import CorpusError, ProtocolError
from scoremode.lib.json import json_digest
from scoremode.text.protocol import Protocol
from scoremode.text.stopping import drawn_order, looks_of

__all__ = [
    "Labels",
    "Plan",
    "Window",
    "arrangement",
    "drawn_arrangement",
    "make_plan",
    "shared_inputs",
]

# Tokens of a group, padded: the largest micro-batch of a GPU, and several of a CPU.
GROUP_TOKENS = 16_384

IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Labels:
    """Each token's group, by its row of a data set or by its file.

    - `names`: all labels, sorted; `of` int32 [N]: each token's place in `names`.
    """

    names: tuple[str, ...]
    of: NDArray[np.int32]

    @classmethod
    def of_places(cls, labels: Sequence[str], places: NDArray[np.integer]) -> "Labels":
        """The labels of tokens, given for each its place in `labels`, [N]."""
        names = tuple(sorted({str(labels[i]) for i in np.unique(places)}))
        of = {name: i for i, name in enumerate(names)}
        return cls(names, np.array([of.get(label, -1) for label in labels], np.int32)[places])

    def at(self, index: NDArray[np.integer]) -> NDArray[np.object_]:
        """The labels of tokens by their places in the stream, as texts [len(index)]."""
        return np.array(self.names, object)[self.of[index]]

    def counts(self, index: NDArray[np.integer]) -> dict[str, int]:
        """The number of these tokens under each label that any of them has."""
        counts = np.bincount(self.of[index], minlength=len(self.names)).tolist()
        return {name: n for name, n in zip(self.names, counts, strict=True) if n}

    def sha256(self, index: NDArray[np.integer]) -> str:
        """The sha256 of which of these tokens has which label."""
        names, codes = np.unique(self.of[index], return_inverse=True)
        digest = sha256(codes.astype("<i4").tobytes()).hexdigest()
        return json_digest([[self.names[i] for i in names], digest])


@dataclass(frozen=True)
class Window:
    """A window of n tokens.

    - `inputs` int32 [n-1]: what the model reads.
    - `targets` int32 [n-1]: `targets[i]` is what follows `inputs[: i + 1]`.
    - `first`: the first scored position, and `scored` int64 [some]: all of them, `first … n-1` where
      every target from there on counts. The target at position `t` is `targets[t - 1]`.
    """

    inputs: NDArray[np.int32]
    targets: NDArray[np.int32]
    first: int
    scored: IntArray


@dataclass(frozen=True, eq=False)
class Plan:
    """All windows of one token stream under one protocol.

    - `tokens` int32 [N]: the stream, a BOS in front included.
    - `start`, `stop`, `first` int64 [W]: window `w` is `tokens[start[w]:stop[w]]`, scored from its
      position `first[w]` on.
    - `counted` bool [N]: the tokens that count where they are targets; None for all. Of a conversation
      the assistant's alone may. `conversation` int32 [W]: the row of its data set that each window is
      of, of a request the document, of a page its number; None of a text.
    - `labels`: the group of each token, None without groups. `turn_place` int32 [N]: the place in its
      assistant's turn of each token that counts, None of a text.
    - `window_bos`: token id written over the first token of every window, or None.
    - `drawn_weights` float64 [W]: `weights` of a sample, which its windows alone don't tell, or None.
    - `planned`: the plan whose first windows it has, of a run that a rule may have stopped; else None.
    """

    protocol: Protocol
    tokens: NDArray[np.int32]
    start: IntArray
    stop: IntArray
    first: IntArray
    window_bos: int | None = None
    stream_bos: int | None = None
    drawn_weights: NDArray[np.float64] | None = None
    planned: "Plan | None" = None
    counted: NDArray[np.bool_] | None = None
    conversation: NDArray[np.int32] | None = None
    labels: Labels | None = None
    turn_place: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, w: int) -> Window:
        ids = self.tokens[self.start[w] : self.stop[w]]
        if self.window_bos is not None:
            ids = ids.copy()
            ids[0] = self.window_bos
        scored = self.positions(w)
        return Window(ids[:-1], ids[1:], int(scored[0]), scored)

    def __iter__(self) -> Iterator[Window]:
        return (self[w] for w in range(len(self)))

    @cached_property
    def lengths(self) -> IntArray:
        """int64 [W]: tokens of each window."""
        return self.stop - self.start

    @cached_property
    def shared(self) -> IntArray:
        """int64 [W]: first inputs of each window that are those of the one before it as well."""
        return shared_inputs([window.inputs for window in self])

    @cached_property
    def counts(self) -> IntArray:
        """int64 [W]: scored targets of each window."""
        if self.counted is None:
            return self.lengths - self.first
        before = np.concatenate([[0], self.counted.cumsum()])
        return before[self.stop] - before[self.start + self.first]

    def positions(self, w: int) -> IntArray:
        """int64 [n]: the scored positions of window `w`, in order."""
        first, length = int(self.first[w]), int(self.lengths[w])
        if self.counted is None:
            return np.arange(first, length)
        return first + np.flatnonzero(self.counted[self.start[w] + first : self.stop[w]])

    @cached_property
    def offsets(self) -> IntArray:
        """int64 [W + 1]: scored targets before each window, and in all."""
        return np.concatenate([[0], self.counts.cumsum()])

    @property
    def scored(self) -> int:
        """The number of scored targets, one in an overlap counted as often as it is scored."""
        return int(self.counts.sum())

    @cached_property
    def unique(self) -> int:
        """The number of different places of the token stream that are scored."""
        edges = np.zeros(len(self.tokens) + 1, np.int64)
        np.add.at(edges, self.start + self.first, 1)
        np.add.at(edges, self.stop, -1)
        held = edges.cumsum()[:-1] > 0
        return int((held if self.counted is None else held & self.counted).sum())

    def weights(self) -> NDArray[np.float64] | None:
        """float64 [W]: what one scored target of each window weighs in the average.

        None stands for all ones. The transformers guide weighs a window's mean loss by its new
        tokens less one. That is the number of losses only where the window's first token is among
        the new ones (nothing predicts it); every other window has one loss more.
        """
        if self.protocol.average == "token":
            return None
        if self.drawn_weights is not None:
            return self.drawn_weights
        new_tokens = np.diff(self.stop, prepend=0)
        return (new_tokens - 1) / self.counts

    def sample(self, n: int, seed: int) -> "Plan":
        """`n` of its windows, drawn without replacement and kept in order; itself if it has no more.

        Each window keeps its place in the token stream, its scored targets and their weight. The
        same `seed` (at least 0) draws the same windows. Raises ProtocolError for `n` below 1.
        """
        if n < 1:
            raise ProtocolError(f"a sample of {n} windows: must be at least 1")
        if n >= len(self):
            return self
        return self.windows_at(
            np.sort(np.random.default_rng(seed).choice(len(self), n, replace=False))
        )

    def drawn(self, protocol: Protocol) -> "Plan":
        """All its windows in the order that the seed of `protocol` draws them, under that protocol."""
        assert protocol.seed is not None and self.protocol.sha256 == protocol.whole().sha256
        if self.conversation is None:
            order = np.array(drawn_order(len(self), protocol.seed), np.int64)
        else:
            order = drawn_arrangement(self.conversation, self.lengths, self.start, protocol.seed)
        return replace(self.windows_at(order), protocol=protocol)

    def arranged(self) -> "Plan":
        """This plan of conversations with its windows in the order in which they are scored, each
        ending with its last scored target: no score is of what follows, so the scored targets tell all
        of a plan."""
        edges = np.array([self.positions(w)[[0, -1]] for w in range(len(self))], np.int64)
        plan = replace(self, first=edges[:, 0], stop=self.start + edges[:, 1] + 1)
        if self.protocol.seed is None:
            return plan.windows_at(plan.undrawn)
        return replace(plan, protocol=self.protocol.whole()).drawn(self.protocol)

    def in_text_order(self) -> "Plan":
        """The plan that its windows were `drawn` of; itself where none were."""
        if self.protocol.seed is None:
            return self
        return replace(self.windows_at(np.argsort(self.start)), protocol=self.protocol.whole())

    @cached_property
    def undrawn(self) -> IntArray:
        """int64 [W]: its windows in the order in which they are scored where none are drawn."""
        order = np.argsort(self.start)
        if self.conversation is None or self.protocol.is_of_requests:
            return order
        return order[arrangement(self.lengths[order])]

    def first_windows(self, n: int) -> "Plan":
        """The plan of its first `n` windows alone, which knows that there were more."""
        return replace(self.windows_at(np.arange(n)), planned=self.planned or self)

    def limited_to(self, n: int | None) -> "Plan":
        """The plan of its first `n` windows, of all for None."""
        return self if n is None or n >= len(self) else self.windows_at(np.arange(n))

    def begun(self, protocol: Protocol) -> "Plan":
        """The plan of its first windows, for a protocol that differs by a smaller limit of windows
        alone, and whose text is one; else itself."""
        limit, own = protocol.max_windows, self.protocol
        if limit in (None, own.max_windows) or self.conversation is not None:
            return self
        assert limit is not None
        if limit > (own.max_windows or len(self)):
            return self
        if replace(protocol, name=own.name, max_windows=own.max_windows) != own:
            return self
        return replace(self.limited_to(limit), protocol=protocol)

    @cached_property
    def looks(self) -> Sequence[int]:
        """The numbers of windows after which a rule to stop by is looked at, the last being all; only
        the last without such a rule. Conversations are looked at when all their windows are there."""
        if self.protocol.stop_when is None:
            return [len(self)]
        if self.conversation is None:
            return looks_of(len(self))
        _, begin = np.unique(self.conversation, return_index=True)
        ends = np.append(np.sort(begin), len(self))
        return [int(ends[look]) for look in looks_of(len(begin))]

    @property
    def draws(self) -> int:
        """The number of units that a seed draws: conversations, or windows of a text."""
        return len(self) if self.conversation is None else len(np.unique(self.conversation))

    def windows_at(self, windows: NDArray[np.int64]) -> "Plan":
        """The plan of these windows, in their order."""
        weights = self.weights()
        return replace(
            self,
            start=self.start[windows],
            stop=self.stop[windows],
            first=self.first[windows],
            drawn_weights=None if weights is None else weights[windows],
            conversation=None if self.conversation is None else self.conversation[windows],
        )

    @cached_property
    def tokens_sha256(self) -> str:
        """The sha256 of the token stream as little-endian int32."""
        return sha256(self.tokens.astype("<i4").tobytes()).hexdigest()

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the protocol, the tokens and every window."""
        digest = sha256(f"{self.protocol.sha256} {self.tokens_sha256} {self.window_bos}".encode())
        columns = self.start, self.stop, self.first
        if self.counted is not None:
            # Ends alone don't tell which targets between them count.
            columns = self.targets()
        for column in columns:
            digest.update(column.astype("<i8").tobytes())
        return digest.hexdigest()

    def targets(self) -> tuple[IntArray, IntArray, IntArray]:
        """int64 [scored] each, of all scored targets: window, position, and place in the stream."""
        window = np.repeat(np.arange(len(self)), self.counts)
        position = np.concatenate([self.positions(w) for w in range(len(self))])
        return window, position, self.start[window] + position

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": len(self.tokens),
            "windows": len(self),
            "scored": self.scored,
            "unique": self.unique,
            "stream_bos": self.stream_bos,
            "window_bos": self.window_bos,
            "tokens_sha256": self.tokens_sha256,
            "sha256": self.sha256,
            **({} if self.conversation is None else {"conversations": self.draws}),
            **({} if self.planned is None else {"planned": self.planned.counts_json()}),
            **({} if self.labels is None else {"labels": self.labels.counts(self.targets()[2])}),
        }

    def counts_json(self) -> dict[str, Any]:
        """Returns what a record says of a plan that only some windows were scored of."""
        return {
            "windows": len(self),
            "scored": self.scored,
            "unique": self.unique,
            "sha256": self.sha256,
            **({} if self.conversation is None else {"conversations": self.draws}),
        }


def arrangement(lengths: IntArray) -> IntArray:
    """int64 [W]: the order in which windows of these lengths in tokens (int64 [W]) are scored.

    Windows that share a micro-batch are padded to the longest, so neighbors should be about as long.
    But in the order of their lengths the first half of a run would be short conversations alone, and
    its running estimate one of these. So windows are sorted, cut into groups that fill a micro-batch,
    and the groups shuffled: by the lengths alone, so that every machine has the same order.
    """
    order = np.argsort(lengths, kind="stable")
    groups, begin = [], 0
    for i, length in enumerate(lengths[order].tolist()):
        if i > begin and (i - begin + 1) * length > GROUP_TOKENS:
            groups.append(order[begin:i])
            begin = i
    groups.append(order[begin:])
    return np.concatenate([groups[g] for g in drawn_order(len(groups), 0)])


def drawn_arrangement(
    conversation: NDArray[np.integer], lengths: IntArray, start: IntArray, seed: int
) -> IntArray:
    """int64 [W]: windows of conversations, which `seed` draws whole, in the order in which they are
    scored.

    Between two looks of a rule to stop by, conversations come by the length of their longest window.

    `conversation`: int [W], the one that each window is of. `lengths`, `start`: int64 [W].
    """
    names, of = np.unique(conversation, return_inverse=True)
    longest = np.zeros(len(names), np.int64)
    np.maximum.at(longest, of, lengths)
    drawn = np.array(drawn_order(len(names), seed), np.int64)
    place = np.empty(len(names), np.int64)
    begin = 0
    for look in looks_of(len(names)):
        some = drawn[begin:look]
        place[some[np.argsort(longest[some], kind="stable")]] = np.arange(begin, look)
        begin = look
    return np.lexsort((start, lengths, place[of]))


def shared_inputs(windows: Sequence[NDArray[np.int32]]) -> IntArray:
    """int64 [W]: how many first inputs each window, of ids [n], has in common with the one before."""
    shared = np.zeros(len(windows), np.int64)
    for w in range(1, len(windows)):
        one, other = windows[w - 1], windows[w]
        n = min(len(one), len(other))
        differs = one[:n] != other[:n]
        shared[w] = differs.argmax() if differs.any() else n
    return shared


def make_plan(
    tokens: NDArray[np.int32],
    protocol: Protocol,
    *,
    stream_bos: int | None = None,
    window_bos: int | None = None,
) -> Plan:
    """Cuts `tokens` (int32 [N]) into the windows of `protocol`, whose lengths must be resolved.

    Raises CorpusError for a text too short to score, ProtocolError for one too short for this
    protocol.
    """
    length, stride, n = protocol.context_length, protocol.stride, len(tokens)
    assert length is not None and stride is not None, "resolve the protocol first"
    if n < 2:
        raise CorpusError(f"the text has {n} token{'s' * (n != 1)}: scoring needs at least 2")
    # Where an exactly fitting last window is dropped, so is the only one.
    needed = protocol.min_contexts * length + (protocol.tail == "drop-exact")
    if n < needed and protocol.short_text == "error":
        raise ProtocolError(
            f"the text has {n} tokens: protocol {protocol.name} needs at least {needed}"
        )
    start = _starts(n, length, stride, protocol)
    if protocol.max_windows is not None:
        if protocol.all_windows_required and len(start) < protocol.max_windows:
            raise ProtocolError(
                f"the text of {n} tokens has {len(start)} windows: "
                f"protocol {protocol.name} needs {protocol.max_windows}"
            )
        start = start[: protocol.max_windows]
    stop = np.minimum(start + length, n)
    first = _first_scored(start, stop, length, protocol)
    kept = stop - start > first
    if not kept.any():
        raise ProtocolError(
            f"protocol {protocol.name} scores no target in windows of {length} tokens"
        )
    plan = Plan(
        protocol.whole(),
        np.ascontiguousarray(tokens, dtype=np.int32),
        start[kept],
        stop[kept],
        first[kept],
        window_bos,
        stream_bos,
    )
    return plan if protocol.seed is None else plan.drawn(protocol)


def _starts(n: int, length: int, stride: int, protocol: Protocol) -> IntArray:
    if n <= length and protocol.short_text == "one-window":
        return np.zeros(1, np.int64)
    if protocol.tail == "drop-exact":
        return np.arange(0, n - length, stride)
    if protocol.tail == "drop":
        return np.arange(0, n - length + 1, stride)
    # The first window that reaches the end is the last: a later one would hold nothing new.
    start = stride * np.arange(1 + -(-max(n - length, 0) // stride))
    return start[start < n]


def _first_scored(start: IntArray, stop: IntArray, length: int, protocol: Protocol) -> IntArray:
    if protocol.scored == "second-half":
        return np.full(len(start), length // 2 + 1)
    if protocol.scored == "new":
        held_before = np.concatenate([[0], stop[:-1]])
        return np.maximum(held_before - start, 1)
    return np.ones(len(start), np.int64)

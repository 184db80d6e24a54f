"""The torch engine: layers outside, windows inside.

All weights stay as they are stored. For a pass of many windows, each layer in turn is decoded into
one dense Slot and every micro-batch of the pass goes through it; only then comes the next layer. A
layer is decoded once a pass instead of once a window, so any format runs at the dense matmul's
speed, and memory holds one dense layer and the pass's hidden states, whatever the model's size and
the text's length.

A base model in the same process runs beside it: its states are computed when they are compared with
(`ModelReference`).
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import BaseEngine, Extras, OutOfMemory, Progress, Schedule, Work
from scoremode.engines.torch.builder import Parts, build_parts
from scoremode.engines.torch.device import join_segments, make_current
from scoremode.engines.torch.kv_cache.layer_caches import check_used
from scoremode.engines.torch.memory.budget import Memory, is_long, out_of_memory
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.layer_recorder import NotSeparable
from scoremode.engines.torch.model.prefix_tree import Ids
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.execution import Way, run_whole
from scoremode.engines.torch.passes.microbatch import (
    PendingScores,
    fetched,
    inputs_of,
    may_pad,
    score_states,
)
from scoremode.engines.torch.passes.prefix_schedule import RowMemory, Rows
from scoremode.engines.torch.passes.proofs import FirstPass
from scoremode.head.project import HeadLogits, held_logits
from scoremode.lib import fallback
from scoremode.reference.base import Span
from scoremode.reference.writer import HeadTensors
from scoremode.results.scores import Scores, expected
from scoremode.text.plan import Plan

# The plan's columns and the head's results of each micro-batch.
_Found = tuple[list[dict[str, np.ndarray]], list[list[Any]]]


class TorchEngine:
    """A checkpoint's model, ready to score plans over one vocabulary; `build_engine` makes it.

    - `parts`: what it is made of, for those in this room.
    - `way`: through its layers, as far as is known: the first pass may show that it needs another.
    - `is_proven`: whether a first pass has shown that the model sees no targets and has this head.
    """

    def __init__(self, parts: Parts):
        self.parts = parts
        self.device, self.dtype, self.head = parts.device, parts.dtype, parts.head
        self.way: Way = parts.way
        self.is_proven = False
        self._tokens = 0
        skeleton, arithmetic = parts.skeleton, parts.arithmetic
        self._row_memory = RowMemory.of(
            parts.memory, skeleton.config, parts.dtype, skeleton.attention
        )
        self._rows = Rows(
            skeleton,
            parts.layers,
            arithmetic.windows,
            lambda: self.way,
            self._row_memory,
            exact=parts.is_exact,
            batch_windows=parts.options.batch_windows,
        )
        # The schedule of long windows, and the longest of them.
        self._long: tuple[Schedule, int] | None = None

    @property
    def vocabulary(self) -> int:
        return self.head.vocabulary

    @property
    def quantizes_head_input(self) -> bool:
        """True where the head is given other than the final states."""
        return self.parts.head_input is not None

    @property
    def states_dtype(self) -> torch.dtype:
        """Dtype of `final_states`; a head's quantized inputs are multiplied out in float32."""
        return torch.float32 if self.quantizes_head_input else self.dtype

    def schedule(self, plan: Plan) -> Schedule:
        parts = self.parts
        if plan.conversation is None:
            return parts.memory.schedule(int(plan.lengths.max()), parts.options.batch_windows)
        apart = self._apart(plan)
        if not plan.protocol.is_of_requests:
            return apart
        make_current(self.device.torch)
        try:
            with torch.no_grad(), attention_backends(self.device.torch):
                return self._rows.schedule(plan, apart)
        except torch.cuda.OutOfMemoryError as error:
            raise out_of_memory(error) from None

    def held_bytes(self, plan: Plan) -> int:
        """Bytes for what it keeps on a GPU, the hidden states of a pass, and both models' logits that
        `score_pairs` holds, 0 on a CPU: what a micro-batch takes beyond that is the other model's in
        turn. Raises EngineError."""
        if not self.device.is_cuda:
            return 0
        schedule = self.schedule(plan)
        tokens = schedule.pass_tokens or schedule.pass_windows * int(plan.lengths.max())
        memory = self._memory_of(schedule, int(plan.lengths.max()))
        held = held_logits(self.vocabulary, self.device.torch)
        return memory.fixed + tokens * memory.pass_token + held

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        """The Scores of each pass, of which a GPU begins the next before the last one's are fetched,
        checked and written. Raises OutOfMemory, after the Scores of all passes before."""
        passes = Work.passes(plan, schedule, first_pass, progress, extras)
        begun = (self.launch(work).scores for work in passes)
        return fetched(begun, ahead=self.device.is_cuda)

    def launch(self, work: Work) -> PendingScores:
        """Begins to score the work's windows; on a GPU it is queued, and not waited for. The scores are
        the same whatever other windows of the pass are with them.

        A pass that was made for more devices is cut to what this one has the memory for. Raises
        OutOfMemory.
        """
        columns, results = [], []
        for part in self._affordable(work):
            found = self._launch_or_fail(part)
            if isinstance(found, OutOfMemory):
                raise found
            columns += found[0]
            results += found[1]
        return PendingScores(columns, results, self.device.torch)

    def final_states(self, work: Work) -> list[torch.Tensor]:
        make_current(self.device.torch)
        with torch.no_grad(), attention_backends(self.device.torch):
            if self._takes(work):
                return self._final_states(work)
            return [self._states_apart(work.part(batch)) for batch in work.batches]

    def head_work(self, work: Work) -> float:
        return work.tokens * self._head_share

    @cached_property
    def _head_share(self) -> float:
        """The head's part of the work, by the sizes of weights: a third, where a small model has a big
        vocabulary. An entry's exponentials take as long as a hundred of its weights."""
        layers = sum(p.numel() for layer in self.parts.skeleton.layers for p in layer.parameters())
        head = self.vocabulary * (self.head.weight.shape[1] + 100)
        return head / (head + layers)

    def head_tensors(self) -> HeadTensors:
        return self.parts.head_tensors()

    def identity(self) -> dict[str, Any]:
        return self.parts.identity()

    def describe(self) -> dict[str, Any]:
        parts, long = self.parts, {}
        if self._long is not None:
            schedule, longest = self._long
            # The memory that was expected for long windows, and what ran in chunks.
            estimate = parts.memory.estimate(longest, schedule)
            long = {"estimated_bytes": estimate, "chunks": parts.chunks.describe()}
        return {
            **self.identity(),
            **({"kv_cache": parts.formats.describe()} if parts.formats is not None else {}),
            "placement": parts.feeds.placement,
            "kernels": fallback.ran(),
            "fused": parts.fused.describe(),
            "layers": self.way.described,
            **self._rows.describe(),
            "experts": parts.experts.describe(),
            "head": self.head.to_json(),
            "unused_tensors": parts.unused_tensors(),
            "tokens": self._tokens,
            "seconds": parts.clock.seconds(),
            "peak_bytes": self.device.peak_bytes(),
            **long,
        }

    def close(self) -> None:
        self.parts.feeds.close()

    def _affordable(self, work: Work) -> list[Work]:
        """Whole micro-batches of a pass that this device has the memory for together."""
        if work.put is not None:
            return [work]
        given, longest = work.schedule, work.longest
        if given.batch_tokens is None:
            batch = given.batch_windows
            most = self.parts.memory.most_windows(longest, batch, given.chunk_tokens)
            return work.cut(most)
        length = max(longest, given.row_tokens or 0)
        batch = -(-given.batch_tokens // length)
        most = self._memory_of(given, longest).most_windows(length, batch, given.chunk_tokens)
        return work.cut_at(length * most)

    def _apart(self, plan: Plan) -> Schedule:
        """The schedule of windows of many lengths, each in a row of its own."""
        parts = self.parts
        pads = may_pad(parts.skeleton.config, parts.arithmetic.windows)
        return parts.memory.schedule_of_many(plan.lengths, parts.options.batch_windows, pads=pads)

    def _memory_of(self, schedule: Schedule, longest: int) -> Memory:
        """The memory as windows of up to `longest` tokens take it by a schedule."""
        if schedule.row_tokens is None:
            return self.parts.memory
        return self._row_memory.of_rows(max(schedule.row_tokens, longest))

    def _takes(self, work: Work) -> bool:
        """Tells whether the work's micro-batches may go through this model as they are: those of
        another's schedule may hold rows of trees, or windows that are filled up."""
        holds = work.plan.protocol.is_of_requests and self._rows.holds(work)
        if work.schedule.row_tokens is not None:
            return holds
        if may_pad(self.parts.skeleton.config, self.parts.arithmetic.windows):
            return True
        lengths = work.plan.lengths
        return all((lengths[b.start : b.stop] == lengths[b.start]).all() for b in work.batches)

    def _states_apart(self, work: Work) -> torch.Tensor:
        """[N, D]: the final states of a micro-batch that another model takes in rows of trees, or fills
        up, as this one's windows go, each in a row of its own."""
        own = self._affordable(replace(work, schedule=self._apart(work.plan), put=None))
        return torch.cat([states for part in own for states in self._final_states(part)])

    def _use_chunks(self, work: Work) -> None:
        """Has long windows run as their schedule says."""
        chunks, given = self.parts.chunks, work.schedule
        if given.chunk_tokens is not None and chunks.tokens is None:
            join_segments(self.device.torch)
        chunks.use(given.chunk_tokens)
        if is_long(work.longest):
            longest = max(work.longest, self._long[1] if self._long else 0)
            self._long = given, longest

    def _launch_or_fail(self, work: Work) -> "_Found | OutOfMemory":
        """`_launch`, or its error, without the frames that hold what the pass has allocated."""
        try:
            return self._launch(work)
        except torch.cuda.OutOfMemoryError as error:
            return out_of_memory(error)

    def _launch(self, work: Work) -> "_Found":
        """The plan's columns and the head's results of each micro-batch.

        Rows go through the head with those of their micro-batch and no others: a matmul may round a
        row otherwise when there are other rows with it, as cuBLAS does, and a CPU's of few rows or
        by AMX.
        """
        columns = [expected(work.plan, batch) for batch in work.batches]
        targets = [self.sent(c["target"]) for c in columns]
        spans = work.spans
        if work.extras.reference is not None:
            with self.parts.clock.stage("reference"), torch.no_grad():
                work.extras.reference.expect(spans, self.device.torch)
        states = self.final_states(work)
        with torch.no_grad():
            if work.put is not None:
                work.put(states)
            results = []
            for batch, span, target in zip(work.batches, spans, targets, strict=True):
                # Let go of one micro-batch's states before the next one's logits are made.
                results.append(self._score_states(work, span, states.pop(0), target))
                work.progress(self.head_work(work.part(batch)))
        return columns, results

    def _score_states(
        self, work: Work, rows: Span, states: torch.Tensor, target: torch.Tensor
    ) -> list[Any]:
        return score_states(self.head, work, rows, states, target, self.parts.clock)

    def _final_states(self, work: Work) -> list[torch.Tensor]:
        batches, parts = work.batches, self.parts
        self._use_chunks(work)
        if parts.formats is not None:

            def run(windows: list[np.ndarray]) -> None:
                """Each window of ids [T] by itself; nothing is scored, so nothing has to be proven."""
                self._run_layers([self.sent(ids[None]) for ids in windows], [], work)

            parts.formats.calibrate(work.plan, run)
        row = work.schedule.row_tokens
        # Before the layers are queued, behind which a copy would wait.
        inputs = [inputs_of(work.plan, batch, row, self.sent) for batch in batches]
        first = None
        if not self.is_proven:
            first = FirstPass(work, inputs, self.head.vocabulary, exact=self._rows.exact)
        ids = [each.ids for each in inputs]
        out = self._run_layers([] if first is None else first.probes, ids, work)
        if first is not None:
            first.prove(parts.skeleton, self.way, self.head, out)
            check_used(parts.caches, parts.model_name)
            self.is_proven = True
        self._tokens += work.tokens
        with parts.clock.stage("head"):
            rows = []
            for each in inputs:
                final = self.way.finish(each.ids, out.pop(0))
                if parts.head_input is not None:
                    final = parts.head_input(final)
                rows.append(each.chosen(final))
            # The plan's labels are put beside them, and more states than targets would all be misread.
            given, wanted = list(map(len, rows)), [end - begin for begin, end in work.spans]
            assert given == wanted, f"{given} states for {wanted} targets"
            return rows

    def _run_layers(self, probes: list[torch.Tensor], ids: Sequence[Ids], work: Work) -> list[Any]:
        """The final states, as the way has them, of each batch of ids [B, T], those of `probes`
        first."""
        parts = self.parts
        # Work is reported in window tokens: each layer and the head move the bar by their share.
        shares, of_layer = [0.0] * len(probes), (1 - self._head_share) / len(parts.layers)
        shares += [work.part(batch).tokens * of_layer for batch in work.batches]

        def moved(batch: int) -> None:
            work.progress(shares[batch])

        try:
            return self.way.run([*probes, *ids], len(probes), moved)
        except NotSeparable as reason:
            # Seen only when the layer that does it ran, so in the first pass, where all of them do.
            windows = parts.arithmetic.windows
            self.way = run_whole(parts.skeleton, parts.layers, windows, reason)
        return self.way.run([*probes, *ids], len(probes), lambda _: None)

    def sent(self, ids: np.ndarray) -> torch.Tensor:
        """int64 on the device, or on its way there: a GPU's queue is not waited for."""
        tensor = torch.from_numpy(ids.astype(np.int64))
        if self.device.torch.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device.torch, non_blocking=True)


def build_engine(
    checkpoint: Checkpoint,
    options: TorchOptions,
    vocabulary: int | None = None,
    longest: int | None = None,
) -> TorchEngine:
    """An engine for plans over one vocabulary.

    - `vocabulary`: the softmax runs over the head's first so many entries, all if None or if it has
      fewer.
    - `longest`: tokens of the longest window that it will be given, which weights make room for.

    Raises CheckpointError, UnsupportedModel, EngineError.
    """
    begin = time.perf_counter()
    try:
        parts = build_parts(checkpoint, options, vocabulary, longest)
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(error) from None
    parts.clock.add("load", time.perf_counter() - begin)
    return TorchEngine(parts)


class ModelReference:
    """The model of `engine`, run over the same passes of `plan` as the model that is compared.

    - `kept`: gets the final states [N, D] of each micro-batch, by their rows.
    """

    extra_sums = None

    def __init__(
        self,
        engine: BaseEngine,
        plan: Plan,
        schedule: Schedule,
        progress: Progress | None = None,
        kept: dict[Span, torch.Tensor] | None = None,
    ):
        self._engine, self._offsets = engine, plan.offsets
        self._passes = Work.passes(plan, schedule, progress=progress)
        self._begins = [work.windows.start for work in self._passes]
        # Of the spans that are expected and have yet to be asked for.
        self._states: dict[Span, torch.Tensor] = {}
        self._kept = kept

    @property
    def vocabulary(self) -> int:
        return self._engine.vocabulary

    def expect(self, spans: Sequence[Span], device: torch.device) -> None:
        first, last = np.searchsorted(self._offsets, [spans[0][0], spans[-1][1]]).tolist()
        work = self._passes[bisect_right(self._begins, first) - 1].part(range(first, last))
        rows = work.spans
        assert rows == list(spans), f"{spans} are not the rows of micro-batches, which are {rows}"
        self._states = dict(zip(rows, self._engine.final_states(work), strict=True))
        if self._kept is not None:
            self._kept.update(self._states)
        work.progress(self._engine.head_work(work))

    def logits(
        self, spans: Sequence[Span], device: torch.device, tile: tuple[int, int]
    ) -> HeadLogits:
        """Logits of one span that was expected, whose states are let go with it."""
        (span,) = spans
        return HeadLogits(self._engine.head, self._states.pop(span).to(device), tile)

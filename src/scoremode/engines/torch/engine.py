"""The torch engine: layers outside, windows inside.

All weights stay as they are stored. For a pass of many windows, each layer in turn is decoded into
one dense Slot and every micro-batch of the pass goes through it; only then comes the next layer. A
layer is decoded once a pass instead of once a window, so any format runs at the dense matmul's
speed, and memory holds one dense layer and the pass's hidden states, whatever the model's size and
the text's length.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scoremode import fallback
from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Extras, OutOfMemory, Progress, Schedule
from scoremode.engines.torch.clock import Clock
from scoremode.engines.torch.device import Device, choose_device, choose_dtype
from scoremode.engines.torch.fused.modules import fuse
from scoremode.engines.torch.matmul.arithmetic import Arithmetic
from scoremode.engines.torch.memory.budget import out_of_memory
from scoremode.engines.torch.memory.placement import place
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.build import build_skeleton
from scoremode.engines.torch.model.library_errors import check_layers, telling
from scoremode.engines.torch.model.stand_ins import NotSeparable
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.layers import Layers
from scoremode.engines.torch.passes.proofs import probe_ids, prove
from scoremode.engines.torch.passes.ways import choose_way, run_whole
from scoremode.engines.torch.pending import Launched, to_host
from scoremode.engines.torch.weights.embedding import embed_from
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.head import build_head, head_names
from scoremode.engines.torch.weights.kv_cache import LayerCache, build_caches, check_used
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.engines.torch.weights.sources import Filling
from scoremode.head.full import full_pairs
from scoremode.head.project import HeadLogits, Logits, score_pairs, score_rows, tile_of
from scoremode.reference.keeper import HeadTensors
from scoremode.results.scores import Scores, expected
from scoremode.schemes.dense import Dense
from scoremode.schemes.resolve import resolve
from scoremode.text.plan import Plan

__all__ = ["TorchEngine", "TorchOptions"]

# Share of the memory for the decoded experts of one layer.
_EXPERTS_SHARE = 1 / 4
# The place in the Slot of what is in no layer and stays.
_OUTSIDE = -1

# The plan's columns and the head's results of each micro-batch.
_Found = tuple[list[dict[str, np.ndarray]], list[list[Any]]]


class TorchEngine:
    """A checkpoint's model, ready to score plans over one vocabulary.

    `vocabulary`: the softmax runs over the head's first so many entries, all if None or if it has
    fewer. Raises CheckpointError, UnsupportedModel, EngineError.
    """

    def __init__(
        self, checkpoint: Checkpoint, options: TorchOptions, vocabulary: int | None = None
    ):
        begin = time.perf_counter()
        self._checkpoint, self._options = checkpoint, options
        self.device = choose_device(options.device, options.max_memory, options.memory_share)
        self.dtype = choose_dtype(options.dtype, checkpoint, self.device)
        self._clock = Clock(self.device.torch)
        if self.device.is_cuda:
            _exact_matmuls()
        self._take_turn()
        self.schemes = resolve(checkpoint)
        self._arithmetic = Arithmetic(options.arithmetic, self.schemes, self.device)
        check_layers(checkpoint)
        with telling(checkpoint, "built"):
            self._skeleton = build_skeleton(
                checkpoint,
                self.dtype,
                self.device.torch,
                attention=options.attention,
                trust_remote_code=options.trust_remote_code,
            )
        self._weights = WeightMap(self._skeleton, checkpoint, self.schemes, self._arithmetic)
        self._caches = self._build_caches()
        self._slot = Slot(self.device.torch, self._fetch)
        room = _room(self.device, options.beside)
        budget = int(room.memory * _EXPERTS_SHARE)
        self._experts = Experts(self._skeleton, self._weights.experts, self._slot, budget)
        try:
            placed = place(
                checkpoint,
                room,
                self._skeleton,
                self._weights,
                self._slot,
                budget,
                options.place,
                keeps=options.keeps,
            )
        except torch.cuda.OutOfMemoryError as error:
            raise out_of_memory(error) from None
        self._feeds, self._memory, self._on_device = placed
        try:
            for buffer, name in self._weights.buffers:
                buffer.copy_(checkpoint.read(name))
            self._load_outside_layers()
            self._fused = fuse(self._skeleton, self.device.torch, self.dtype)
            self._layers = Layers(
                self._skeleton,
                self._weights,
                self._slot,
                self._experts,
                self._feeds,
                self._caches,
                self._clock,
            )
            backends = attention_backends(self.device.torch)
            with telling(checkpoint, "computed"), torch.no_grad(), backends:
                self._way = choose_way(
                    self._skeleton, self._layers, self._arithmetic.windows, self._clock
                )
                self.head, self._head_input = build_head(
                    self._skeleton,
                    self._weights,
                    self._slot,
                    self._arithmetic,
                    vocabulary,
                    self._way.own_logits,
                )
            self._arithmetic.check_ran()
        except BaseException as error:
            self._feeds.close()
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise out_of_memory(error) from None
            raise
        self._memory = self._memory.holding(self._way.token_bytes, self._hidden_bytes())
        self._is_proven = False
        self._tokens = 0
        self._clock.add("load", time.perf_counter() - begin)

    @property
    def vocabulary(self) -> int:
        return self.head.vocabulary

    @property
    def quantizes_head_input(self) -> bool:
        """Whether the head is given other than the final states."""
        return self._head_input is not None

    def schedule(self, plan: Plan) -> Schedule:
        """From the windows' length, the model's shape and the device's total memory."""
        return self._memory.schedule(int(plan.lengths.max()), self._options.batch_windows)

    def held_bytes(self, plan: Plan) -> int:
        """Bytes of a GPU's memory that it takes while another model of the process is at work, 0 on a
        CPU: what it keeps there, and the hidden states of a pass. What a micro-batch takes beyond
        that is the other's in turn. Raises EngineError as `schedule` does."""
        if not self.device.is_cuda:
            return 0
        tokens = self.schedule(plan).pass_windows * int(plan.lengths.max())
        return self._memory.fixed + tokens * self._memory.pass_token

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        extras = extras or Extras()
        passes = schedule.passes(plan)
        # A GPU begins the next pass before the last one's scores are fetched, checked and written.
        waiting: Launched | None = None
        for number, windows in enumerate(passes[first_pass:], first_pass):
            try:
                launched = self.launch(plan, schedule, windows, number, progress, extras)
            except OutOfMemory:
                if waiting is not None:
                    yield waiting.scores()
                raise
            if waiting is not None:
                yield waiting.scores()
            waiting = launched
            if not self.device.is_cuda:
                yield waiting.scores()
                waiting = None
        if waiting is not None:
            yield waiting.scores()

    def launch(
        self,
        plan: Plan,
        schedule: Schedule,
        windows: range,
        number: int,
        progress: Progress | None,
        extras: Extras,
    ) -> Launched:
        """Begins to score `windows`, whole micro-batches of the pass `number`; on a GPU it is queued,
        and not waited for. The scores are the same whatever other ones of the pass are with them.

        A pass that was made for more devices is cut to what this one has the memory for. Raises
        OutOfMemory.
        """
        most = len(windows)
        if extras.keeper is None:
            length = int(plan.lengths[windows.start : windows.stop].max())
            most = self._memory.most_windows(length, schedule.batch_windows)
        columns, results = [], []
        for run in schedule.runs(plan, windows, most):
            found = self._launch_or_fail(plan, schedule, number, run, progress, extras)
            if isinstance(found, OutOfMemory):
                raise found
            columns += found[0]
            results += found[1]
            if progress:
                progress(self.head_work(plan, run))
        return Launched(columns, results, self.device.torch)

    def final_states(
        self, plan: Plan, schedule: Schedule, windows: range, progress: Progress | None = None
    ) -> list[torch.Tensor]:
        """What the head is given for every scored target of `windows`, on the device: [N, D] for
        each micro-batch."""
        self._take_turn()
        with torch.no_grad(), attention_backends(self.device.torch):
            return self._final_states(plan, schedule, windows, progress or (lambda _: None))

    def head_work(self, plan: Plan, windows: range) -> float:
        """The head's part of the windows' tokens, for progress; each layer has as much."""
        tokens = float(plan.lengths[windows.start : windows.stop].sum())
        return tokens / (len(self._layers) + 1)

    def head_tensors(self) -> HeadTensors:
        weight, bias = head_names(self._skeleton, self._weights)
        # A bias is used in the compute dtype, a weight is kept as it is stored.
        if bias is not None and self._checkpoint.read(bias).dtype != self.dtype:
            bias = None
        source = self._checkpoint.source
        return HeadTensors(self.head, source, self._checkpoint.path, weight, bias)

    def identity(self) -> dict[str, Any]:
        model = self._skeleton.model
        return {
            "engine": "torch",
            "torch": torch.__version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            **self._arithmetic.to_json(),
            "kv_cache_dtype": self._kv_cache_dtype(),
            "attention": self._skeleton.attention,
            "text_alone": self._skeleton.text_alone,
            "model_class": f"{type(model).__module__}.{type(model).__qualname__}",
            "vocabulary": self.head.vocabulary,
            "device": self.device.to_json(),
            "batch_windows": self._options.batch_windows,
        }

    def describe(self) -> dict[str, Any]:
        cached = {name for cache in self._caches for name in cache.tensors}
        return {
            **self.identity(),
            "placement": self._feeds.placement,
            "kernels": fallback.ran(),
            "fused": self._fused.describe(),
            "layers": self._way.described,
            "experts": self._experts.describe(),
            "head": {
                "vocabulary": self.head.vocabulary,
                "width": len(self.head.weight),
                "scale": self.head.scale,
                "softcap": self.head.softcap,
                "logits": "float32",
            },
            "unused_tensors": [name for name in self._weights.unused if name not in cached],
            "tokens": self._tokens,
            "seconds": self._clock.seconds(),
            "peak_bytes": self.device.peak_bytes(),
        }

    def close(self) -> None:
        self._feeds.close()

    def _final_states(
        self, plan: Plan, schedule: Schedule, windows: range, progress: Progress
    ) -> list[torch.Tensor]:
        batches = schedule.batches(plan, windows)
        ids = [self._ids(plan, batch) for batch in batches]
        tokens = [float(plan.lengths[batch.start : batch.stop].sum()) for batch in batches]
        # The first pass takes the probe along, ahead of the windows.
        probes = [] if self._is_proven else [probe_ids(ids[0][0], self.head.vocabulary)]
        out = self._run_layers(probes, ids, tokens, progress)
        for probe in probes:
            prove(self._skeleton, self._way, self.head, probe, out.pop(0))
            check_used(self._caches, type(self._skeleton.model).__name__)
            self._is_proven = True
        self._tokens += int(sum(tokens))
        with self._clock.stage("head"):
            rows = []
            for batch, batch_ids in zip(batches, ids, strict=True):
                final = self._way.finish(batch_ids, out.pop(0))
                if self._head_input is not None:
                    final = self._head_input(final)
                # The target at position t is predicted from the state at t - 1.
                rows.append(torch.cat([final[r, plan.first[w] - 1 :] for r, w in enumerate(batch)]))
            return rows

    def _run_layers(
        self,
        probes: list[torch.Tensor],
        ids: list[torch.Tensor],
        tokens: list[float],
        progress: Progress,
    ) -> list[Any]:
        """What has the final states of each batch of ids [B, T], those of `probes` first."""
        # Work is reported in window tokens: each layer and the head move the bar by their share.
        share = 1 / (len(self._layers) + 1)
        work = [0.0] * len(probes) + tokens

        def moved(batch: int) -> None:
            progress(work[batch] * share)

        try:
            return self._way.run(probes + ids, len(probes), moved)
        except NotSeparable as reason:
            # Seen only when the layer that does it ran, so in the first pass, where all of them do.
            self._way = run_whole(self._skeleton, self._layers, self._arithmetic.windows, reason)
        return self._way.run(probes + ids, len(probes), lambda _: None)

    def _hidden_bytes(self) -> int:
        """Of what memory was counted with: one hidden state a token between two layers."""
        return self._skeleton.config.hidden_size * self.dtype.itemsize

    def _take_turn(self) -> None:
        """Makes the engine's GPU the process's current one, which Triton launches its kernels on."""
        if self.device.torch.type == "cuda":
            torch.cuda.set_device(self.device.torch)

    def _launch_or_fail(self, *arguments: Any) -> "_Found | OutOfMemory":
        """`_launch`, or its error, without the frames that hold what the pass has allocated."""
        try:
            return self._launch(*arguments)
        except torch.cuda.OutOfMemoryError as error:
            return out_of_memory(error)

    def _launch(
        self,
        plan: Plan,
        schedule: Schedule,
        number: int,
        windows: range,
        progress: Progress | None,
        extras: Extras,
    ) -> "_Found":
        """The plan's columns and the head's results of each micro-batch of the windows.

        Rows go through the head with those of their micro-batch and no others: a matmul may round a
        row otherwise when there are other rows with it, as cuBLAS does, and a CPU's of few rows or
        by AMX.
        """
        batches = schedule.batches(plan, windows)
        columns = [expected(plan, batch) for batch in batches]
        targets = [self._sent(c["target"]) for c in columns]
        spans = [(int(plan.offsets[b.start]), int(plan.offsets[b.stop])) for b in batches]
        if extras.reference is not None:
            with self._clock.stage("reference"), torch.no_grad():
                extras.reference.expect(spans, self.device.torch)
        states = self.final_states(plan, schedule, windows, progress)
        with torch.no_grad():
            if extras.keeper is not None:
                extras.keeper.put(number, states)
            results = []
            for span, target in zip(spans, targets, strict=True):
                results.append(self._score_states(span, states.pop(0), target, extras))
        return columns, results

    def _score_states(
        self, rows: tuple[int, int], states: torch.Tensor, target: torch.Tensor, extras: Extras
    ) -> list[Any]:
        """What has `columns` for the plan's scored targets `rows`, whose states [N, D] are given."""
        if extras.reference is None:
            with self._clock.stage("head"):
                return [to_host(score_rows(self.head, states, target))]
        tile = tile_of(self.device.torch)
        with self._clock.stage("reference"):
            base = extras.reference.logits([rows], self.device.torch, tile)
        with self._clock.stage("head"):
            logits = HeadLogits(self.head, states, tile)
            return self._compare(logits, base, target, extras)

    def _compare(
        self, model: Logits, base: Logits, target: torch.Tensor, extras: Extras
    ) -> list[Any]:
        """The model's own scores and those beside the base's."""
        assert extras.reference is not None
        entries = self.head.vocabulary
        extra = extras.reference.extra_sums
        pair = score_pairs(model, base, target, entries, extra=extra)
        results: list[Any] = [pair.model, pair]
        if extras.full:
            results.append(full_pairs(model, base, pair, entries))
        return [to_host(result) for result in results]

    def _ids(self, plan: Plan, batch: range) -> torch.Tensor:
        return self._sent(np.stack([plan[w].inputs for w in batch]))

    def _sent(self, ids: np.ndarray) -> torch.Tensor:
        """int64 on the device, or on its way there: a GPU's queue is not waited for."""
        tensor = torch.from_numpy(ids.astype(np.int64))
        if self.device.torch.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device.torch, non_blocking=True)

    def _build_caches(self) -> list[LayerCache]:
        """One a layer, none where keys and values stay as they are."""
        if self._options.kv_cache == "none":
            return []
        return build_caches(
            self._skeleton,
            self._checkpoint,
            self.schemes,
            self._weights.renamed,
            self._arithmetic.windows,
        )

    def _kv_cache_dtype(self) -> str | None:
        """What keys and values were rounded to, None for the compute dtype."""
        declared = self.schemes.config.kv_cache if self.schemes.config is not None else None
        return declared.described if self._caches and declared is not None else None

    def _load_outside_layers(self) -> None:
        """Norms and position tables whole; the embedding row by row, as windows need it."""
        embedding, head = self._skeleton.embedding, self._skeleton.head
        for filling in self._weights.outside.values():
            if filling.name == "weight" and filling.module in (embedding, head):
                continue
            if filling.matmul is not None:
                self._slot.load(filling, _OUTSIDE)
                continue
            weight = self._slot.own(filling)
            filling.module._parameters[filling.name] = torch.nn.Parameter(weight, False)
        filling = self._weights.filling_of(embedding, "weight")
        assert filling is not None
        embed_from(self._embedding_table(filling), embedding, self.dtype, self.device.torch)

    def _embedding_table(self, filling: Filling) -> torch.Tensor:
        """[V, D] as it is stored, on the device if it is there for good; decoded if it is packed."""
        if not isinstance(filling.scheme, Dense):
            return self._slot.own(filling).cpu()
        (name,) = filling.tensor_names().values()
        return self._fetch(name, None) if name in self._on_device else self._checkpoint.read(name)

    def _fetch(self, name: str, index: int | None) -> torch.Tensor:
        return self._feeds.get(name, index)


def _room(device: Device, beside: int) -> Device:
    """`device` with the memory that is left where others take `beside` bytes of a GPU's."""
    return replace(device, memory=max(0, device.memory - beside)) if device.is_cuda else device


def _exact_matmuls() -> None:
    """Nothing rounds more than its dtype says. For the whole process, and for CUDA alone: an engine on
    the CPU that reads a head leaves vLLM's arithmetic as it is."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

"""The torch engine: layers outside, windows inside.

All weights stay as they are stored. For a pass of many windows, each layer in turn is decoded into
one dense Slot and every micro-batch of the pass goes through it; only then comes the next layer. A
layer is decoded once a pass instead of once a window, so any format runs at the dense matmul's
speed, and memory holds one dense layer and the pass's hidden states, whatever the model's size and
the text's length.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Extras, Progress, Schedule
from scoremode.engines.torch.arithmetic import Arithmetic, Mode
from scoremode.engines.torch.build import build_skeleton
from scoremode.engines.torch.device import choose_device, choose_dtype
from scoremode.engines.torch.experts import Experts
from scoremode.engines.torch.head import build_head, head_names
from scoremode.engines.torch.kv_cache import LayerCache, build_caches, check_used
from scoremode.engines.torch.placement import Resident, embed_rows_on_demand
from scoremode.engines.torch.proofs import probe_ids, prove
from scoremode.engines.torch.skeleton import Call
from scoremode.engines.torch.slot import Slot
from scoremode.engines.torch.weights import WeightMap
from scoremode.errors import EngineError
from scoremode.head.full import full_pairs
from scoremode.head.project import HeadLogits, Logits, score_pairs, score_rows, tile_of
from scoremode.reference.keeper import HeadTensors
from scoremode.results.scores import Scores, concatenate, expected
from scoremode.schemes.resolve import resolve
from scoremode.text.plan import Plan

__all__ = ["TorchEngine", "TorchOptions"]

# Tokens of a pass and of a micro-batch where memory allows. A pass's decoding costs about 0.3 ns a
# weight on a CPU and 5 ms a 8B model on a GPU: 1 % of its matmuls at these sizes.
_PASS_TOKENS = {"cpu": 16_384, "cuda": 65_536}
_BATCH_TOKENS = {"cpu": 2_048, "cuda": 8_192}
# Share of the memory for a pass's hidden states.
_HIDDEN_SHARE = 1 / 8
# Share of the memory for the decoded experts of one layer.
_EXPERTS_SHARE = 1 / 4
# The place in the Slot of what is in no layer and stays.
_OUTSIDE = -1


@dataclass(frozen=True)
class TorchOptions:
    """What a user may choose; None leaves the choice to the engine.

    - `arithmetic`: whether activations are quantized too; `auto`: where the checkpoint says so.
    - `kv_cache`: whether keys and values are rounded to the cache that the checkpoint declares.
    - `max_memory`: bytes; `memory_share`: fraction of a GPU's memory.
    - `batch_windows`: windows of a micro-batch.
    - `attention`: the library's name of how attention is computed.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    arithmetic: Mode = "auto"
    kv_cache: Literal["none", "as-declared"] = "none"
    device: str | None = None
    max_memory: int | None = None
    memory_share: float | None = None
    batch_windows: int | None = None
    attention: Literal["sdpa", "eager"] | None = None
    trust_remote_code: bool = False


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
        self._seconds: dict[str, float] = defaultdict(float)
        if self.device.is_cuda:
            _exact_matmuls()
        self.schemes = resolve(checkpoint)
        self._arithmetic = Arithmetic(options.arithmetic, self.schemes, self.device)
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
        self._resident = Resident(self.device, checkpoint.bytes)
        budget = int(self.device.memory * _EXPERTS_SHARE)
        self._experts = Experts(self._skeleton, self._weights.experts, self._slot, budget)
        for buffer, name in self._weights.buffers:
            buffer.copy_(checkpoint.read(name))
        self._load_outside_layers()
        self.head, self._head_input = build_head(
            self._skeleton, self._weights, self._slot, self._arithmetic, vocabulary
        )
        self._arithmetic.check_ran()
        with torch.no_grad():
            self._skeleton.learn_layer_output(self._run_first_layer)
        self._calls: dict[tuple[int, int], list[Call]] = {}
        self._is_proven = False
        self._tokens = 0
        self._seconds["load"] = time.perf_counter() - begin

    @property
    def vocabulary(self) -> int:
        return self.head.vocabulary

    @property
    def quantizes_head_input(self) -> bool:
        """Whether the head is given other than the final states."""
        return self._head_input is not None

    def schedule(self, plan: Plan) -> Schedule:
        """From the windows' length, the hidden size and the device's total memory."""
        kind = self.device.torch.type
        longest = int(plan.lengths.max())
        batch = self._options.batch_windows or max(1, _BATCH_TOKENS[kind] // longest)
        hidden_bytes = longest * self._skeleton.config.hidden_size
        hidden_bytes *= self.dtype.itemsize
        affordable = int(self.device.memory * _HIDDEN_SHARE) // hidden_bytes
        wanted = max(batch, _PASS_TOKENS[kind] // longest)
        if affordable < batch:
            raise EngineError(
                f"{batch} windows of {longest} tokens take {batch * hidden_bytes / 2**20:.3f} MiB of "
                f"hidden states, more than {_HIDDEN_SHARE:.0%} of the {self.device.memory / 2**20:.3f} "
                "MiB allowed: lower --batch-size or raise --max-memory"
            )
        passes = min(wanted, affordable)
        return Schedule(pass_windows=passes - passes % batch, batch_windows=batch)

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
        for number, windows in enumerate(passes[first_pass:], first_pass):
            yield self.share(plan, schedule, windows, number, progress, extras)

    def share(
        self,
        plan: Plan,
        schedule: Schedule,
        windows: range,
        number: int,
        progress: Progress | None,
        extras: Extras,
    ) -> Scores:
        """The Scores of `windows`, whole micro-batches of the pass `number`: the same whatever other
        ones of the pass are scored with them.

        A pass that was made for more devices is cut to what this one has the memory for.
        """
        most = self.schedule(plan).pass_windows if extras.keeper is None else len(windows)
        parts = []
        for run in schedule.runs(plan, windows, most):
            with torch.no_grad():
                states = self.final_states(plan, schedule, run, progress)
                if extras.keeper is not None:
                    extras.keeper.put(number, states)
                parts.append(self._score_states(plan, run, states, extras))
            if progress:
                progress(self.head_work(plan, run))
        return concatenate(parts)

    def final_states(
        self, plan: Plan, schedule: Schedule, windows: range, progress: Progress | None = None
    ) -> torch.Tensor:
        """What the head is given for every scored target of `windows`: [N, D], on the device."""
        with torch.no_grad():
            return self._final_states(plan, schedule, windows, progress or (lambda _: None))

    def head_work(self, plan: Plan, windows: range) -> float:
        """The head's part of the windows' tokens, for progress; each layer has as much."""
        tokens = float(plan.lengths[windows.start : windows.stop].sum())
        return tokens / (len(self._skeleton.layers) + 1)

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
            "model_class": f"{type(model).__module__}.{type(model).__qualname__}",
            "vocabulary": self.head.vocabulary,
            "device": self.device.to_json(),
            "batch_windows": self._options.batch_windows,
        }

    def describe(self) -> dict[str, Any]:
        cached = {name for cache in self._caches for name in cache.tensors}
        return {
            **self.identity(),
            "placement": "device" if self._resident.keeps else "memory-mapped files",
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
            "seconds": {k: round(v, 3) for k, v in self._seconds.items()},
            "peak_bytes": self.device.peak_bytes(),
        }

    def close(self) -> None:
        """Nothing to end: its memory goes with it."""

    def _final_states(
        self, plan: Plan, schedule: Schedule, windows: range, progress: Progress
    ) -> torch.Tensor:
        batches = schedule.batches(plan, windows)
        ids = [self._ids(plan, batch) for batch in batches]
        tokens = [float(plan.lengths[batch.start : batch.stop].sum()) for batch in batches]
        # The first pass takes the probe along, ahead of the windows.
        probes = [] if self._is_proven else [probe_ids(ids[0][0], self.head.vocabulary)]
        hidden = self._run_layers(probes, ids, tokens, progress)
        for probe in probes:
            prove(self._skeleton, self.head, probe, hidden.pop(0))
            check_used(self._caches, type(self._skeleton.model).__name__)
            self._is_proven = True
        self._tokens += int(sum(tokens))
        with self._timed("head"):
            rows = []
            for batch, batch_ids, states in zip(batches, ids, hidden, strict=True):
                final = self._skeleton.finish(batch_ids, states)
                if self._head_input is not None:
                    final = self._head_input(final)
                # The target at position t is predicted from the state at t - 1.
                rows += [final[row, plan.first[w] - 1 :] for row, w in enumerate(batch)]
            return torch.cat(rows)

    def _run_layers(
        self,
        probes: list[torch.Tensor],
        ids: list[torch.Tensor],
        tokens: list[float],
        progress: Progress,
    ) -> list[torch.Tensor]:
        """The last layer's output [B, T, D] for each batch of ids [B, T], those of `probes` first."""
        # Work is reported in window tokens: each layer and the head move the bar by their share.
        share = 1 / (len(self._skeleton.layers) + 1)
        hidden: list[torch.Tensor] = []
        calls: list[list[Call]] = []
        with self._timed("embed"):
            for batch_ids in probes + ids:
                embedded, recorded = self._skeleton.record(batch_ids)
                hidden.append(embedded)
                calls.append(self._deduplicated(recorded, batch_ids.shape))
        work = [0.0] * len(probes) + tokens
        for i, layer in enumerate(self._skeleton.layers):
            with self._timed("decode"):
                self._fill(i)
            for b in range(len(hidden)):
                windows = self._arithmetic.windows
                with (
                    self._timed("layers"),
                    windows.together() if b < len(probes) else nullcontext(),
                ):
                    out = calls[b][i].run(layer, hidden[b], self._layer_arguments(i))
                    hidden[b] = out[0] if isinstance(out, tuple) else out
                progress(work[b] * share)
            self._empty(i)
        return hidden

    def _score_states(
        self, plan: Plan, windows: range, states: torch.Tensor, extras: Extras
    ) -> Scores:
        """The Scores of `windows`, whose final states [N, D] are given."""
        columns = expected(plan, windows)
        target = torch.from_numpy(columns["target"].astype(np.int64)).to(self.device.torch)
        if extras.reference is None:
            with self._timed("head"):
                own = score_rows(self.head, states, target)
            return Scores.from_columns({**columns, **own.columns()})
        tile = tile_of(self.device.torch)
        with self._timed("reference"):
            span = int(plan.offsets[windows.start]), int(plan.offsets[windows.stop])
            base = extras.reference.logits([span], self.device.torch, tile)
        with self._timed("head"):
            logits = HeadLogits(self.head, states, tile)
            compared = self._compare(logits, base, target, extras)
            return Scores.from_columns({**columns, **compared})

    def _compare(
        self, model: Logits, base: Logits, target: torch.Tensor, extras: Extras
    ) -> dict[str, np.ndarray]:
        """The columns of the model's own scores and of those beside the base's."""
        assert extras.reference is not None
        entries = self.head.vocabulary
        is_llama_cpp = extras.reference.is_llama_cpp
        pair = score_pairs(model, base, target, entries, llama_cpp=is_llama_cpp)
        columns = pair.model.columns() | pair.columns()
        if extras.full:
            columns |= full_pairs(model, base, pair, entries).columns()
        return columns

    def _ids(self, plan: Plan, batch: range) -> torch.Tensor:
        inputs = np.stack([plan[w].inputs for w in batch]).astype(np.int64)
        return torch.from_numpy(inputs).to(self.device.torch)

    def _deduplicated(self, calls: list[Call], shape: torch.Size) -> list[Call]:
        """`calls` with every tensor replaced by the equal one kept from an earlier batch.

        Masks and rotary tables are alike for all batches of a shape, and a dense mask for each
        would outgrow everything else. Compared by value: what depends on the ids stays apart.
        """
        known = self._calls.get((shape[0], shape[1]))
        if known is None:
            merged = _merge_calls(calls, calls)
            # Only the last shape is kept: the plan's windows are all alike but for a short tail.
            self._calls = {(shape[0], shape[1]): merged}
            return merged
        return _merge_calls(calls, known)

    def _run_first_layer(self, call: Call, hidden: torch.Tensor) -> Any:
        self._fill(0)
        out = call.run(self._skeleton.layers[0], hidden, self._layer_arguments(0))
        self._empty(0)
        return out

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

    def _layer_arguments(self, layer: int) -> dict[str, Any]:
        return self._caches[layer].arguments() if self._caches else {}

    def _kv_cache_dtype(self) -> str | None:
        """What keys and values were rounded to, None for the compute dtype."""
        declared = self.schemes.config.kv_cache if self.schemes.config is not None else None
        return declared.described if self._caches and declared is not None else None

    def _fill(self, layer: int) -> None:
        self._slot.fill(self._weights.layers[layer])
        self._experts.fill(layer)

    def _empty(self, layer: int) -> None:
        self._slot.empty(self._weights.layers[layer])
        self._experts.empty(layer)

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
        embed_rows_on_demand(embedding, self._checkpoint, filling, self.dtype, self._slot)

    def _fetch(self, name: str, index: int | None) -> torch.Tensor:
        return self._resident.get(name, index, self._checkpoint)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self.device.is_cuda:
            torch.cuda.synchronize(self.device.torch)
        self._seconds[stage] += time.perf_counter() - begin


def _merge_calls(calls: list[Call], known: list[Call]) -> list[Call]:
    seen: list[torch.Tensor] = []

    def merge(value: Any, other: Any) -> Any:
        if isinstance(value, torch.Tensor):
            candidates = [other] if isinstance(other, torch.Tensor) else []
            for candidate in candidates + seen:
                if candidate is value or _same(candidate, value):
                    return candidate
            seen.append(value)
            return value
        if isinstance(value, tuple):
            others = other if isinstance(other, tuple) and len(other) == len(value) else value
            return tuple(merge(v, o) for v, o in zip(value, others, strict=True))
        return value

    return [
        Call(
            merge(call.args, old.args),
            {k: merge(v, old.kwargs.get(k)) for k, v in call.kwargs.items()},
            call.at,
        )
        for call, old in zip(calls, known, strict=True)
    ]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def _exact_matmuls() -> None:
    """Nothing rounds more than its dtype says. For the whole process, and for CUDA alone: an engine on
    the CPU that reads a head leaves vLLM's arithmetic as it is."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

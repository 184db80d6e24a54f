"""The memory that a run takes of a device, and the placement and schedule that follow from it.

Everything here is counted from the model's shape and the device's total memory or the flags, never from
what happens to be free: the same command has the same schedule tomorrow. Activations are estimated, on
the high side; the measured peak is in the record.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import OutOfMemory, Schedule
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.memory.activations import Activations, activations, inner_width
from scoremode.engines.torch.memory.feeder import Block, Feeder, Feeds, Mapped, Place
from scoremode.engines.torch.model.attention import attends_without_masks, has_narrow_values
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.passes.chunks import whole_modules
from scoremode.engines.torch.weights.experts import bytes_of_experts
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import EngineError, UsageError, words_of
from scoremode.head.project import tile_of
from scoremode.lib.machine import memory_bytes
from scoremode.reference.writer import HELD
from scoremode.schemes.base import Dense

# Tokens of a micro-batch.
_BATCH_TOKENS = {"cpu": 2_048, "cuda": 8_192}
# Where a GPU has room for them beside a whole pass: 3 % faster on an H200, for half a GiB (8B).
_ROOMY_BATCH_TOKENS = 16_384
# Tokens of a pass: decoding all layers costs about 0.3 ns a weight on a CPU and 5 ms an 8B model on an
# H200, 1 % of the matmuls at these sizes and less.
_PASS_TOKENS = {"cpu": 16_384, "cuda": 65_536}
# While weights come over a slower link, a pass has to last as long as they take to come.
_LONG_PASS_TOKENS = {"host": 131_072, "disk": 524_288}
# Share of a CPU's memory for a pass's hidden states; a process there shares it with others.
_CPU_HIDDEN_SHARE = 1 / 8
# Windows of more tokens may go in chunks through what takes each token by itself.
_ORDINARY = 8_192
# The longest chunk that fits is taken: a matmul of so many rows is as fast as one of more.
_CHUNKS = (8_192, 4_096, 2_048, 1_024)
# Share of a CPU's memory for a long window's intermediates: whole, and in chunks.
_CPU_WHOLE_SHARE, _CPU_CHUNKED_SHARE = 1 / 4, 1 / 2
# Of a GPU's memory: what the allocator loses between blocks of different sizes.
_LOST_SHARE = 1 / 16
# Share of the host's memory that packed layers may be pinned in.
_PINNED_SHARE = 1 / 2


@dataclass(frozen=True)
class Memory:
    """A device's memory for one model.

    - `fixed`: bytes that don't depend on the schedule; `batch_token`, `pass_token`: bytes that each
      token of a micro-batch and of a pass takes.
    - `layer`: the intermediates of long windows.
    """

    device: Device
    fixed: int
    batch_token: int
    pass_token: int
    place: Place | None = None
    layer: Activations | None = None

    def schedule(self, length: int, batch_windows: int | None) -> Schedule:
        """Pass and micro-batch of windows of `length` tokens, and the chunks of long ones that would
        not fit whole. Raises EngineError for too little memory.

        `batch_windows`: as the user wants it. With several processes each has such a pass: the run's is
        as many times as long (`engines.torch.ranks.engine`).
        """
        whole = self._whole(length, batch_windows)
        if isinstance(whole, Schedule) and self._holds(whole, length):
            return whole
        if is_long(length) and self.layer is not None:
            return self._chunked(length, batch_windows or 1)
        assert isinstance(whole, EngineError)
        raise whole

    def schedule_of_many(
        self, lengths: NDArray[np.int64], batch_windows: int | None, *, pads: bool
    ) -> Schedule:
        """Pass and micro-batch of windows of so many tokens, by what the longest takes.

        `pads`: whether windows of several lengths may share a micro-batch. Raises EngineError.
        """
        longest, shortest = int(lengths.max()), int(lengths.min())
        own = self.schedule(longest, batch_windows)
        passes, batch = own.pass_windows * longest, own.batch_windows * longest
        return replace(
            own,
            pass_windows=passes // shortest,
            batch_windows=batch_windows or batch // shortest,
            pass_tokens=passes,
            batch_tokens=batch,
            pads=pads and batch_windows != 1,
        )

    def estimate(self, length: int, schedule: Schedule) -> int:
        """Bytes that a schedule of long windows is expected to hold of a GPU, what its allocator loses
        included; of a CPU's memory without weights and libraries."""
        assert self.layer is not None
        batch, tokens = schedule.batch_windows, schedule.pass_windows * length
        if schedule.batch_tokens is not None and schedule.pass_tokens is not None:
            batch, tokens = max(1, schedule.batch_tokens // length), schedule.pass_tokens
        taken = self.layer.bytes(batch, length, schedule.chunk_tokens)
        taken += tokens * self.pass_token
        if self.device.torch.type == "cpu":
            return taken
        return int((self.fixed + taken) / self._share)

    def _chunked(self, length: int, batch: int) -> Schedule:
        """The schedule with the longest chunk that leaves room for a pass. Raises EngineError."""
        assert self.layer is not None
        is_cpu = self.device.torch.type == "cpu"
        share = _CPU_CHUNKED_SHARE if is_cpu else self._share
        allowed = int(self.device.memory * share)
        least = self.fixed + batch * length * self.pass_token
        for chunk in _CHUNKS:
            if least + self.layer.bytes(batch, length, chunk) <= allowed:
                most = self.most_windows(length, batch, chunk)
                passes = min(max(batch, self._pass_tokens // length), most)
                return Schedule(passes - passes % batch, batch, chunk)
        needed = least + self.layer.bytes(batch, length, _CHUNKS[-1])
        how = f" in chunks of {_CHUNKS[-1]}"
        if self.layer.chunked_pair:
            how += f" and {self.layer.chunked_pair} bytes for every two positions in its attention"
        raise self._too_little(batch, length, needed, share, how, ", or take shorter windows")

    def _holds(self, whole: Schedule, length: int) -> bool:
        """Tells whether windows that fit otherwise do with what every two of their positions take, and
        on a CPU their intermediates: of long ones alone."""
        if not is_long(length) or self.layer is None:
            return True
        tokens = whole.batch_windows * length
        needed = tokens * self.batch_token + self.layer.pair * length**2
        if self.device.torch.type == "cpu":
            return needed <= self.device.memory * _CPU_WHOLE_SHARE
        needed += self.fixed + whole.pass_windows * length * self.pass_token
        return needed <= self._allowed

    def _whole(self, length: int, batch_windows: int | None) -> Schedule | EngineError:
        """The schedule of windows that go through layers whole."""
        kind = self.device.torch.type
        batch = batch_windows or max(1, _BATCH_TOKENS[kind] // length)
        wanted = max(batch, self._pass_tokens // length)
        if kind == "cpu":
            affordable = self._affordable(batch, length)
            if affordable < batch:
                return self._too_small(batch, length, fitting=affordable)
        else:
            roomy = _ROOMY_BATCH_TOKENS // length
            if not batch_windows and roomy and self._affordable(roomy, length) >= wanted:
                batch = roomy
            while (affordable := self._affordable(batch, length)) < batch:
                if batch == 1 or batch_windows:
                    smaller = (
                        b for b in range(batch - 1, 0, -1) if self._affordable(b, length) >= b
                    )
                    return self._too_small(batch, length, fitting=next(smaller, 0))
                batch //= 2
        passes = min(wanted, affordable)
        return Schedule(pass_windows=passes - passes % batch, batch_windows=batch)

    def most_windows(self, length: int, batch: int, chunk: int | None = None) -> int:
        """Windows of `length` tokens that a pass has room for beside a micro-batch; at least that."""
        if chunk is None or self.layer is None:
            return max(batch, self._affordable(batch, length))
        left = self._allowed
        if self.device.torch.type != "cpu":
            left -= self.fixed + self.layer.bytes(batch, length, chunk)
        return max(batch, left // (length * self.pass_token))

    def fits(self, longest: int | None = None) -> bool:
        """Tells whether a pass of the usual size fits a GPU, and a window of the `longest`."""
        needed = self.fixed + _BATCH_TOKENS["cuda"] * self.batch_token
        needed += _PASS_TOKENS["cuda"] * self.pass_token
        if longest is not None and is_long(longest) and self.layer is not None:
            taken = self.layer.bytes(1, longest, _CHUNKS[0]) + longest * self.pass_token
            needed = max(needed, self.fixed + taken)
        return needed <= self._allowed

    @property
    def _pass_tokens(self) -> int:
        """Tokens of a pass, where there is room for them."""
        if self.place in ("host", "disk"):
            return _LONG_PASS_TOKENS[self.place]
        return _PASS_TOKENS[self.device.torch.type]

    @property
    def _allowed(self) -> int:
        """Bytes for all that is counted here: on a CPU for hidden states alone."""
        return int(self.device.memory * self._share)

    @property
    def _share(self) -> float:
        return _CPU_HIDDEN_SHARE if self.device.torch.type == "cpu" else 1 - _LOST_SHARE

    def _affordable(self, batch: int, length: int) -> int:
        """Windows of a pass, beside a micro-batch of `batch`."""
        left = self._allowed
        if self.device.torch.type != "cpu":
            left -= self.fixed + batch * length * self.batch_token
        return max(0, left // (length * self.pass_token))

    def _too_small(self, batch: int, length: int, *, fitting: int) -> EngineError:
        """The error for a micro-batch of `batch` windows without room beside itself as a pass;
        `fitting`: the largest with room, 0 for none."""
        needed = batch * length * self.pass_token
        if self.device.torch.type != "cpu":
            needed += self.fixed + batch * length * self.batch_token
        fits = f", or give --batch-size {fitting}" if fitting else ""
        return self._too_little(batch, length, needed, self._share, "", fits)

    def _too_little(
        self, batch: int, length: int, needed: int, share: float, how: str, hint: str
    ) -> EngineError:
        """The error for windows that need more bytes than a share of the memory."""
        memory = self.device.memory
        missing = math.ceil((needed / share - memory) / 2**20)
        windows, take = ("window", "takes") if batch == 1 else ("windows", "take")
        return EngineError(
            f"{batch} {windows} of {length} tokens {take} {needed / 2**20:.3f} MiB{how}, more than the "
            f"{int(memory * share) / 2**20:.3f} MiB of the {memory / 2**20:.3f} MiB allowed: raise "
            f"--max-memory by {missing} MiB{hint}"
        )


def choose_place(
    wanted: Place | None,
    layers: Sequence[int],
    memory: Memory,
    host_bytes: int,
    longest: int | None = None,
) -> tuple[Place, Memory]:
    """Returns where packed decoder layers of so many bytes each lie, and the memory with them there.

    - `wanted`: by the user, None for the fastest that fits; `host_bytes`: the host's memory.
    - `longest`: tokens of the longest window.
    """
    total = sum(layers)
    resident = replace(memory, fixed=memory.fixed + total, place="device")
    if wanted == "device" or (wanted is None and resident.fits(longest)):
        return "device", resident
    place: Place = wanted or ("host" if total <= host_bytes * _PINNED_SHARE else "disk")
    return place, replace(memory, fixed=memory.fixed + 2 * max(layers), place=place)


def per_token(config: Any, dtype: torch.dtype, attention: str, *, quantized: bool) -> int:
    """Bytes of a decoder layer's intermediates for each token of a micro-batch, on the high side."""
    width = config.hidden_size
    inner, size = inner_width(config, width), dtype.itemsize
    # Hidden states, residual, queries, keys, values and their rotated copies; gate, up and product;
    # a norm in float32.
    total = size * (8 * width + 3 * inner) + 4 * 2 * width
    if quantized:
        # Codes beside the values, and float32 sums of the widest product.
        total += size * inner + 4 * inner
    if getattr(config, "model_type", None) == "llama4_text":
        # The library gives each expert a copy of all tokens: inputs, outputs and weighted outputs.
        total += 4 * size * width * config.num_local_experts
    if attention == "eager":
        # Scores in the compute dtype and in float32, for every pair of positions.
        length = min(2048, getattr(config, "max_position_embeddings", None) or 2048)
        total += getattr(config, "num_attention_heads", 1) * length * (4 + 2 * size)
    return total


def is_long(length: int) -> bool:
    """Tells whether windows of so many tokens may go in chunks; others never do."""
    return length > _ORDINARY


def head_bytes(device: torch.device, width: int, dtype: torch.dtype) -> int:
    """Bytes of two models' tiles of logits, and of the states that they are made of."""
    rows, entries = tile_of(device)
    return 2 * rows * entries * 4 + rows * width * dtype.itemsize


def out_of_memory(error: torch.cuda.OutOfMemoryError) -> OutOfMemory:
    """Ours, in one line, of the device's."""
    return OutOfMemory(words_of(error, 200, named=False))


def place(
    checkpoint: Checkpoint,
    device: Device,
    skeleton: Skeleton,
    weights: WeightMap,
    slot: Slot,
    experts_budget: int,
    wanted: Place | None,
    *,
    keeps: bool = False,
    longest: int | None = None,
    rounds_cache: bool = False,
) -> tuple[Feeds, Memory, frozenset[str]]:
    """Returns what feeds the engine, the memory of the device with it, and the tensors that stay there.

    - `experts_budget`: bytes for the decoded experts of a layer.
    - `wanted`: by the user; None for the fastest place with room.
    - `keeps`: whether states of earlier passes stay there while they are being written.
    - `longest`: tokens of the longest window, where it is known.
    - `rounds_cache`: whether keys and values are rounded as a cache would hold them.

    Raises UsageError for a place on a CPU.
    """
    if wanted is not None and not device.is_cuda:
        raise UsageError(
            f"--placement {wanted}: is for a GPU; a CPU reads weights from their memory-mapped files"
        )
    config, dtype = skeleton.config, skeleton.model.dtype
    memory = _of_windows(device, skeleton, weights, rounds_cache=rounds_cache)
    if not device.is_cuda:
        return Mapped(checkpoint), memory, frozenset()
    if keeps:
        memory = replace(memory, pass_token=memory.pass_token * (1 + HELD))
    layers = weights.tensors_of_layers()
    blocks = [_block_bytes(checkpoint, names) for names in layers]
    # What layers of different kinds are decoded into stays beside each other.
    dense = slot.bytes_for(b for bindings in weights.layers for b in bindings)
    most = max(sum(bytes_of_experts(w, slot) for w in experts) for experts in weights.experts)
    dense += min(most, experts_budget)
    table, kept = weights.tensors_outside()
    fixed = _block_bytes(checkpoint, kept) + dense
    fixed += head_bytes(device.torch, config.hidden_size, dtype) + _decoded_head(skeleton, weights)
    host = memory_bytes()
    chosen, result = choose_place(wanted, blocks, replace(memory, fixed=fixed), host, longest)
    # The embedding's table stays on the host, unless all has room.
    more = [name for name in table if name not in kept]
    with_table = replace(memory, fixed=fixed + _block_bytes(checkpoint, more))
    fastest, roomy = choose_place(None, blocks, with_table, host, longest)
    if chosen == fastest == "device":
        result, kept = roomy, [*kept, *more]
    feeds = Feeder(checkpoint, device.torch, kept, layers, chosen)
    return feeds, result, frozenset(kept)


def _of_windows(
    device: Device, skeleton: Skeleton, weights: WeightMap, *, rounds_cache: bool
) -> Memory:
    """The memory that windows take, before anything is fixed."""
    quantized = any(b.matmul is not None for layer in weights.layers for b in layer)
    config, dtype, attention = skeleton.config, skeleton.model.dtype, skeleton.attention
    return Memory(
        device,
        fixed=0,
        batch_token=per_token(config, dtype, attention, quantized=quantized),
        pass_token=config.hidden_size * dtype.itemsize,
        layer=activations(
            config,
            dtype,
            attention,
            fused=device.is_cuda and dtype != torch.float32,
            quantized=quantized,
            rounds_cache=rounds_cache,
            attends_apart=attends_without_masks(skeleton.model, attention),
            narrow_values=has_narrow_values(config, device.torch),
            whole=bool(whole_modules(skeleton, weights)),
        ),
    )


def _decoded_head(skeleton: Skeleton, weights: WeightMap) -> int:
    """Bytes of a head that is decoded for good; none of one that is used as it is stored."""
    binding = weights.binding_of(skeleton.head, "weight")
    if binding is None or isinstance(binding.scheme, Dense):
        return 0
    # One with quantized inputs is multiplied out in float32.
    size = binding.dtype.itemsize if binding.scheme.inputs is None else 4
    return math.prod(binding.scheme.shape) * size


def _block_bytes(checkpoint: Checkpoint, names: Sequence[str]) -> int:
    return Block.of([checkpoint.tensors[name] for name in names]).bytes

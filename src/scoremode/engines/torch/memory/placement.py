"""The place of a model's packed weights while an engine runs, and what that leaves for the schedule."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.memory.activations import activations
from scoremode.engines.torch.memory.budget import Memory, choose_place, head_bytes, per_token
from scoremode.engines.torch.memory.feeder import Feeder, Feeds, Mapped, Place
from scoremode.engines.torch.memory.reader import Block
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.model.sliding import has_narrow_values, may_attend_apart
from scoremode.engines.torch.passes.chunks import whole_modules
from scoremode.engines.torch.weights.experts import bytes_of_experts
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import UsageError
from scoremode.lib.machine import memory_bytes
from scoremode.reference.keeper import HELD
from scoremode.schemes.base import Dense

__all__ = ["place"]


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
    """What windows take, before anything is fixed."""
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
            attends_apart=may_attend_apart(skeleton.model, attention),
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

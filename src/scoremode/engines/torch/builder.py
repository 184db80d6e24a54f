"""The parts of a torch engine made from a checkpoint, in the order in which they need each other; and
without its weights, whether they could be."""

import time
from dataclasses import replace

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.gguf.open import GgufFiles
from scoremode.checkpoint.virtual import Mixture
from scoremode.engines.kv_formats import AS_DECLARED, KvCache
from scoremode.engines.torch.clock import DeviceClock
from scoremode.engines.torch.device import Device, choose_device, choose_dtype, make_current
from scoremode.engines.torch.engine import TorchEngine
from scoremode.engines.torch.fused.modules import fuse
from scoremode.engines.torch.kv_cache.caches import FormatCaches, build_format_caches
from scoremode.engines.torch.matmul.arithmetic import Arithmetic
from scoremode.engines.torch.memory.budget import out_of_memory
from scoremode.engines.torch.memory.placement import place
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.build import build_skeleton
from scoremode.engines.torch.model.library_errors import telling
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.parts import Parts
from scoremode.engines.torch.passes.chunks import Chunks, whole_modules
from scoremode.engines.torch.passes.layers import Layers
from scoremode.engines.torch.passes.ways import choose_way
from scoremode.engines.torch.weights.embedding import PackedTable, Table, embed_from
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.head import build_head
from scoremode.engines.torch.weights.kv_cache import LayerCache, build_caches, build_half_caches
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import ScoremodeError, UsageError
from scoremode.schemes.activations.ggml import gelu
from scoremode.schemes.base import Dense, TableScheme
from scoremode.schemes.resolve import Schemes, resolve

__all__ = ["build_engine", "is_gguf_checkpoint", "why_not"]

# Share of the memory for the decoded experts of one layer.
_EXPERTS_SHARE = 1 / 4
# The place in the Slot of what is in no layer and stays.
_OUTSIDE = -1


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
        parts = _build(checkpoint, options, vocabulary, longest)
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(error) from None
    parts.clock.add("load", time.perf_counter() - begin)
    return TorchEngine(parts)


def why_not(checkpoint: Checkpoint, device: Device) -> str | None:
    """Returns why the engine would refuse the model before it reads a weight; None if it would not.

    It goes the engine's own way as far as headers lead: the library's class, and the map of all
    parameters to tensors of the right shape.
    """
    try:
        dtype = choose_dtype("auto", checkpoint, device)
        schemes = resolve(checkpoint)
        skeleton = build_skeleton(checkpoint, dtype, torch.device("cpu"), trust_remote_code=False)
        WeightMap(skeleton, checkpoint, schemes, Arithmetic("auto", schemes, device))
    except ScoremodeError as error:
        return str(error)
    return None


def _build(
    checkpoint: Checkpoint, options: TorchOptions, vocabulary: int | None, longest: int | None
) -> Parts:
    device = choose_device(options.device, options.max_memory, options.memory_share)
    dtype = computed_dtype(checkpoint, options)
    clock = DeviceClock(device.torch)
    if device.is_cuda:
        _exact_matmuls()
    make_current(device.torch)
    schemes = resolve(checkpoint)
    arithmetic = Arithmetic(
        options.arithmetic, schemes, device, is_gguf=is_gguf_checkpoint(checkpoint)
    )
    skeleton = build_skeleton(
        checkpoint,
        dtype,
        device.torch,
        attention=options.attention,
        trust_remote_code=options.trust_remote_code,
    )
    if arithmetic.is_llama_cpp:
        _round_gelus(skeleton)
    weights = WeightMap(skeleton, checkpoint, schemes, arithmetic)
    caches, formats = _caches(checkpoint, options, schemes, skeleton, weights, arithmetic)
    # What feeds the Slot is placed by what the Slot will hold, so it comes after it.
    slot = Slot(device.torch, lambda name, index: feeds.get(name, index))
    room = device.beside(options.beside)
    budget = int(room.memory * _EXPERTS_SHARE)
    experts = Experts(skeleton, weights.experts, slot, budget)
    feeds, memory, on_device = place(
        checkpoint, room, skeleton, weights, slot, budget, options.place,
        keeps=options.keeps, longest=longest, rounds_cache=bool(caches),
    )  # fmt: skip
    try:
        for buffer, name in weights.buffers:
            buffer.copy_(checkpoint.read(name))
        _load_outside_layers(skeleton, weights, slot)
        table = _embedding_table(checkpoint, skeleton, weights, slot, on_device)
        embed_from(table, skeleton.embedding, dtype, device.torch)
        fused = fuse(skeleton, device.torch, dtype)
        chunks = Chunks(skeleton, whole_modules(skeleton, weights))
        layers = Layers(skeleton, weights, slot, experts, feeds, caches, clock)
        backends = attention_backends(device.torch)
        with telling(checkpoint, "computed"), torch.no_grad(), backends:
            way = choose_way(skeleton, layers, arithmetic.windows, clock)
            head, head_input = build_head(
                skeleton, weights, slot, arithmetic, vocabulary, way.own_logits
            )
        arithmetic.check_ran()
    except BaseException:
        # What reads ahead ends with an engine that doesn't come to be.
        feeds.close()
        raise
    # Memory was counted with one hidden state a token between two layers.
    more = max(0, way.token_bytes - skeleton.config.hidden_size * dtype.itemsize)
    memory = replace(memory, pass_token=memory.pass_token + more)
    return Parts(
        checkpoint, options, device, dtype, clock, schemes, arithmetic, skeleton, fused, weights, slot,
        experts, caches, formats, feeds, memory, layers, chunks, way, head, head_input,
    )  # fmt: skip


def _round_gelus(skeleton: Skeleton) -> None:
    """Has every layer's GELU by the tanh formula be llama.cpp's, which is rounded to float16."""
    from transformers.activations import GELUTanh, NewGELUActivation

    for layer in skeleton.layers:
        for module in layer.modules():
            if isinstance(module, GELUTanh | NewGELUActivation):
                module.forward = gelu


def _caches(
    checkpoint: Checkpoint,
    options: TorchOptions,
    schemes: Schemes,
    skeleton: Skeleton,
    weights: WeightMap,
    arithmetic: Arithmetic,
) -> tuple[list[LayerCache], FormatCaches | None]:
    """A cache a layer, none where keys and values stay as they are; the same in formats that the user
    named, None in others."""
    if arithmetic.is_llama_cpp:
        return build_half_caches(skeleton), None
    if options.kv_cache == AS_DECLARED:
        windows = arithmetic.windows
        return build_caches(skeleton, checkpoint, schemes, weights.renamed, windows), None
    if isinstance(options.kv_cache, KvCache):
        formats = build_format_caches(skeleton, options.kv_cache)
        return formats.layers, formats
    return [], None


def is_gguf_checkpoint(checkpoint: Checkpoint) -> bool:
    """True of a GGUF file, float or in blocks, and of a folder that declares its blocks; of a mixture
    where all of its parts are."""
    if isinstance(checkpoint, Mixture):
        return all(map(is_gguf_checkpoint, checkpoint.parts))
    config = checkpoint.quantization or {}
    return isinstance(checkpoint.files, GgufFiles) or config.get("quant_method") == "gguf"


def computed_dtype(checkpoint: Checkpoint, options: TorchOptions) -> torch.dtype:
    """The dtype that a model is computed in. Raises EngineError, UsageError."""
    device = choose_device(options.device, options.max_memory, options.memory_share)
    return choose_dtype(_wanted_dtype(options), checkpoint, device)


def _wanted_dtype(options: TorchOptions) -> str:
    """The dtype that is asked for, llama.cpp's where its arithmetic is. Raises UsageError."""
    if options.arithmetic != "llama.cpp":
        return options.dtype
    if options.dtype not in ("auto", "float32"):
        raise UsageError(
            f"--dtype {options.dtype}: --arithmetic llama.cpp computes in float32, as that tool does"
        )
    if options.kv_cache != "none":
        raise UsageError(
            f"--kv-cache {options.kv_cache}: --arithmetic llama.cpp has that tool's cache, in float16"
        )
    return "float32"


def _load_outside_layers(skeleton: Skeleton, weights: WeightMap, slot: Slot) -> None:
    """Loads norms and position tables whole; not the embedding, of which windows need a few rows."""
    for binding in weights.outside.values():
        if binding.name == "weight" and binding.module in (skeleton.embedding, skeleton.head):
            continue
        if binding.matmul is not None:
            slot.load(binding, _OUTSIDE)
            continue
        weight = slot.own(binding)
        binding.module._parameters[binding.name] = torch.nn.Parameter(weight, False)


def _embedding_table(
    checkpoint: Checkpoint,
    skeleton: Skeleton,
    weights: WeightMap,
    slot: Slot,
    on_device: frozenset[str],
) -> Table:
    """[V, D] as it is stored, on the device if it is there for good; decoded if it is packed in a way
    that rows can't be taken out of."""
    binding = weights.binding_of(skeleton.embedding, "weight")
    assert binding is not None
    names = binding.tensor_names()
    stays = on_device.issuperset(names.values())
    if isinstance(binding.scheme, TableScheme):
        tensors = (
            slot.tensors(binding) if stays else {s: checkpoint.read(n) for s, n in names.items()}
        )
        return PackedTable(binding.scheme, tensors, binding.dtype)
    if not isinstance(binding.scheme, Dense):
        return slot.own(binding).cpu()
    (name,) = names.values()
    return slot.kept(binding) if stays else checkpoint.read(name)


def _exact_matmuls() -> None:
    """Lets no matmul round more than its dtype says, in the whole process.

    For CUDA alone: an engine on the CPU that reads a head leaves vLLM's arithmetic as it is.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False

"""The parts of a torch engine: made from a checkpoint, in the order in which they need each other, with
what they say of themselves; and without its weights, whether they could be made.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.virtual import Mixture
from scoremode.engines.kv_formats import AS_DECLARED, KvCache
from scoremode.engines.torch.device import (
    Device,
    DeviceClock,
    choose_device,
    choose_dtype,
    make_current,
)
from scoremode.engines.torch.fused.modules import Fused, fuse
from scoremode.engines.torch.kv_cache.formats import FormatCaches, build_format_caches
from scoremode.engines.torch.kv_cache.layer_caches import (
    LayerCache,
    build_caches,
    build_half_caches,
)
from scoremode.engines.torch.matmul.linears import Arithmetic
from scoremode.engines.torch.memory.budget import Memory, place
from scoremode.engines.torch.memory.feeder import Feeds
from scoremode.engines.torch.model.architecture import library_errors
from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.build import build_skeleton
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.chunks import Chunks, whole_modules
from scoremode.engines.torch.passes.execution import Layers, Way, choose_way
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.head import HeadInput, build_head, head_names
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import ScoremodeError, UsageError
from scoremode.head.project import Head
from scoremode.reference.writer import HeadTensors
from scoremode.schemes.activations.ggml import gelu
from scoremode.schemes.base import Dense, Scratch, TableScheme
from scoremode.schemes.resolve import Schemes, resolve

# Share of the memory for the decoded experts of one layer.
_EXPERTS_SHARE = 1 / 4
# The place in the Slot of what is in no layer and stays.
_OUTSIDE = -1


@dataclass(frozen=True, eq=False)
class Parts:
    """A checkpoint's model, taken apart and ready to run.

    - `memory`: of the device, with what the model takes there and each token of a pass.
    - `caches`: one a layer, none where keys and values stay as they are; `formats`: the same where they
      are in formats that the user named.
    - `chunks`: what runs parts of the layers over some tokens of a long window at a time.
    - `way`: how a pass goes through the layers.
    - `head_input`: what the head is given of the final states, None for the states themselves.
    """

    checkpoint: Checkpoint
    options: TorchOptions
    device: Device
    dtype: torch.dtype
    clock: DeviceClock
    schemes: Schemes
    arithmetic: Arithmetic
    skeleton: Skeleton
    fused: Fused
    weights: WeightMap
    slot: Slot
    experts: Experts
    caches: list[LayerCache]
    formats: FormatCaches | None
    feeds: Feeds
    memory: Memory
    layers: Layers
    chunks: Chunks
    way: Way
    head: Head
    head_input: HeadInput | None

    @property
    def model_name(self) -> str:
        """The model's class, for errors."""
        return type(self.skeleton.model).__name__

    @property
    def is_exact(self) -> bool:
        """True of float32 in which no inputs and no caches are quantized."""
        is_plain = self.arithmetic.mode == "weights" and not self.caches
        return self.dtype == torch.float32 and is_plain

    def identity(self) -> dict[str, Any]:
        """Everything about model, arithmetic and device that can move a score."""
        model = type(self.skeleton.model)
        return {
            "engine": "torch",
            "torch": torch.__version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            **self.arithmetic.to_json(),
            "kv_cache_dtype": self._kv_cache_dtype(),
            **(self.formats.identity() if self.formats is not None else {}),
            "attention": self.skeleton.attention,
            "text_alone": self.skeleton.text_alone,
            "model_class": f"{model.__module__}.{model.__qualname__}",
            "vocabulary": self.head.vocabulary,
            "device": self.device.to_json(),
            "batch_windows": self.options.batch_windows,
        }

    def head_tensors(self) -> HeadTensors:
        """The head, and the checkpoint's tensors that are its weight and bias as they are used."""
        weight, bias = head_names(self.skeleton, self.weights)
        # A bias is used in the compute dtype, a weight is kept as it is stored.
        if bias is not None and self.checkpoint.read(bias).dtype != self.dtype:
            bias = None
        return HeadTensors(self.head, self.checkpoint.source, self.checkpoint.place, weight, bias)

    def unused_tensors(self) -> list[str]:
        """The checkpoint's tensors that no parameter and no cache is made of."""
        cached = {name for cache in self.caches for name in cache.tensors}
        return [name for name in self.weights.unused if name not in cached]

    def _kv_cache_dtype(self) -> str | None:
        """The dtype that keys and values are rounded to, None for the compute dtype."""
        if self.arithmetic.is_llama_cpp:
            return "float16"
        declared = self.schemes.config.kv_cache if self.schemes.config is not None else None
        return declared.described if self.caches and declared is not None else None


class Table(Protocol):
    """A table [V, D] that rows can be taken out of; a tensor is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def is_cuda(self) -> bool: ...

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor: ...


class PackedTable:
    """A table in packed `tensors` by suffix, all in one place, of which wanted rows are decoded."""

    def __init__(
        self, scheme: TableScheme, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ):
        self.shape = tuple(scheme.shape)
        self.is_cuda = all(tensor.is_cuda for tensor in tensors.values())
        self._scheme, self._tensors, self._dtype = scheme, tensors, dtype
        self._scratch = Scratch()

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor:
        """[n, D] of the rows `index` int64 [n]; `dim` is 0."""
        assert dim == 0
        rows = {name: tensor.index_select(0, index) for name, tensor in self._tensors.items()}
        out = torch.empty((len(index), self.shape[1]), dtype=self._dtype, device=index.device)
        self._scheme.of_rows(len(index)).decode(rows, out, self._scratch)
        return out


def embed_from(
    table: Table, embedding: torch.nn.Module, dtype: torch.dtype, device: torch.device
) -> None:
    """Gives `embedding`, before every look-up, just the rows of its ids, in `dtype`.

    - `table` [V, D], as it is stored: on `device` or on the host, where a model's whole size may be
      more than the device has room for.

    A large vocabulary's table in the compute dtype would be the largest thing in memory, for a few
    thousand rows of it.
    """

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (ids,) = args
        rows, places = _find(table, ids)
        weight = rows.to(dtype)
        module._parameters["weight"] = torch.nn.Parameter(weight, requires_grad=False)
        return (places,)

    def forget(module: torch.nn.Module, args: Any, out: torch.Tensor) -> None:
        module._parameters["weight"] = placeholder

    # Some models look at the weight's device before they use it.
    nothing = torch.zeros((1, table.shape[1]), dtype=dtype, device=device)
    placeholder = torch.nn.Parameter(nothing, requires_grad=False)
    embedding._parameters["weight"] = placeholder
    # It says which row gets no gradient, and torch refuses one beyond the few rows that are there:
    # gpt-oss has its padding at 199,999, SmolLM2 at 2.
    if isinstance(embedding, torch.nn.Embedding):
        embedding.padding_idx = None
    embedding.register_forward_pre_hook(hook)
    embedding.register_forward_hook(forget)


def _find(table: Table, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the ids, where these are, and each one's place among them."""
    if table.is_cuda:
        # Finding out which ids are there twice would have the device wait.
        rows = table.index_select(0, ids.reshape(-1))
        return rows, torch.arange(len(rows), device=ids.device).view(ids.shape)
    distinct, places = torch.unique(ids.cpu(), return_inverse=True)
    rows = table.index_select(0, distinct.view(-1))
    return rows.to(ids.device), places.to(ids.device)


def refusal_of(checkpoint: Checkpoint, device: Device) -> str | None:
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


def build_parts(
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
        with library_errors(checkpoint, "computed"), torch.no_grad(), backends:
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
    # No other checkpoint is a single file.
    return checkpoint.path.is_file() or config.get("quant_method") == "gguf"


def computed_dtype(checkpoint: Checkpoint, options: TorchOptions) -> torch.dtype:
    """The dtype that a model is computed in: llama.cpp's where its arithmetic is.

    Raises EngineError, UsageError.
    """
    device = choose_device(options.device, options.max_memory, options.memory_share)
    if options.arithmetic != "llama.cpp":
        return choose_dtype(options.dtype, checkpoint, device)
    if options.dtype not in ("auto", "float32"):
        raise UsageError(
            f"--dtype {options.dtype}: --arithmetic llama.cpp computes in float32, as that tool does"
        )
    if options.kv_cache != "none":
        raise UsageError(
            f"--kv-cache {options.kv_cache}: --arithmetic llama.cpp has that tool's cache, in float16"
        )
    return torch.float32


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

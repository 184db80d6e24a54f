"""A checkpoint that nobody has downloaded: its tensors' headers, by its config.json alone.

The library's own class is built without weights, and the library's own rules for writing checkpoints
name its tensors; the config's quantization says what of them would be stored otherwise.
"""

import re
from collections.abc import Iterator

import torch
from torch import nn

from scoremode.checkpoint.config import dtype_of
from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.model.architecture import library_errors
from scoremode.engines.torch.model.build import build_skeleton
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.expert_weights import has_gate
from scoremode.errors import UnsupportedFormat, UnsupportedModel
from scoremode.schemes.layout import Linear, PromisedCheckpoint, promised
from scoremode.schemes.resolve import library_of, resolve

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
# Projections of all experts of a layer, and their biases.
_STACKED = re.compile(r"(.*experts\.)(gate_up_proj|up_proj|down_proj)(_bias)?")

Tensors = dict[str, torch.Tensor]


def checkpoint_by_config(checkpoint: Checkpoint) -> PromisedCheckpoint:
    """The `checkpoint`, of which only the config is there, with headers of all its tensors but those
    of encoders.

    Raises UnsupportedModel for a model that can't be built, UnsupportedFormat where only tensors tell
    what is quantized.
    """
    library, promise = library_of(checkpoint), None
    if library is None:
        # Says so where another file than the config does.
        resolve(checkpoint)
    if library is not None and (quantization := checkpoint.quantization):
        promise = library(checkpoint, quantization).promise
    # bfloat16, as nearly all are published, where the config says none.
    dtype = _DTYPES.get(dtype_of(checkpoint.config) or "", torch.bfloat16)
    cpu = torch.device("cpu")
    skeleton = build_skeleton(checkpoint, dtype, cpu, trust_remote_code=False, is_there=False)
    experts = [m for layer in skeleton.layers for m in layer.modules() if _are_stacked(m)]
    transposed = any(getattr(module, "is_transposed", True) for module in experts)
    parameters, weight_names, head = _parameters(skeleton)
    with library_errors(checkpoint, "described"):
        tensors = _stored(skeleton, parameters)
        # In the model's order, so that a table is the same whenever it is made.
        own = {name: tensor for name, tensor in parameters.items() if name in weight_names}
        weights = _stored(skeleton, own)
        if _elements(tensors) != _elements(parameters):
            # A rule that the library can't turn round.
            raise UnsupportedModel(
                f"{checkpoint.path}: transformers doesn't tell what tensors its checkpoint has"
            )
        tables = [skeleton.embedding_name] if library is not None and library.embeds else []
        weights |= _stored(skeleton, {name: parameters[name] for name in tables})
        heads = _stored(skeleton, {n: parameters[n] for n in (head, *tables) if n in parameters})
        if library is not None and not library.stacks:
            gated = any(map(has_gate, experts))
            tensors, weights = (
                dict(_unrolled(found, gated=gated, transposed=transposed))
                for found in (tensors, weights)
            )
    for name, tensor in weights.items():
        if promise and tensor.dim() == 3 and not _STACKED.fullmatch(name):
            raise UnsupportedFormat(
                f"{name} is of {len(tensor)} experts, and how it is stored quantized is known from its "
                "tensors alone"
            )
    dense = {name: (_NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items()}
    linears = (
        _linear(name, tensor, transposed=transposed, in_layer=name not in heads)
        for name, tensor in weights.items()
    )
    return promised(checkpoint, dense, linears, promise)


def _parameters(skeleton: Skeleton) -> tuple[Tensors, set[str], str]:
    """All parameters and stored buffers by name, a tied one by its first; the names of linears' weights
    and experts' projections; the head's."""
    tensors: Tensors = {}
    linears: set[str] = set()
    head = ""
    seen: set[int] = set()
    for prefix, module in _modules(skeleton):
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            full = f"{prefix}.{name}" if prefix else name
            tensors[full] = parameter
            if module is skeleton.head and name == "weight":
                head = full
            is_weight = isinstance(module, nn.Linear) and name == "weight"
            if is_weight or (_are_stacked(module) and parameter.dim() == 3):
                linears.add(full)
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                tensors[f"{prefix}.{name}"] = buffer
    return tensors, linears, head


def _modules(skeleton: Skeleton) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names, those of the layers at the end."""
    yield from skeleton.model.named_modules()
    for prefix, layer in zip(skeleton.layer_names, skeleton.layers, strict=True):
        for name, module in layer.named_modules():
            yield (f"{prefix}.{name}" if name else prefix), module


def _are_stacked(module: nn.Module) -> bool:
    """Tells whether the module has the weights of many experts in one parameter."""
    down = module._parameters.get("down_proj")
    return down is not None and down.dim() == 3


def _stored(skeleton: Skeleton, parameters: Tensors) -> Tensors:
    """The tensors that the library would write for these parameters."""
    from transformers.core_model_loading import revert_weight_conversion

    written = revert_weight_conversion(skeleton.model, dict(parameters))
    # Turned round, Kimi's rule for its encoder's blocks fits the language model's layers, too.
    layers = skeleton.layer_names[0].split(".")[-2]
    if layers != "blocks" and not any(".blocks." in name for name in parameters):
        written = {n.replace(".blocks.", f".{layers}."): t for n, t in written.items()}
    return written


def _elements(tensors: Tensors) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _unrolled(
    tensors: Tensors, *, gated: bool, transposed: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors with linears of experts that are stored as one apart, as quantizers store them."""
    for name, tensor in tensors.items():
        found = _STACKED.fullmatch(name)
        if found is None or tensor.dim() < 2:
            yield name, tensor
            continue
        home, projection, bias = found.groups()
        names = ["gate_proj", "up_proj"] if projection == "gate_up_proj" and gated else [projection]
        if transposed and not bias:
            tensor = tensor.transpose(1, 2)
        for expert in range(len(tensor)):
            for own, part in zip(names, tensor[expert].chunk(len(names)), strict=True):
                yield f"{home}{expert}.{own}.{'bias' if bias else 'weight'}", part


def _linear(name: str, weight: torch.Tensor, *, transposed: bool, in_layer: bool) -> Linear:
    *count, rows, columns = weight.shape
    if count:
        shape = (columns, rows) if transposed else (rows, columns)
        return Linear(name, shape, _NAMES[weight.dtype], count[0], in_layer)
    return Linear(
        name.removesuffix(".weight"), (rows, columns), _NAMES[weight.dtype], None, in_layer
    )

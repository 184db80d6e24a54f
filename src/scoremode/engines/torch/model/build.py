"""The building of a skeleton from a config.

The library's own class is built from the config with its parameters on the meta device and its
buffers (rotary tables, embedding scales) real: those are computed, not stored, and a meta buffer
would come back as garbage that even a strict load does not see.

Given ids alone, the forward of a model of text and images or sound goes through its language model and
its head, and whatever else it has is never called: those parts need no weights. That they are not
called is not believed: something lies in their place that ends the run if they are.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.model.architecture import (
    Architecture,
    cannot_be_built,
    check_layers,
    find_architecture,
    library_errors,
)
from scoremode.engines.torch.model.attention import SINKS, choose_sinks
from scoremode.engines.torch.model.layer_recorder import Placeholder
from scoremode.engines.torch.model.skeleton import Skeleton, kept_dtype
from scoremode.engines.torch.weights.experts import choose_experts
from scoremode.errors import UnsupportedModel

_RANDOM = {
    "kaiming_normal_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_",
    "xavier_normal_", "xavier_uniform_",
}  # fmt: skip


def build_skeleton(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    attention: str | None = None,
    trust_remote_code: bool,
    is_there: bool = True,
) -> Skeleton:
    """The skeleton of a checkpoint's architecture, computing in `dtype` on `device`.

    - `attention`: the one way to compute it, None for the best that the model can be computed with.
    - `is_there`: whether the checkpoint has tensors, and not a config alone.

    Raises UnsupportedModel for one that transformers doesn't know as a causal language model, or
    whose decoder layers can't be told, and CheckpointError for one with more layers than tensors.
    """
    if is_there:
        check_layers(checkpoint)
    with library_errors(checkpoint, "built"):
        return _build_skeleton(checkpoint, dtype, device, attention, trust_remote_code)


def _build_skeleton(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    attention: str | None,
    trust_remote_code: bool,
) -> Skeleton:
    found = find_architecture(checkpoint, trust_remote_code=trust_remote_code)
    try:
        model, way = _build(checkpoint, found, dtype, attention, trust_remote_code)
    except ImportError as error:
        # An encoder may need a library that text doesn't: Gemma 3n's is one of timm's.
        alone = found.language_model()
        if alone is None:
            raise cannot_be_built(checkpoint, error) from None
        found = alone
        model, way = _build(checkpoint, found, dtype, attention, trust_remote_code)
    alone = found.language_model()
    if model.get_output_embeddings() is None and alone is not None:
        # A whole that hides its language model's head (Nemotron Omni's).
        found = alone
        model, way = _build(checkpoint, found, dtype, attention, trust_remote_code)
    model.eval()
    count = getattr(found.config.get_text_config(), "num_hidden_layers", None)
    layers_name = find_layers(model, count)
    if found.text_alone is not None:
        remove_encoders(model, layers_name)
    choose_experts(model)
    if attention is None and way == "eager" and choose_sinks(model, dtype, device):
        way = SINKS
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                kept = kept_dtype(model, f"{path}.{name}")
                module._buffers[name] = buffer.to(device, kept or buffer.dtype)
    return Skeleton(model, layers_name, way, device, found.text_alone)


def _build(
    checkpoint: Checkpoint,
    found: Architecture,
    dtype: torch.dtype,
    attention: str | None,
    trust_remote_code: bool,
) -> tuple[Any, str]:
    """The model without values, and how it computes attention."""
    # Checked here because SDPA drops a softcap without a word.
    text = found.config.get_text_config()
    softcapped = getattr(text, "attn_logit_softcapping", None) is not None
    ways = ["eager"] if softcapped else ["sdpa", "eager"]
    for way in ways if attention is None else [attention]:
        try:
            with _parameters_on_meta(), torch.device("cpu"), _NoInitialization():
                model = found.auto_class.from_config(
                    copy.deepcopy(found.config),
                    dtype=dtype,
                    attn_implementation=way,
                    trust_remote_code=trust_remote_code,
                )
        except ValueError as error:
            if way == "sdpa" and attention is None and "scaled_dot_product_attention" in str(error):
                continue
            raise cannot_be_built(checkpoint, error) from None
        return model, way
    raise AssertionError("eager attention is never refused")


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Registers every new parameter as a meta tensor; buffers stay real."""

    def to_meta(module: nn.Module, name: str, value: nn.Parameter) -> nn.Parameter | None:
        if value is None or value.is_meta:
            return None
        return nn.Parameter(value.detach().to("meta"), requires_grad=False)

    handle = register_module_parameter_registration_hook(to_meta)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        handle.remove()


class _NoInitialization(TorchFunctionMode):
    """Answers a random initialization of a meta tensor with that tensor.

    It has no values to set, and torch takes two thirds of a large model's construction to find so.
    Nor is memory asked for for experts: Llama 4's begin as zeros, 21 GB a layer that would be written;
    DeepSeek-V4-Pro's are 34 GB, which a machine may refuse.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _RANDOM:
            tensor = args[0] if args else kwargs.get("tensor")
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        # Sizes of a parameter of experts: no buffer has so many values.
        sizes = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
        is_three = len(sizes) == 3 and all(isinstance(size, int) for size in sizes)
        if func in (torch.zeros, torch.empty) and is_three and math.prod(sizes) >= 1 << 28:
            kwargs["device"] = "meta"
        return func(*args, **kwargs)


def find_layers(model: Any, count: int | None) -> str:
    """The name of the model's list of decoder layers.

    It is the outermost list of `count` modules that lies nearest to the input embedding: an encoder of
    images may have as many. Or else that of decoder layers by the library's mark for them, of which
    LongCat-Flash has half as many as it says, since it counts both attentions of each.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    embedding = model.get_input_embeddings()
    table = next((name for name, m in model.named_modules() if m is embedding), "")
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module)
    }
    named = _nearest([name for name in lists if len(lists[name]) == count], table)
    layers = [n for n in lists if all(isinstance(m, GradientCheckpointingLayer) for m in lists[n])]
    marked = _nearest(layers, table)
    found = named if len(named) == 1 else marked
    if len(found) != 1:
        raise UnsupportedModel(
            f"{type(model).__name__}: {len(named)} candidates for its list of {count} decoder layers"
        )
    return found[0]


def _nearest(names: list[str], table: str) -> list[str]:
    """The names that share most of their path with `table`, and of them the outermost."""

    def shared(name: str) -> int:
        pairs = zip(name.split("."), table.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    most = max(map(shared, names), default=0)
    near = [name for name in names if shared(name) == most]
    least = min((name.count(".") for name in near), default=0)
    return [name for name in near if name.count(".") == least]


class _LeftOut(Placeholder):
    """A stand-in for an encoder, which can't be run."""

    def __init__(self, model: str, name: str, module: nn.Module):
        super().__init__(module)
        self._words = f"{model}: its forward runs {name} for text alone, too"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModel(self._words)


def remove_encoders(model: Any, layers_name: str) -> None:
    """Takes everything out of a model that is not on the way from ids to logits.

    What stays is the smallest module that has the decoder layers and the input embedding, and the
    head.
    """
    embedding, path = model.get_input_embeddings(), layers_name.split(".")
    while path:
        path.pop()
        if any(module is embedding for module in model.get_submodule(".".join(path)).modules()):
            break
    kept = {id(model.get_output_embeddings()), id(embedding)}
    for depth in range(len(path)):
        parent = model.get_submodule(".".join(path[:depth]))
        for name, child in list(parent.named_children()):
            on_the_way = name == path[depth] or any(id(m) in kept for m in child.modules())
            if not on_the_way and next(child.parameters(), None) is not None:
                full_name = ".".join([*path[:depth], name])
                setattr(parent, name, _LeftOut(type(model).__name__, full_name, child))

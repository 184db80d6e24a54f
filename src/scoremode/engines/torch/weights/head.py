"""The model's head as a `Head`.

A head is a matrix for most models; some scale its product or cap it, which `head_probe` finds by the
model's own forward; `proofs` shows that nothing was missed.
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from scoremode.engines.torch.matmul.arithmetic import Arithmetic
from scoremode.engines.torch.model.head_probe import probe_head
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head
from scoremode.schemes.base import Dense, Quantizer

__all__ = ["HeadInput", "build_head", "head_names"]

# Final states [B, T, D] of B whole windows → the same as a head with quantized inputs sees them.
HeadInput = Callable[[torch.Tensor], torch.Tensor]


def build_head(
    skeleton: Skeleton,
    weights: WeightMap,
    slot: Slot,
    arithmetic: Arithmetic,
    vocabulary: int | None,
    own_logits: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[Head, HeadInput | None]:
    """The `Head` of the skeleton's model, over its first `vocabulary` entries, or all it has.

    `own_logits`: the model's own for ids [B, T], by its whole forward.

    With it what quantizes its input, where the checkpoint says so: the head's weight is float32
    then, code times scale, so that nothing rounds but the products' sums.
    """
    module = skeleton.head
    binding = weights.binding_of(module, "weight")
    if binding is None:
        raise UnsupportedModel(f"{type(module).__name__}: the output embedding has no weight")
    head_input: HeadInput | None = None
    if arithmetic.quantizes_input_of(binding.scheme):
        inputs = binding.scheme.inputs
        assert inputs is not None
        arithmetic.note(binding.scheme, "multiplied out, products in float32")
        weight, static = slot.factored(binding)
        head_input = partial(_quantized, inputs, static)
        arithmetic.windows.are_spanned |= inputs.spans_window
    else:
        weight = slot.kept(binding)
    bias = module._parameters.get("bias")
    name = type(skeleton.model).__name__
    shape = probe_head(name, module, len(weight), own_logits, skeleton.config, weight.device)
    entries = min(vocabulary or shape.width, shape.width)
    return Head(weight, bias, shape.scale, shape.softcap, entries), head_input


def _quantized(
    inputs: Quantizer, static: Mapping[str, torch.Tensor], states: torch.Tensor
) -> torch.Tensor:
    """float32 [B, T, D]: `states` quantized and multiplied out; behind them the sums that a weight's
    minimums are multiplied with."""
    quantized = inputs.quantize(states, static)
    dense = quantized.dense(inputs.codes.group).view(states.shape)
    for window, columns in enumerate(quantized.apart):
        dense[window, :, columns] = states[window, :, columns].float()
    if quantized.sums is not None:
        dense = torch.cat([dense, quantized.sums.view(*states.shape[:-1], -1)], -1)
    return dense


def head_names(skeleton: Skeleton, weights: WeightMap) -> tuple[str | None, str | None]:
    """The checkpoint's tensors that are the head's weight and bias as they are, None for others."""
    module = skeleton.head
    bindings = [weights.binding_of(module, name) for name in ("weight", "bias")]
    weight, bias = (
        next(iter(b.tensor_names().values()))
        if b is not None and isinstance(b.scheme, Dense)
        else None
        for b in bindings
    )
    return weight, bias

"""The model's head as a `Head`, and the proof that it is the same function.

A head is a matrix for most models; some scale its product or cap it. Those factors are read from
the config by the names that architectures use, and then not believed: the model's own forward and
ours are run on the same states with a small part of the weight, in float32, twice, once with the
weight magnified so that a softcap bends. A factor that was missed shows far above rounding.
"""

from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.skeleton import Skeleton
from scoremode.engines.torch.weights import Slot, WeightMap
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head
from scoremode.schemes.dense import Dense

__all__ = ["build_head", "check_head"]

_CHECK_ROWS, _CHECK_POSITIONS = 512, 8


def build_head(skeleton: Skeleton, weights: WeightMap, slot: Slot, vocabulary: int | None) -> Head:
    """The `Head` of the skeleton's model, over its first `vocabulary` entries, or all it has."""
    module = skeleton.head
    assert module is not None
    filling = weights.filling_of(module, "weight")
    if filling is None:
        raise UnsupportedModel(f"{type(module).__name__}: the output embedding has no weight")
    if isinstance(filling.scheme, Dense):
        (name,) = filling.tensor_names().values()
        weight = slot._fetch(name)
    else:
        weight = slot.dense(filling).clone()
    bias = module._parameters.get("bias")
    width = len(weight)
    scale, softcap = _factors(skeleton.config)
    return Head(weight, bias, scale, softcap, min(vocabulary or width, width))


def _factors(config: Any) -> tuple[float, float | None]:
    """Scale and softcap by the names transformers' configs use."""
    scale = 1.0
    if (value := getattr(config, "logit_scale", None)) is not None:  # cohere, cohere2
        scale *= value
    if (value := getattr(config, "logits_scaling", None)) is not None:  # granite and its kin
        scale /= value
    if (value := getattr(config, "lm_head_multiplier", None)) is not None:  # falcon_h1
        scale *= value
    softcap = getattr(config, "final_logit_softcapping", None)  # gemma2 and later
    return scale, softcap


def check_head(
    skeleton: Skeleton, weights: WeightMap, head: Head, ids: torch.Tensor, hidden: torch.Tensor
) -> None:
    """Compares `head` with the model's own on a few states [B, T, D] of the last layer.

    Raises UnsupportedModel where they disagree beyond float32 rounding.
    """
    module = skeleton.head
    assert isinstance(module, nn.Module)
    ids, hidden = ids[:1, :_CHECK_POSITIONS], hidden[:1, :_CHECK_POSITIONS]
    final = skeleton.finish(ids, hidden).float()
    rows = min(_CHECK_ROWS, len(head.weight))
    saved = dict(module._parameters)
    upcast = module.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    try:
        for magnify in (1.0, 32.0):
            part = Head(
                head.weight[:rows].float() * magnify,
                None if head.bias is None else head.bias[:rows].float(),
                head.scale,
                head.softcap,
                rows,
            )
            module._parameters["weight"] = nn.Parameter(part.weight, requires_grad=False)
            if part.bias is not None:
                module._parameters["bias"] = nn.Parameter(part.bias, requires_grad=False)
            own = skeleton.own_logits(ids, hidden).float()[0]
            ours = part.logits(final[0] @ part.weight.T, 0)
            if own.shape != ours.shape:
                raise UnsupportedModel(
                    f"{type(skeleton.model).__name__}: its head gives {own.shape[-1]} logits "
                    f"where its weight has {rows} rows"
                )
            limit = 1e-4 * float(own.abs().max()) + 1e-6
            difference = float((own - ours).abs().max())
            if difference > limit:
                raise UnsupportedModel(
                    f"{type(skeleton.model).__name__}: its own logits differ from ours by "
                    f"{difference:.3g} (allowed {limit:.1g}): its head is more than a matrix, a "
                    "scale and a softcap"
                )
    finally:
        upcast.remove()
        module._parameters.update(saved)

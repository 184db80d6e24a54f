"""The model's head as a `Head`.

A head is a matrix for most models; some scale its product or cap it. Those factors are read from
the config by the names that architectures use; `proofs` shows that none was missed.
"""

from typing import Any

from scoremode.engines.torch.skeleton import Skeleton
from scoremode.engines.torch.weights import Slot, WeightMap
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head

__all__ = ["build_head"]


def build_head(skeleton: Skeleton, weights: WeightMap, slot: Slot, vocabulary: int | None) -> Head:
    """The `Head` of the skeleton's model, over its first `vocabulary` entries, or all it has."""
    module = skeleton.head
    assert module is not None
    filling = weights.filling_of(module, "weight")
    if filling is None:
        raise UnsupportedModel(f"{type(module).__name__}: the output embedding has no weight")
    weight = slot.kept(filling)
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

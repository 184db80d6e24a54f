"""AWQ: inputs that are large get larger weights, whose rounding is finer for them.

Weights are multiplied, input by input, and what makes the inputs is divided: a norm's weight, or the
rows of the linear before. The power of the mean magnitude is searched for, by the outputs' errors.
Source: Lin et al. 2023, arXiv:2306.00978; without its search for clipping, and `o_proj` stays as it is,
for its inputs are shared by heads.
"""

from collections.abc import Mapping

import torch

from scoremode.demo.calibration import Inputs
from scoremode.demo.rounding import asymmetric

__all__ = ["scale_by_inputs"]

_STEPS = 10
# What makes the inputs → the linears of a layer that take them.
_MADE_BY = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}


def scale_by_inputs(
    tensors: dict[str, torch.Tensor], inputs: Mapping[str, Inputs], group_size: int
) -> None:
    """Rescales the dense `tensors` of a Llama in place; what it computes stays the same."""
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    for layer in sorted(layers):
        prefix = f"model.layers.{layer}"
        for maker, linears in _MADE_BY.items():
            names = [f"{prefix}.{linear}.weight" for linear in linears]
            of = inputs[names[0].removesuffix(".weight")]
            scale = _best([tensors[name].float() for name in names], of, group_size)
            made = f"{prefix}.{maker}.weight"
            by_row = scale if tensors[made].dim() == 1 else scale.unsqueeze(1)
            tensors[made] = (tensors[made].float() / by_row).to(tensors[made].dtype)
            for name in names:
                tensors[name] = (tensors[name].float() * scale).to(tensors[name].dtype)


def _best(weights: list[torch.Tensor], inputs: Inputs, group_size: int) -> torch.Tensor:
    """float32 [I]: the scale with the least sum of squared errors of the outputs."""
    magnitude = inputs.magnitude.clamp_min(1e-4).float()
    gram = inputs.gram.float()
    candidates = []
    for step in range(_STEPS):
        scale = magnitude ** (step / _STEPS)
        scale = scale / (scale.max() * scale.min()).sqrt()
        loss = 0.0
        for weight in weights:
            q, zero, unit = asymmetric(weight * scale, group_size)
            rounded = ((q - zero) * unit).flatten(1) / scale
            error = rounded - weight
            loss += float(((error @ gram) * error).sum())
        candidates.append((loss, step, scale))
    return min(candidates)[2]

"""AWQ and GPTQ in their simplest form, calibrated on a text that the tiny model wrote itself.

- AWQ (Lin et al. 2023, arXiv:2306.00978): weights are multiplied, input by input, and what makes the
  inputs is divided, a norm's weight or the rows of the linear before; so the weights of large inputs
  are rounded finer. The power of the mean magnitude is searched for, by the outputs' errors; there is
  no search for clipping, and `o_proj` stays as it is, for its inputs are shared by heads.
- GPTQ (Frantar et al. 2022, arXiv:2210.17323, algorithm 1): columns are rounded one after the other,
  and those to come make up for the error. No activation order, all columns in one block, each linear
  on the dense model's inputs.

The held-out text is measured, and no other comes with the package: `calibration.txt` was sampled from
the model, 24 passages of 256 tokens (`tools/calibration_text.py`), and is packaged so that every
machine quantizes alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import torch

from scoremode.demo.rounding import Tensors, asymmetric, qweight_by_column, symmetric_scale

# Tokens that the dense model reads at once.
_WINDOW = 256
# Share of the mean diagonal that is added to it, GPTQ's.
_DAMPING = 0.01
# Powers of the mean magnitude that AWQ tries, from 0 on.
_STEPS = 10
# What makes the inputs → the linears of a layer that take them.
_MADE_BY = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.up_proj": ("mlp.down_proj",),
}


@dataclass(frozen=True)
class Inputs:
    """Sums over a linear's inputs [n, I]: `gram` float64 [I, I], xᵀx over n; `magnitude` float64 [I],
    mean |x|."""

    gram: torch.Tensor
    magnitude: torch.Tensor


@lru_cache(maxsize=1)
def inputs_of_linears(source: Path, text: str | None = None) -> Mapping[str, Inputs]:
    """The sums over each linear's inputs that the dense model in `source` gives it on a text, by module
    name; None for the packaged one."""
    from transformers import AutoTokenizer

    if text is None:
        text = (resources.files("scoremode.demo") / "calibration.txt").read_text(encoding="utf-8")
    ids = torch.tensor(AutoTokenizer.from_pretrained(source)(text).input_ids)
    inputs: dict[str, Inputs] = {}

    def keep(name: str, x: torch.Tensor) -> None:
        x = x.flatten(0, 1).double()
        inputs[name] = Inputs(x.T @ x / len(x), x.abs().mean(0))

    observe(source, ids[: len(ids) // _WINDOW * _WINDOW].view(-1, _WINDOW), keep)
    return inputs


@torch.no_grad()
def observe(source: Path, ids: torch.Tensor, see: Callable[[str, torch.Tensor], None]) -> None:
    """Runs the dense model in `source` on `ids` [B, T]; `see` is called with the name of each linear
    of its layers and with its input [B, T, I]."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    # The command has a progress bar of its own.
    were_shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    finally:
        if were_shown:
            logging.enable_progress_bar()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):

            def hook(_, args: tuple[torch.Tensor, ...], name: str = name) -> None:
                see(name, args[0])

            module.register_forward_pre_hook(hook)
    model.model(ids)


def gptq(weight: torch.Tensor, gram: torch.Tensor, group_size: int) -> Tensors:
    """GPTQ: the tensors of a linear [O, I] in symmetric 4-bit groups; `gram` [I, I]: its inputs'."""
    left = weight.double().clone()
    hessian = gram.clone()
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    left[:, dead] = 0
    hessian.diagonal().add_(_DAMPING * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    upper = torch.linalg.cholesky(inverse, upper=True)
    codes = torch.empty(weight.shape, dtype=torch.int64)
    scales = []
    for column in range(weight.shape[1]):
        if column % group_size == 0:
            scales.append(symmetric_scale(left[:, column : column + group_size]))
        scale = scales[-1].double()
        codes[:, column] = (left[:, column] / scale).round().clamp(-8, 7)
        error = (left[:, column] - codes[:, column] * scale) / upper[column, column]
        left[:, column:] -= error.unsqueeze(1) * upper[column, column:]
    return qweight_by_column(codes + 8, torch.stack(scales))


def scale_by_inputs(
    tensors: dict[str, torch.Tensor], inputs: Mapping[str, Inputs], group_size: int
) -> None:
    """AWQ: rescales the dense `tensors` of a Llama in place; what it computes stays the same."""
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

"""The model's head as a `Head`, and a probe of what the model makes of its head's product.

A head is a matrix for most models; some scale its product, cap it softly, or both, and each names the
fields of its config in its own way (`logit_scale`, `logits_soft_cap`; `logits_scaling` divides in
Granite, multiplies in HyperCLOVA X and comes before the head in MiniCPM3). So no field is read: the
head's module is made to return chosen numbers, from so small that nothing bends to so large that every
cap is reached, and scale and softcap are what the logits of the model's own forward show. A number of
the config is only taken in place of a measured one that equals it to a few units in the last place.
`proofs` shows that nothing was missed.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.matmul.linears import Arithmetic
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head
from scoremode.schemes.base import Dense, Quantizer

# Powers of two that the head's products are multiplied by, a row each. The first row is for the scale,
# the last one for the cap, and those between for everything that neither explains.
_POWERS = (-40, -20, -10, -3, 0, 1, 2, 3, 4, 5, 6, 8, 20, 40, 60)
# Of a value: a few roundings in float32, and a tanh's few units in the last place.
_TOLERANCE = 2e-6
# Of a scale or a softcap that is measured, and the config's number.
_SNAP = 5e-7
# Final states [B, T, D] of B whole windows → the same as a head with quantized inputs sees them.
HeadInput = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class HeadShape:
    """`softcap(scale · product)` of the first `width` entries."""

    scale: float
    softcap: float | None
    width: int


def probe_head(
    name: str,
    module: nn.Module,
    rows: int,
    own_logits: Callable[[torch.Tensor], torch.Tensor],
    config: Any,
    device: torch.device,
) -> HeadShape:
    """Finds what becomes of the product of `module`, a head of so many `rows`.

    - `own_logits`: the model's own logits [B, T, V'] for ids [B, T].
    - `config`: whose numbers are taken for measured ones that equal them.

    Raises UnsupportedModel for logits that are anything else, saying what.
    """
    product = _products(rows, device)
    # Windows of two tokens: some models have few positions.
    ids = torch.zeros(len(product) // 2, 2, dtype=torch.int64, device=device)
    with _returning(module, product):
        logits = own_logits(ids)
    if logits.dim() != 3 or logits.shape[:2] != ids.shape or not 0 < logits.shape[2] <= rows:
        raise UnsupportedModel(
            f"{name}: its forward gives logits of shape {list(logits.shape)} for ids of shape "
            f"{list(ids.shape)} and a head of {rows} rows"
        )
    found = logits.flatten(0, 1).double().cpu()
    width = found.shape[1]
    given = product[:, :width].double().cpu()
    numbers = list(_numbers(config))
    cap = _softcap(found, numbers)
    scale = _scale(given, found, cap, numbers)
    if scale == 0:
        raise UnsupportedModel(f"{name}: its logits are the same whatever its head gives")
    _check(name, given, found, scale, cap)
    return HeadShape(scale, cap, width)


def _products(rows: int, device: torch.device) -> torch.Tensor:
    """float32 [powers + 1, rows]: zeros, then values of both signs around each power of two.

    Those of the first column are the powers themselves, which a scale is found by to the last bit.
    """
    generator = torch.Generator().manual_seed(0)
    mantissas = 1 + torch.rand(len(_POWERS), rows, generator=generator)
    mantissas *= torch.where(torch.rand(len(_POWERS), rows, generator=generator) < 0.5, -1, 1)
    mantissas[:, 0] = 1
    values = mantissas * torch.tensor(_POWERS).double().exp2().float()[:, None]
    return torch.cat((torch.zeros(1, rows), values)).to(device)


@contextmanager
def _returning(module: nn.Module, product: torch.Tensor) -> Iterator[None]:
    """A context in which the head's module returns `product`, a row a token, whatever it is given."""
    before = vars(module).get("forward")

    def forward(states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return product.view(*states.shape[:-1], -1).clone()

    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def _softcap(found: torch.Tensor, numbers: list[float]) -> float | None:
    """The value that the largest products become, if they don't go on growing."""
    largest, before = found[-1].abs(), found[-2].abs()
    cap = float(largest.median())
    if not 0 < cap < math.inf or float((largest / before - 1).abs().median()) > 1e-3:
        return None
    return _snapped(cap, numbers)


def _scale(
    given: torch.Tensor, found: torch.Tensor, cap: float | None, numbers: list[float]
) -> float:
    """The factor of the smallest products, which no cap bends."""
    ratios = found[1] / given[1]
    # tanh and a division each round; a product with a power of two doesn't.
    scale = float(ratios[0] if cap is None else ratios.median())
    return _snapped(scale, [1.0, *numbers, *(1.0 / n for n in numbers)])


def _snapped(value: float, numbers: list[float]) -> float:
    """The nearest of `numbers` if it is the same but for rounding, else the value as it is."""
    if not math.isfinite(value) or value == 0:
        return value
    nearest = min(numbers, key=lambda n: abs(n / value - 1), default=value)
    return nearest if abs(nearest / value - 1) <= _SNAP else value


def _check(
    name: str, given: torch.Tensor, found: torch.Tensor, scale: float, cap: float | None
) -> None:
    expected = given * scale
    if cap is not None:
        expected = cap * (expected / cap).tanh()
    same = (found - expected).abs() <= _TOLERANCE * expected.abs()
    if bool(same.all()):
        return
    wrong = (~same).any(dim=0)
    if not bool(wrong.all()):
        column = int(wrong.nonzero()[0])
        raise UnsupportedModel(
            f"{name}: its head makes something else of {int(wrong.sum())} of its {len(wrong)} logits "
            f"than of the others, of entry {column} first: it can't be one matrix, scale and softcap"
        )
    row, column = (int(i) for i in (~same).nonzero()[0])
    raise UnsupportedModel(
        f"{name}: its forward makes {float(found[row, column]):.6g} of a product of "
        f"{float(given[row, column]):.6g}: its head is more than a matrix, a scale and a softcap"
    )


def _numbers(config: Any) -> Iterator[float]:
    """The numbers of a config, those of nested ones last."""
    values = config.to_dict() if hasattr(config, "to_dict") else config
    nested = []
    for value in values.values():
        if isinstance(value, Mapping):
            nested.append(value)
        elif type(value) in (int, float) and value and math.isfinite(value):
            yield float(value)
    for value in nested:
        yield from _numbers(value)


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

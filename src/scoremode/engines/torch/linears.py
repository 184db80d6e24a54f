"""A linear that quantizes its input, in the place of the library's own.

The module stays where it is, with its bias and its hooks; only its forward is replaced. Its weight
parameter stays without data: a model that reaches past the forward for the weight fails instead of
computing with codes.
"""

from collections.abc import Mapping

import torch
from torch import nn

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.products import Product, choose_product
from scoremode.errors import UnsupportedModel
from scoremode.schemes.base import FactoredScheme, Scratch
from scoremode.schemes.codes import Quantized

__all__ = ["QuantizedMatmul", "quantize_forward"]


class QuantizedMatmul:
    """x · Wᵀ with both sides quantized, for one weight at a time.

    `load` gives it the weight and the static scales of its input, `unload` takes them away.
    """

    def __init__(self, scheme: FactoredScheme, device: Device, scratch: Scratch):
        assert scheme.inputs is not None
        self._inputs = scheme.inputs
        rows, columns = scheme.shape
        self.product: Product = choose_product(
            scheme.inputs.codes, scheme.codes, (rows, columns), device
        )
        self._scratch = scratch
        self._weight: Quantized | None = None
        self._static: Mapping[str, torch.Tensor] = {}

    def load(self, weight: Quantized, static: Mapping[str, torch.Tensor]) -> None:
        self._weight, self._static = weight, static

    def unload(self) -> None:
        self._weight, self._static = None, {}

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[..., O] in the dtype of `x` [..., I], rounded to it once, after the bias."""
        assert self._weight is not None, "a linear was used without its weight"
        quantized = self._inputs.quantize(x, self._static)
        y = self.product(quantized, self._weight, self._scratch)
        if bias is not None:
            y += bias.float()
        return y.to(x.dtype).view(*x.shape[:-1], -1)


def quantize_forward(linear: nn.Module, name: str, matmul: QuantizedMatmul) -> None:
    """Has `linear` compute by `matmul`. Raises UnsupportedModel for what is no plain linear."""
    if not isinstance(linear, nn.Linear) or type(linear).forward is not nn.Linear.forward:
        raise UnsupportedModel(
            f"{name} is a {type(linear).__name__}, and its inputs are quantized in the checkpoint: "
            "only plain linears can be; --arithmetic weights measures it without"
        )

    def forward(input: torch.Tensor) -> torch.Tensor:
        return matmul(input, linear._parameters.get("bias"))

    linear.forward = forward

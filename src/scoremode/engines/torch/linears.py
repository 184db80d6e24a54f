"""A linear that quantizes its input, in the place of the library's own.

The module stays where it is, with its bias and its hooks; only its forward is replaced. Its weight
parameter stays without data: a model that reaches past the forward for the weight fails instead of
computing with codes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from scoremode.engines.torch.device import Device
from scoremode.engines.torch.products import Product, choose_product
from scoremode.errors import UnsupportedModel
from scoremode.schemes.base import FactoredScheme, Scratch
from scoremode.schemes.codes import Quantized

__all__ = ["QuantizedMatmul", "Windows", "quantize_forward"]


class Windows:
    """Whether each window of a batch has a dynamic scale `per tensor` of its own, or all have one.

    Such a scale spans a whole window, so a state does depend on tokens after it, by that alone. The
    proof that it does not otherwise needs rows that share it.
    """

    def __init__(self) -> None:
        self.apart = True

    @contextmanager
    def together(self) -> Iterator[None]:
        self.apart = False
        try:
            yield
        finally:
            self.apart = True


class QuantizedMatmul:
    """x · Wᵀ with both sides quantized, for one weight at a time.

    `load` gives it the weight, the static scales of its input and memory to work in; `unload` takes
    them away.
    """

    def __init__(self, scheme: FactoredScheme, device: Device, windows: Windows):
        assert scheme.inputs is not None
        self.scheme = scheme
        self.inputs = scheme.inputs
        rows, columns = scheme.shape
        self.product: Product = choose_product(
            scheme.inputs.codes, scheme.codes, (rows, columns), device
        )
        self._windows = windows
        self._loaded: tuple[Quantized, Mapping[str, torch.Tensor], Scratch] | None = None

    def load(self, weight: Quantized, static: Mapping[str, torch.Tensor], scratch: Scratch) -> None:
        self._loaded = weight, static, scratch

    def unload(self) -> None:
        self._loaded = None

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """[..., O] in the dtype of `x` [..., I], rounded to it once, after the bias."""
        assert self._loaded is not None, "a linear was used without its weight"
        weight, static, scratch = self._loaded
        rows = x if self._windows.apart else x.reshape(1, -1, x.shape[-1])
        quantized = self.inputs.quantize(rows, static, self.product.dtype)
        y = self.product(quantized, weight, scratch)
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
        if matmul.inputs.spans_window and input.dim() != 3:
            raise UnsupportedModel(
                f"{name} gets its tokens as {list(input.shape)}, its windows not apart, and its input "
                f"({matmul.inputs.label}, dynamic) has a scale a window: not supported; "
                "--arithmetic weights measures it without"
            )
        return matmul(input, linear._parameters.get("bias"))

    linear.forward = forward

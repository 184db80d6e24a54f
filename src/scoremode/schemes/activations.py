"""Quantized activations: what a checkpoint says of a linear's input, and the quantizer that does it.

Everything is computed in float32 from the input as it comes, codes and scales as compressed-tensors'
fake-quantized forward computes them in that dtype: scale from the extremes, division by it, clamp,
round half to even. What is returned are codes and scales, apart: the fake-quantized value is their
product, and a linear needs only the codes' products.
Source: compressed-tensors 0.20, `compute_dynamic_scales_and_zp`, `calculate_qparams`, `fake_quantize`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scoremode.schemes.codes import Codes, Quantized
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["Inputs", "mx_exponents", "round_float"]

_FLOAT_MAX = {4: 6.0, 6: 7.5, 8: 448.0}
# floor(log2(max)): where an MX scale puts the largest magnitude of a group.
_MX_OFFSET = {4: 2, 6: 2, 8: 8}
# Largest scale of a group's, and what stands for a scale of zero (of float8's, and of float32's).
_SCALE_MAX, _SCALE_TINY = 448.0, 0.125
_EPS = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Inputs:
    """How the input of one linear is quantized.

    - `tensors`: suffixes of the static scales and zero points that the checkpoint holds for it.
    """

    format: TensorFormat
    tensors: tuple[str, ...]

    @property
    def label(self) -> str:
        """Such as `int8 token`, `float8 tensor static`."""
        f = self.format
        by = f"group {f.group_size}" if f.group_size else f.strategy
        how = {False: " static", "local": " local"}.get(f.dynamic, "")
        return f"{f.type}{f.bits} {by}{how}{'' if f.symmetric else ' asymmetric'}"

    @property
    def scales(self) -> tuple[str, ...]:
        """Those of `tensors` that are no zero points."""
        return tuple(name for name in self.tensors if name.endswith("_scale"))

    @property
    def spans_window(self) -> bool:
        """Whether all tokens of a window share a scale that is made of them."""
        return self.format.strategy == "tensor" and self.format.dynamic is True

    @property
    def codes(self) -> Codes:
        f = self.format
        if f.type == "int":
            # A zero point is any int8, so that less of it is no int8 any more.
            return Codes("int", (1 << (f.bits - 1)) if f.symmetric else 255, f.group_size)
        # A power of two and a float8 scale are part of the code, exact in bfloat16.
        local = f.is_mx or f.strategy == "tensor_group"
        kind = "float8" if f.bits == 8 and not local else "float"
        return Codes(kind, None, None if local else f.group_size)

    def quantize(self, x: torch.Tensor, tensors: Mapping[str, torch.Tensor]) -> Quantized:
        """Codes and scales of `x` float [..., I], rows flattened to [N, I].

        `tensors` are those of `self.tensors` by suffix, on the device of `x`. A dynamic scale `per
        tensor` is one for each window: `x` is [B, T, I] then, and [N, I] counts as one window.
        """
        f = self.format
        windows = len(x) if x.dim() == 3 else 1
        x = x.float().reshape(-1, x.shape[-1])
        if f.type == "int":
            return self._integers(x, windows, tensors)
        if f.strategy == "tensor_group":
            return _local(x, tensors["input_global_scale"].float().view(1, 1), f.group_size or 16)
        if f.is_mx:
            return _mx(x, f.bits, f.group_size or 32)
        return self._floats(x, windows, tensors)

    def _floats(
        self, x: torch.Tensor, windows: int, tensors: Mapping[str, torch.Tensor]
    ) -> Quantized:
        grouped = self._grouped(x)
        if "input_scale" in self.tensors:
            scale = tensors["input_scale"].float().view(1, 1)
        else:
            scale = _nonzero(self._largest(grouped, windows) / _FLOAT_MAX[self.format.bits])
        codes = round_float(grouped / scale.unsqueeze(2), self.format.bits)
        return Quantized(codes.flatten(1), scale)

    def _integers(
        self, x: torch.Tensor, windows: int, tensors: Mapping[str, torch.Tensor]
    ) -> Quantized:
        f = self.format
        low, high = -(1 << (f.bits - 1)), (1 << (f.bits - 1)) - 1
        grouped = self._grouped(x)
        zero_point: torch.Tensor | None = None
        if "input_scale" in self.tensors:
            scale = tensors["input_scale"].float().view(1, 1)
            if not f.symmetric:
                zero_point = tensors["input_zero_point"].float().view(1, 1)
        elif f.symmetric:
            scale = _nonzero(self._largest(grouped, windows) / ((high - low) / 2))
        else:
            smallest = self._reduced(grouped.amin(2).clamp_max_(0), windows, torch.amin)
            largest = self._reduced(grouped.amax(2).clamp_min_(0), windows, torch.amax)
            raw = (largest - smallest) / (high - low)
            # All zeros have no range: any zero point gives them back.
            zero_point = (low - smallest / raw).nan_to_num(low).clamp_(low, high).round_()
            scale = _nonzero(raw)
        codes = grouped / scale.unsqueeze(2)
        if zero_point is not None:
            codes += zero_point.unsqueeze(2)
        codes = codes.clamp_(low, high).round_()
        if zero_point is not None:
            return Quantized((codes - zero_point.unsqueeze(2)).flatten(1), scale)
        if "input_scale" in self.tensors:
            # An int8 can't be NaN, so its row's scale is; a dynamic one is by itself.
            scale = torch.where(codes.sum((1, 2)).isnan().view(-1, 1), torch.nan, scale)
        return Quantized(codes.flatten(1).to(torch.int8), scale)

    def _grouped(self, x: torch.Tensor) -> torch.Tensor:
        """[N, groups, columns of one]."""
        return x.unflatten(1, (-1, self.format.group_size or x.shape[1]))

    def _largest(self, grouped: torch.Tensor, windows: int) -> torch.Tensor:
        """Largest magnitudes [N, groups]."""
        return self._reduced(grouped.abs().amax(2), windows, torch.amax)

    def _reduced(self, extremes: torch.Tensor, windows: int, reduce) -> torch.Tensor:
        """`extremes` [N, groups], those of a window made one where the scale is per tensor."""
        if not self.spans_window:
            return extremes
        by_window = extremes.view(windows, -1, 1)
        return reduce(by_window, 1, keepdim=True).expand_as(by_window).reshape(-1, 1)


def round_float(x: torch.Tensor, bits: int) -> torch.Tensor:
    """`x` float32 clamped and rounded to e2m1, e2m3 or e4m3, half to even; e4m3 as float8."""
    limit = _FLOAT_MAX[bits]
    x = x.clamp(-limit, limit)
    if bits == 8:
        return x.to(torch.float8_e4m3fn)
    # The step between neighbours, by the exponent, which is 0 at least: below lie subnormals.
    mantissa = {4: 1, 6: 3}[bits]
    exponent = torch.frexp(x).exponent.sub_(1).clamp_min_(0)
    step = torch.ldexp(torch.ones_like(x), exponent - mantissa)
    return (x / step).round_().mul_(step)


def _local(x: torch.Tensor, whole: torch.Tensor, size: int) -> Quantized:
    """NVFP4: e2m1 under a float8 scale a group, under a global one that divides."""
    grouped = x.unflatten(1, (-1, size))
    scale = grouped.abs().amax(2) / _FLOAT_MAX[4] * whole
    scale = scale.clamp_max(_SCALE_MAX).to(torch.float8_e4m3fn).float()
    scale = torch.where(scale == 0, _SCALE_TINY, scale).unsqueeze(2)
    codes = round_float(grouped / (scale / whole.unsqueeze(2)), 4)
    return Quantized((codes * scale).flatten(1), 1 / whole)


def mx_exponents(largest: torch.Tensor, bits: int) -> torch.Tensor:
    """E8M0 codes int32 for groups whose largest magnitudes are `largest` float32.

    Adding half a step of the element's mantissa carries into the exponent where the largest
    magnitude would round up to the next power of two.
    """
    mantissa = 3 if bits == 6 else 1
    raised = largest.contiguous().view(torch.int32) + (1 << (23 - mantissa - 1))
    return (raised >> 23).sub_(_MX_OFFSET[bits]).clamp_(0, 254)


def _mx(x: torch.Tensor, bits: int, size: int) -> Quantized:
    """MXFP4/6/8: a power of two a group, from the largest magnitude rounded to one."""
    grouped = x.unflatten(1, (-1, size))
    exponent = mx_exponents(grouped.abs().amax(2), bits)
    scale = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent - 127)
    codes = round_float(grouped / scale.unsqueeze(2), bits).float()
    return Quantized((codes * scale.unsqueeze(2)).flatten(1), x.new_ones(1, 1))


def _nonzero(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, _EPS, scale)

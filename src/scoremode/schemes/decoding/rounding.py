"""Rounding to small floats: e2m1, e2m3, e4m3, e5m2, and powers of two a group."""

import torch

__all__ = ["E5M2_MAX", "FLOAT_MAX", "mx_exponents", "round_e5m2", "round_float"]

# The largest magnitude by the element's bits.
FLOAT_MAX = {4: 6.0, 6: 7.5, 8: 448.0}
_MANTISSA = {4: 1, 6: 3, 8: 3}
# The exponent below which numbers are subnormal.
_LOWEST = {4: 0, 6: 0, 8: -6}
E5M2_MAX = 57344.0
# floor(log2(max)): where an MX scale puts the largest magnitude of a group.
_MX_OFFSET = {4: 2, 6: 2, 8: 8}


def round_float(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Clamps and rounds `x` float32 in place to e2m1, e2m3 or e4m3, half to even; returns it.

    The step between neighbours is a power of two that the exponent gives, so that all is exact but
    the rounding; a conversion to float8 and back gives the same and takes ten times as long on a CPU.
    """
    return _round(x, FLOAT_MAX[bits], _MANTISSA[bits], _LOWEST[bits])


def round_e5m2(x: torch.Tensor) -> torch.Tensor:
    """Clamps and rounds `x` float32 in place to e5m2, half to even; returns it."""
    return _round(x, E5M2_MAX, 2, -14)


def _round(x: torch.Tensor, largest: float, mantissa: int, lowest: int) -> torch.Tensor:
    x.clamp_(-largest, largest)
    step = x.view(torch.int32) & 0x7F800000
    step.clamp_min_((127 + lowest) << 23).sub_(mantissa << 23)
    step = step.view(torch.float32)
    return x.div_(step).round_().mul_(step)


def mx_exponents(largest: torch.Tensor, bits: int) -> torch.Tensor:
    """E8M0 codes int32 for groups whose largest magnitudes are `largest` float32.

    Adding half a step of the element's mantissa carries into the exponent where the largest
    magnitude would round up to the next power of two.
    """
    mantissa = 3 if bits == 6 else 1
    raised = largest.contiguous().view(torch.int32) + (1 << (23 - mantissa - 1))
    return (raised >> 23).sub_(_MX_OFFSET[bits]).clamp_(0, 254)

"""A scheme's weight by the one CUDA decoder, where there are a GPU and Triton for it."""

from collections.abc import Mapping
from typing import Protocol

import torch

from scoremode import fallback
from scoremode.schemes.decoding.elements import Elements
from scoremode.schemes.decoding.scaling import Scaling

__all__ = ["Packed", "by_kernel"]


class Packed(Protocol):
    """A Scheme whose codes the kernel can read: `elements` of the first of its `tensors`."""

    @property
    def label(self) -> str: ...
    @property
    def tensors(self) -> tuple[str, ...]: ...
    @property
    def elements(self) -> Elements: ...
    @property
    def scaling(self) -> Scaling: ...


def by_kernel(
    verb: str,
    scheme: Packed,
    tensors: Mapping[str, torch.Tensor],
    out: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    whole: torch.Tensor | None = None,
    rounding: torch.dtype = torch.float32,
) -> bool:
    """Fills `out` [O, I] by the kernel, as `kernels.decode` says, with the zero points and the order of
    columns that `tensors` have. The record names it by `verb` and the scheme's label.

    Returns whether it did: where not, nothing was written, and the scheme's plain torch has to.
    """

    def run() -> None:
        # Imports Triton, which need not be there.
        from scoremode.schemes.decoding import kernels

        kernels.decode(
            out,
            tensors[scheme.tensors[0]],
            scheme.elements,
            scheme.scaling,
            scale=scale,
            whole=whole,
            zero_point=tensors.get("weight_zero_point"),
            g_idx=tensors.get("weight_g_idx"),
            rounding=rounding,
        )

    return fallback.attempt(f"{verb} {scheme.label}", out.device, run)

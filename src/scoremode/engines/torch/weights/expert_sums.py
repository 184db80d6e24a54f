"""A Triton kernel for what tokens get from their experts."""

# Triton comes with the CUDA builds of torch.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false

import torch
import triton
import triton.language as tl

__all__ = ["weighted_sums"]

_TILE = 1024


def weighted_sums(
    out: torch.Tensor, outputs: torch.Tensor, places: torch.Tensor, weights: torch.Tensor
) -> None:
    """Fills `out` [N, D] with each token's weighted outputs, added up in float32 and rounded once.

    - `outputs` [N·K, D]: of all experts, bfloat16 or float16 like `out`, contiguous.
    - `places` int64 [N, K]: the rows of a token's choices, in the order in which they are added.
    - `weights` [N, K]: float32, or of the dtype of `outputs`; each product is rounded to it.
    """
    width = out.shape[-1]
    if len(out):
        _weighted_sums[(len(out), triton.cdiv(width, _TILE))](
            out, outputs, places.contiguous(), weights.contiguous(), width,
            choices=places.shape[1], tile=_TILE, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip


@triton.jit
def _weighted_sums(out, outputs, places, weights, width, choices: tl.constexpr, tile: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = column < width
    total = tl.zeros((tile,), tl.float32)
    for k in tl.static_range(choices):
        row = tl.load(places + token * choices + k) * width
        weight = tl.load(weights + token * choices + k)
        value = tl.load(outputs + row + column, mask=inside, other=0.0).to(tl.float32)
        total += (value * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)

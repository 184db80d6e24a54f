"""LLM.int8's arithmetic on one window once more, by plain numpy in float64."""

from typing import NamedTuple

import numpy as np
import torch

# What bitsandbytes 0.50's portable code has for 1 / 127², where its CUDA kernel has 6.200012e-05.
LIBRARY_UNIT = 6.200124e-05


class Window(NamedTuple):
    """Codes int [T, I], largest magnitudes float32 [T], columns apart, and the product [T, O]."""

    codes: np.ndarray
    largest: np.ndarray
    columns: np.ndarray
    y: torch.Tensor


def one_window(
    x: torch.Tensor,
    weight: torch.Tensor,
    largest: torch.Tensor,
    bias: torch.Tensor | None,
    threshold: float,
    unit: float = 1 / 127**2,
) -> Window:
    """`x` [T, I] in the compute dtype, `weight` int8 [O, I] under `largest` float32 [O]."""
    half = x.to(torch.float16).numpy()
    outlier = (np.abs(half) >= np.float16(threshold)) & (threshold > 0)
    kept = np.where(outlier, 0, half).astype(np.float32)
    top = np.abs(kept).max(1)
    with np.errstate(divide="ignore"):
        steps = np.where(top > 0, np.float32(1) / top * np.float32(127), np.float32(0))
    columns = np.flatnonzero(outlier.any(0))
    codes = np.rint(kept * steps[:, None]).astype(np.int64)
    codes[:, columns] = 0
    scales = top.astype(np.float64)[:, None] * largest.double().numpy()
    y = torch.from_numpy(codes @ weight.numpy().astype(np.int64).T * scales * unit)
    y = y if bias is None else y + bias.double()
    y = y.to(x.dtype)
    if len(columns):
        dense = weight.numpy().astype(np.float32) * largest.numpy()[:, None]
        dense = torch.from_numpy(dense * np.float32(7.874015718698502e-3)).to(x.dtype)
        y = (y.double() + x[:, columns].double() @ dense[:, columns].double().T).to(x.dtype)
    return Window(codes, top, columns, y)

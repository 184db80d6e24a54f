"""Formats of keys and values by other means than the engine's: numpy, torch's float8, the gguf package,
Sylvester's matrix."""

import gguf
import numpy as np
import torch


def states(dtype: torch.dtype = torch.float32, size: int = 64) -> torch.Tensor:
    """[2, 3, 37, D] with large channels, a head of zeros, tied extremes and tiny values."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 37, size, generator=generator)
    x[..., 5] *= 30
    x[0, 1] *= 1e-6
    x[1, 2, 3] = 0
    x[1, 0, 7, :4] = torch.tensor([4.0, -4.0, 4.0, -4.0])
    x[1, 0, 7, 4:] = 1
    x[1, 0, 8] = 2.5
    return x.to(dtype)


def float8(x: np.ndarray, kind: torch.dtype = torch.float8_e4m3fn) -> np.ndarray:
    """Rounded by torch's own conversion, which this package does without."""
    top = torch.finfo(kind).max
    return torch.from_numpy(np.clip(x, -top, top)).to(kind).float().numpy()


def e2m1(x: np.ndarray) -> np.ndarray:
    """The nearest of its eight magnitudes, of two the one with the even code."""
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    away = np.abs(np.abs(x.astype(np.float64))[..., None] - values)
    code = np.where(away == away.min(-1, keepdims=True), np.arange(8) % 2, 2).argmin(-1)
    return np.copysign(values[code], x).astype(np.float32)


def hadamard(many: int) -> np.ndarray:
    """[n, n]: −1 for as many common ones of row and column."""
    ones = [[(i & j).bit_count() for j in range(many)] for i in range(many)]
    return (-1.0) ** np.array(ones)


def of_numpy(x: np.ndarray, name: str, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """float32 [..., D] of the same, by other means than the engine's."""
    f32 = np.float32
    if name in ("fp8_e4m3", "fp8_e5m2"):
        kind = torch.float8_e4m3fn if name == "fp8_e4m3" else torch.float8_e5m2
        return float8(x / f32(scale), kind) * f32(scale)
    if name == "fp8_e4m3-token":
        each = np.maximum(np.abs(x).max(-1, keepdims=True) / f32(448), f32(1e-6))
        return float8(x * (f32(1) / each)) * each
    if name == "int8-token":
        each = np.maximum(np.abs(x).max(-1, keepdims=True) / f32(127), f32(1e-6))
        q = x * (f32(1) / each)
        q = np.clip(np.where(q >= 0, q + f32(0.5), q - f32(0.5)), -128, 127).astype(np.int8)
        return q.astype(f32) * each
    if name == "int8":
        return np.clip(np.rint(x / f32(scale)), -128, 127).astype(f32) * f32(scale)
    if name.startswith("int"):
        bits, group = int(name[3]), int(name.split("g")[1])
        g = x.reshape(*x.shape[:-1], -1, group)
        low, high = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
        step = ((high - low) / f32(2**bits - 1)).astype(np.float16).astype(f32)
        low = low.astype(np.float16).astype(f32)
        with np.errstate(divide="ignore", invalid="ignore"):
            q = np.where(step == 0, 0, np.rint(np.clip((g - low) / step, 0, 2**bits - 1)))
        return (q.astype(f32) * step + low).reshape(x.shape)
    if name == "nvfp4":
        g = x.reshape(*x.shape[:-1], -1, 16)
        each = float8(np.abs(g).max(-1, keepdims=True) / (f32(scale) * f32(6))) * f32(scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            q = np.clip(g / each, -6, 6)
        return np.where(each == 0, 0, e2m1(np.nan_to_num(q)) * each).reshape(x.shape)
    kind = gguf.GGMLQuantizationType[name.upper()]
    return gguf.dequantize(gguf.quantize(x, kind), kind)

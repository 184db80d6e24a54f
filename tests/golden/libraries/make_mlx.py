"""Writes mlx.safetensors: weights as mlx 0.32.4 stores them, and its own dense ones as
`CASE.dense`.

Needs a CPU, with Linux or macOS:

    pip install torch==2.13.0 mlx[cpu]==0.32.4
    python make_mlx.py
"""

from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

OUT = Path(__file__).with_name("mlx.safetensors")
DTYPES = {
    "bf16": (mx.bfloat16, torch.bfloat16),
    "f16": (mx.float16, torch.float16),
    "f32": (mx.float32, torch.float32),
}


def to_torch(array: mx.array) -> torch.Tensor:
    if array.dtype in (mx.uint32, mx.uint8):
        return torch.from_numpy(np.array(array))
    dtypes = dict(DTYPES.values())
    return torch.from_numpy(np.array(array.astype(mx.float32))).to(dtypes[array.dtype])


def main() -> None:
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    cases = {}
    for i, bits in enumerate((2, 3, 4, 5, 6, 8)):
        for j, size in enumerate((32, 64, 128)):
            name, (dtype, _) = list(DTYPES.items())[(i + j) % 3]
            weight = mx.random.normal((5, 128 if size == 128 else 3 * size)).astype(dtype)
            weight[0] = 0
            packed, scales, biases = mx.quantize(weight, group_size=size, bits=bits)
            dense = mx.dequantize(packed, scales, biases, group_size=size, bits=bits)
            cases[f"{bits}-{size}-{name}"] = (packed, scales, biases, dense)
    for mode in ("mxfp4", "nvfp4", "mxfp8"):
        weight = mx.random.normal((5, 96)).astype(mx.bfloat16)
        packed, scales = mx.quantize(weight, mode=mode)
        # Every code under many scales: all powers of two but the last, or all e4m3 without a sign.
        top = 127 if mode == "nvfp4" else 255
        packed = mx.random.randint(0, 1 << 31, (top, packed.shape[1])).astype(mx.uint32)
        if mode == "mxfp8":
            # No NaN.
            packed = packed & 0x7E7E7E7E
        scales = mx.broadcast_to(mx.arange(top)[:, None], (top, scales.shape[1])).astype(mx.uint8)
        dense = mx.dequantize(packed, scales, mode=mode)
        cases[mode] = (packed, scales, None, dense)
    tensors = {}
    for case, (packed, scales, biases, dense) in cases.items():
        found = {"weight": packed, "scales": scales, "biases": biases, "dense": dense}
        tensors |= {f"{case}.{k}": to_torch(v).clone() for k, v in found.items() if v is not None}
    save_file(tensors, OUT, metadata={"mlx": version("mlx")})


if __name__ == "__main__":
    main()

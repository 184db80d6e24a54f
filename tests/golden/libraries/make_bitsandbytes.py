"""Writes bitsandbytes.safetensors: modules as bitsandbytes 0.50.0 stores them, and its own dense
weights.

`CASE.weight…` and `CASE.SCB` are what it writes to a checkpoint, `CASE.dense` what it dequantizes
to. Rows that are no whole number of blocks go through its portable code: that for CPUs with AVX512
has blocks begin anew with each row (0.50.0), where its quantizer and its CUDA kernels run on. Needs
a CPU only:

    pip install torch==2.13.0 bitsandbytes==0.50.0
    python make_bitsandbytes.py
"""

from importlib.metadata import version
from pathlib import Path

import bitsandbytes.functional as F
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from safetensors.torch import save_file

OUT = Path(__file__).with_name("bitsandbytes.safetensors")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# Whole blocks a row, blocks over several rows, a short last block, an odd row, more than 256
# blocks.
SHAPES = [(6, 128), (6, 96), (7, 50), (5, 27), (130, 128)]
STORAGE = {(6, 128): torch.bfloat16, (130, 128): torch.float32}


def four_bit(kind: str, nested: bool, shape: tuple[int, int], dtype: torch.dtype, blocksize: int):
    weight = torch.randn(shape).to(dtype)
    # A block that is nothing but zeros.
    weight.view(-1)[:blocksize] = 0
    packed, state = F.quantize_4bit(
        weight, quant_type=kind, compress_statistics=nested, blocksize=blocksize,
        quant_storage=STORAGE.get(shape, torch.uint8),
    )  # fmt: skip
    stored = {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
    if shape[1] % blocksize == 0:
        dense = F.dequantize_4bit(packed, state)
    else:
        absmax = state.absmax
        if nested:
            absmax = F.dequantize_blockwise(absmax, state.state2) + state.offset
        flat = packed.view(torch.uint8).reshape(-1)
        code = state.code.float()
        dense = _dequantize_4bit_compute(flat, absmax, code, blocksize, shape, dtype)
    return {"weight": packed, "dense": dense} | stored


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for kind in ("nf4", "fp4"):
        for nested in (False, True):
            for i, shape in enumerate(SHAPES):
                name, dtype = list(DTYPES.items())[i % 3]
                blocksize = 32 if shape == (5, 27) else 64
                case = f"{kind}-{'double-' if nested else ''}{name}-{shape[0]}x{shape[1]}"
                found = four_bit(kind, nested, shape, dtype, blocksize)
                tensors |= {f"{case}.{k}": v.contiguous() for k, v in found.items()}
    for name, dtype in DTYPES.items():
        weight = torch.randn(9, 45).to(torch.float16)
        weight[4] = 0
        codes, largest, _ = F.int8_vectorwise_quant(weight)
        dense = F.int8_vectorwise_dequant(codes, largest).to(dtype)
        tensors |= {
            f"int8-{name}.weight": codes,
            f"int8-{name}.SCB": largest,
            f"int8-{name}.weight_format": torch.tensor(0, dtype=torch.uint8),
            f"int8-{name}.dense": dense,
        }
    save_file(tensors, OUT, metadata={"bitsandbytes": version("bitsandbytes")})


if __name__ == "__main__":
    main()

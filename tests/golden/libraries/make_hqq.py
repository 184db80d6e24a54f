"""Writes hqq.safetensors: linears as hqq 0.2.8 stores them, and its own dense weights as
`CASE.dense`.

Needs a CPU only:

    pip install torch==2.13.0 hqq==0.2.8
    python make_hqq.py
"""

from importlib.metadata import version
from pathlib import Path

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from safetensors.torch import save_file

OUT = Path(__file__).with_name("hqq.safetensors")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
BITS = [8, 6, 4, 3, 2, 1.58, 1]


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for i, bits in enumerate(BITS):
        for axis in (0, 1):
            # Groups that a row's end cuts, of which 3 bits have a last word with room left.
            for rows, columns, size in ((24, 96, 32), (16, 40, 16)):
                name, dtype = list(DTYPES.items())[(i + axis) % 3]
                linear = torch.nn.Linear(columns, rows, bias=axis == 0)
                linear.weight.data[0] = 0
                config = BaseQuantizeConfig(
                    nbits=bits, group_size=size, axis=axis, view_as_float=rows == 16 and axis == 0
                )
                made = HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
                stored = made.state_dict()
                stored = {k: v for k, v in stored.items() if v is not None}
                dense = Quantizer.dequantize(made.W_q, made.meta)
                case = f"{bits}-axis{axis}-{name}-{rows}x{columns}".replace(".", "_")
                tensors |= {f"{case}.{k}": v.contiguous() for k, v in stored.items()}
                tensors[f"{case}.dense"] = dense.contiguous()
    tensors = {k: v.detach().clone() for k, v in tensors.items()}
    save_file(tensors, OUT, metadata={"hqq": version("hqq")})


if __name__ == "__main__":
    main()

"""Writes llm_int8.safetensors: products as bitsandbytes 0.50.0 computes them on a CPU, of one window.

Of each case `x` [1, T, I], the stored `weight`, `SCB` and `bias`, the `threshold`; what its quantizer
makes of `x`, `codes`, `largest` and `columns` (those apart), and its forward's `y`. The windows have
columns of outliers, a value that only float16 makes one, one beyond float16, a token of zeros and one
with nothing but an outlier; a single token has one, too. Needs a CPU only:

    pip install torch==2.13.0 bitsandbytes==0.50.0
    python make_llm_int8.py
"""

from importlib.metadata import version
from pathlib import Path

import bitsandbytes as bnb
import bitsandbytes.functional as F
import torch
from safetensors.torch import save_file

OUT = Path(__file__).with_name("llm_int8.safetensors")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# Tokens, inputs, outputs.
SHAPES = [(1, 40, 16), (7, 45, 9), (19, 64, 24)]
# None apart, the usual one, one that float16 rounds.
THRESHOLDS = [0.0, 6.0, 5.3]


def window(tokens: int, inputs: int, threshold: float, dtype: torch.dtype) -> torch.Tensor:
    x = torch.randn(1, tokens, inputs)
    if tokens > 1:
        x[0, 1, 3] = -17
        x[0, 2:5, 11] = torch.tensor([40.0, 0.5, -6.0])
        x[0, 3] = 0
        # Float16 has steps of 1/256 there.
        x[0, 4, 20] = 5.9995
        x[0, 5] = 0
        x[0, 5, 3] = 8
        if dtype != torch.float16 and threshold:
            x[0, 0, 7] = 70_000
    else:
        x[0, 0, 5] = 9
    return x.to(dtype)


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for shape in SHAPES:
        tokens, inputs, outputs = shape
        for name, dtype in DTYPES.items():
            for threshold in THRESHOLDS:
                x = window(tokens, inputs, threshold, dtype)
                weight = 0.3 * torch.randn(outputs, inputs)
                weight[2] = 0
                codes, largest, _ = F.int8_vectorwise_quant(weight.half())
                bias = torch.randn(outputs).to(dtype) if tokens != 7 else None
                state = bnb.MatmulLtState()
                state.CB, state.SCB, state.threshold = codes, largest, threshold
                # While training a CPU multiplies without quantizing.
                state.has_fp16_weights = state.is_training = False
                y = bnb.matmul(x, codes, state=state, bias=bias)
                # A copy: the quantizer writes to what it is given.
                ours, rows, columns = F.int8_vectorwise_quant(x[0].half().clone(), threshold)
                case = f"{name}-{'x'.join(map(str, shape))}-from{threshold:g}".replace(".", "_")
                found = {"x": x, "weight": codes, "SCB": largest, "y": y, "codes": ours}
                found |= {
                    "largest": rows,
                    "threshold": torch.tensor(threshold, dtype=torch.float64),
                }
                found |= {} if columns is None else {"columns": columns}
                found |= {} if bias is None else {"bias": bias}
                tensors |= {f"{case}.{k}": v.contiguous() for k, v in found.items()}
    save_file(tensors, OUT, metadata={"bitsandbytes": version("bitsandbytes")})


if __name__ == "__main__":
    main()

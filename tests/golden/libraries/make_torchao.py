"""Writes torchao.safetensors: weights as torchao 0.18 stores them, and its own dense ones as
`CASE.dense`.

What it writes into the file's metadata is here a tensor of bytes, `CASE.metadata`. Needs a CPU
only:

    pip install torch==2.13.0 torchao==0.18.0
    python make_torchao.py
"""

from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

OUT = Path(__file__).with_name("torchao.safetensors")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
CONFIGS = {
    "int8": Int8WeightOnlyConfig(version=2),
    "int8-dynamic": Int8DynamicActivationInt8WeightConfig(version=2),
    "float8": Float8WeightOnlyConfig(),
    "int4-group": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int3-row": IntxWeightOnlyConfig(weight_dtype=torch.int3),
}


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for name, dtype in DTYPES.items():
        for kind, config in CONFIGS.items():
            model = torch.nn.Sequential(torch.nn.Linear(96, 6, bias=False)).to(dtype)
            quantize_(model, config)
            found, metadata = flatten_tensor_state_dict(model.state_dict())
            case = f"{kind}-{name}"
            tensors |= {f"{case}.{k.removeprefix('0.')}": v.clone() for k, v in found.items()}
            text = metadata["0.weight"].encode()
            tensors[f"{case}.metadata"] = torch.tensor(list(text), dtype=torch.uint8)
            tensors[f"{case}.dense"] = model[0].weight.dequantize().clone()
    save_file(tensors, OUT, metadata={"torchao": version("torchao")})


if __name__ == "__main__":
    main()

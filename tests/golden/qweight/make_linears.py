"""Writes linears.safetensors: linears as GPTQModel 7.7.0 and auto-round 0.16.1 pack them.

Every case holds the stored tensors and, as `weight_dense` [O, I], the weight that the library's own
plain torch module makes of them. Cases `gptq-…` GPTQModel converts to its first format after packing.
The metadata holds the versions, and each case's bits, group size and `less_one`. In an environment of
its own:

    pip install torch==2.13.0 transformers==5.23.0 auto-round==0.16.1
    pip install --no-deps gptqmodel==7.7.0  # and what its import asks for
    python make_linears.py
"""

import json
from pathlib import Path
from typing import Any

import torch
from auto_round_extension.torch import qlinear_torch, qlinear_torch_zp
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization import FORMAT, QuantizeConfig
from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module
from safetensors.torch import save_file

OUT = Path(__file__).with_name("linears.safetensors")
ROWS, COLUMNS, SIZE = 32, 64, 32
# Of auto-round's file.
VERSIONS = {"gptqmodel": "7.7.0", "auto-round": "0.16.1"}


def quantized(bits: int, *, ordered: bool) -> tuple[torch.nn.Linear, Any, Any, torch.Tensor]:
    """A linear, its scales and zero points [O, groups], and each input's group."""
    generator = torch.Generator().manual_seed(bits)
    linear = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    linear.weight.data = torch.randn(ROWS, COLUMNS, generator=generator)
    group = torch.arange(COLUMNS) // SIZE
    if ordered:
        group = group[torch.randperm(COLUMNS, generator=generator)]
    scales, zeros, most = [], [], (1 << bits) - 1
    for g in range(COLUMNS // SIZE):
        part = linear.weight.data[:, group == g]
        low, high = part.amin(1), part.amax(1)
        # As float16 holds them, so that the packer's codes are those of the scales that are stored.
        scales.append(((high - low) / most).half().float())
        zeros.append((-low / scales[-1]).round().clamp(1, most))
    return linear, torch.stack(scales, 1), torch.stack(zeros, 1), group.int()


def by_gptqmodel(bits: int, *, ordered: bool, v1: bool) -> dict[str, torch.Tensor]:
    linear, scales, zeros, group = quantized(bits, ordered=ordered)
    module = TorchLinear(
        bits=bits, group_size=SIZE, sym=False, desc_act=ordered, in_features=COLUMNS,
        out_features=ROWS, format=FORMAT.GPTQ_V2,
    )  # fmt: skip
    module.pack_original(linear, scales, zeros, group)
    module.post_init()
    dense = module.dequantize_weight().T
    if v1:
        convert_gptq_v2_to_v1_format_module(module, QuantizeConfig(bits=bits, group_size=SIZE))
    names = ("qweight", "qzeros", "scales", "g_idx")
    return {name: getattr(module, name) for name in names} | {"weight_dense": dense}


def by_auto_round(bits: int, library: Any) -> dict[str, torch.Tensor]:
    linear, scales, zeros, _ = quantized(bits, ordered=False)
    module = library.QuantLinear(bits, SIZE, COLUMNS, ROWS, bias=False)
    module.device = "cpu"
    module.pack(linear, scales, zeros, None, device="cpu")
    module.post_init()
    # Its forward multiplies by the weight in the input's dtype: the unit vectors give the weight.
    dense = module(torch.eye(COLUMNS, dtype=torch.float16)).T
    names = ("qweight", "qzeros", "scales")
    return {name: getattr(module, name) for name in names} | {"weight_dense": dense}


def main() -> None:
    tensors, cases = {}, {}
    for bits in (2, 3, 4, 8):
        made = {
            f"gptq_v2-{bits}": (by_gptqmodel(bits, ordered=False, v1=False), False),
            f"gptq-{bits}": (by_gptqmodel(bits, ordered=False, v1=True), True),
            f"gptq_v2-order-{bits}": (by_gptqmodel(bits, ordered=True, v1=False), False),
            f"auto_round-{bits}": (by_auto_round(bits, qlinear_torch), False),
            f"auto_round-gptq-{bits}": (by_auto_round(bits, qlinear_torch_zp), True),
        }
        for name, (stored, less_one) in made.items():
            tensors |= {f"{name}.{key}": t.contiguous().clone() for key, t in stored.items()}
            cases[name] = {"bits": bits, "group_size": SIZE, "less_one": less_one}
    save_file(tensors, OUT, {"versions": json.dumps(VERSIONS), "cases": json.dumps(cases)})


if __name__ == "__main__":
    main()

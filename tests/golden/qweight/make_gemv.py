"""Writes gemv.safetensors: linears as AutoAWQ 0.2.9 packs them in its layout `gemv`.

Every case holds the stored tensors and, as `weight_dense` [O, I], what its kernel for more than eight
tokens makes of them: each code less its zero point, times the scale, rounded in float16. AutoAWQ has
that on a GPU alone; the codes here are those of the packer's input. Its package, which is given up,
does not import beside today's transformers, so the one file is run without it:

    pip download --no-deps --no-binary :all: autoawq==0.2.9; tar xf autoawq-0.2.9.tar.gz
    python make_gemv.py autoawq-0.2.9/awq
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import torch
from safetensors.torch import save_file

OUT = Path(__file__).with_name("gemv.safetensors")
# Groups, of which 3 · 8 fill no whole number of words' multiples, and the size of each.
SHAPES = {"g32": (32, 3), "g64": (64, 5), "g128": (128, 9)}


def main(source: str) -> None:
    package = sys.modules["awq"] = ModuleType("awq")
    package.__path__ = [source]
    module = runpy.run_path(f"{source}/modules/linear/gemv.py")["WQLinear_GEMV"]
    tensors = {}
    for name, (size, groups) in SHAPES.items():
        generator = torch.Generator().manual_seed(size)
        linear = torch.nn.Linear(size * groups, 8, bias=False)
        linear.weight.data = torch.randn(8, size * groups, generator=generator)
        parts = linear.weight.data.view(8, groups, size)
        scales = ((parts.amax(2) - parts.amin(2)) / 15).half()
        zeros = (-parts.amin(2) / scales.float()).round().clamp(0, 15)
        spread, less = (t.float().repeat_interleave(size, 1) for t in (scales, zeros))
        # As AutoAWQ's quantizer leaves weights behind: whole codes.
        codes = (linear.weight.data / spread + less).round().clamp(0, 15)
        linear.weight.data = (codes - less) * spread
        packed = module.from_linear(linear, 4, size, scales=scales, zeros=zeros)
        found = {key: getattr(packed, key) for key in ("qweight", "qzeros", "scales")}
        found["weight_dense"] = ((codes - less) * spread).half()
        tensors |= {f"{name}.{key}": t.contiguous().clone() for key, t in found.items()}
    save_file(tensors, OUT, {"autoawq": "0.2.9"})


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Writes gemv.safetensors: linears as AutoAWQ 0.2.9 packs them in its layouts `gemv` and `gemv_fast`.

Every case holds the stored tensors and, as `weight_dense` [O, I], what its kernels make of them: for
`gemv`, as the one for more than eight tokens, each code less its zero point, times the scale, rounded
in float16; for `gemv_fast` code times scale plus scaled zero point, rounded once. AutoAWQ has these on
a GPU alone; the codes here are those of the packer's input. Its package, which is given up, does not
import beside today's transformers, so two of its files are run without it:

    pip download --no-deps --no-binary :all: autoawq==0.2.9; tar xf autoawq-0.2.9.tar.gz
    python make_gemv.py autoawq-0.2.9/awq
"""

import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from safetensors.torch import save_file

OUT = Path(__file__).with_name("gemv.safetensors")
# Groups, of which 3 · 8 fill no whole number of words' multiples, and the size of each.
SHAPES = {"g32": (32, 3), "g64": (64, 5), "g128": (128, 9)}


def main(source: str) -> None:
    package = sys.modules["awq"] = ModuleType("awq")
    package.__path__ = [source]
    module = runpy.run_path(f"{source}/modules/linear/gemv.py")["WQLinear_GEMV"]
    fast = runpy.run_path(f"{source}/modules/linear/gemv_fast.py")["WQLinear_GEMVFast"]
    tensors = {}
    # Of fast ones as many inputs as a multiple of 64.
    cases = SHAPES | {f"fast-{name}": (size, groups + 3) for name, (size, groups) in SHAPES.items()}
    for name, (size, groups) in cases.items():
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
        if name.startswith("fast-"):
            packed = fast.from_linear(linear, 4, size, scales=scales, zeros=zeros)
            offset = packed.qzeros[:groups].T.repeat_interleave(size, 1)
            # Exact in float64, from which numpy rounds to float16 at once.
            exact = codes.double() * spread.double() + offset.double()
            dense = torch.from_numpy(exact.numpy().astype(np.float16))
        else:
            packed = module.from_linear(linear, 4, size, scales=scales, zeros=zeros)
            dense = ((codes - less) * spread).half()
        found = {key: getattr(packed, key) for key in ("qweight", "qzeros", "scales")}
        found["weight_dense"] = dense
        tensors |= {f"{name}.{key}": t.contiguous().clone() for key, t in found.items()}
    save_file(tensors, OUT, {"autoawq": "0.2.9"})


if __name__ == "__main__":
    main(*sys.argv[1:])

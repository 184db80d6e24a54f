"""Writes exl3.safetensors: linears as ExLlamaV3 1.4.1 (commit 4f8ad01) stores them, and what its own
kernels make of them.

Needs an NVIDIA GPU with nvcc, PyTorch, and the library's sources (its `exllamav3` folder):

    git clone https://github.com/turboderp-org/exllamav3 --branch v1.4.1
    python make_exl3.py exllamav3/exllamav3 exl3.safetensors

Of its extension the kernels below alone are built, with its own flags. A random trellis is a valid
one, so that every number of bits in every codebook is a case:

- `bK.trellis`, `bK.suh`, `bK.svh`: a linear of K bits; `bK.CODEBOOK.inner` and `bK.CODEBOOK.dense`:
  the first 64 columns of some rows of `LinearEXL3.get_inner_weight_tensor`, and some whole rows of
  `get_weight_tensor` ([in, out], half); `bK.CODEBOOK.sha256`: of all bytes of the inner weight.
- `signs.packed`, `signs.half`: bits as the first releases stored signs, and what it reads of them.
- `made.NAME.*`: linears that its quantizer made of random weights, and as `dense` some rows of what
  the quantizer says that they are (float32).
"""

import hashlib
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils.cpp_extension import load

CODEBOOKS = ("3inst", "mcg", "mul1")
# [in, out]: either is a whole number of blocks of 128.
SHAPES = {1: (256, 128), 2: (128, 256)}
ROW_STEP = 27
FLAGS = ["-gencode=arch=compute_90a,code=sm_90a", "-lineinfo", "-O3", "--use_fast_math"]
QUANTIZERS = [f"comp_units/quantize_tiles_inst_k{bits}" for bits in range(1, 9)]
# Files of kernels, and the functions of them that are bound.
PARTS = {
    "reading": (["reconstruct", "hadamard"], ["reconstruct", "reconstruct_had_slice", "had_r_128"]),
    "writing": (
        ["pack", "quantize", "exl3_devctx", *QUANTIZERS],
        ["pack_trellis", "unpack_trellis", "pack_signs", "quantize_tiles"],
    ),
}  # fmt: skip
HEADERS = {
    "reading": ("reconstruct", "hadamard"),
    "writing": ("pack", "quantize"),
}


def build(part: str, sources: Path) -> ModuleType:
    """The extension of some of the library's kernels."""
    files, functions = PARTS[part]
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", "build")) / part
    folder.mkdir(parents=True, exist_ok=True)
    bindings = folder / f"{part}.cpp"
    lines = ["#include <torch/extension.h>"]
    lines += [f'#include "quant/{name}.cuh"' for name in HEADERS[part]]
    lines += ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {"]
    lines += [f'  m.def("{name}", &{name});' for name in functions] + ["}", ""]
    text = "\n".join(lines)
    if not bindings.exists() or bindings.read_text() != text:
        bindings.write_text(text)
    start = time.monotonic()
    made: Any = load(
        name=f"exl3_{part}",
        sources=[str(bindings), *(str(sources / f"quant/{name}.cu") for name in files)],
        extra_include_paths=[str(sources)],
        extra_cuda_cflags=FLAGS,
        extra_cflags=["-O2"],
        build_directory=str(folder),
    )
    print(f"built {part} in {time.monotonic() - start:.0f} s", flush=True)
    return made


def library(package: Path, extension: SimpleNamespace) -> tuple[ModuleType, ModuleType]:
    """Its modules `modules.quant.exl3` and `exl3_lib.quantize`, over the given extension, without
    all else that importing the package would load."""

    class Anything(ModuleType):
        def __getattr__(self, name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    for name in ("", ".model", ".modules", ".modules.quant", ".modules.quant.exl3_lib", ".util"):
        module = ModuleType(f"exllamav3{name}")
        module.__path__ = [str(package.joinpath(*name.split(".")))]
        sys.modules[f"exllamav3{name}"] = module
    for name in ("exllamav3.model.config", "exllamav3.util.progress", "exllamav3.util.memory"):
        sys.modules[name] = Anything(name)
    vars(sys.modules["exllamav3.util"]).update(profile_opt=None, cuda_sync_active=None)
    vars(sys.modules["exllamav3.util.progress"]).update(ProgressBar=Silent)
    sys.modules["exllamav3.util.tensor"] = Anything("exllamav3.util.tensor")
    sys.modules["exllamav3.ext"] = ModuleType("exllamav3.ext")
    vars(sys.modules["exllamav3.ext"]).update(exllamav3_ext=extension)
    quantize = import_module("exllamav3.modules.quant.exl3_lib.quantize")
    return import_module("exllamav3.modules.quant.exl3"), quantize


class Silent:
    """A progress bar that isn't shown."""

    def __init__(self, *_: object):
        pass

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, *_: object) -> None:
        pass

    new_task = update


def linear(exl3: ModuleType, stored: dict[str, torch.Tensor], codebook: str) -> SimpleNamespace:
    """What `LinearEXL3`'s methods that make weights ask of their object."""
    trellis = stored["trellis"].cuda()
    made = SimpleNamespace(
        su=None,
        sv=None,
        suh=stored["suh"].cuda(),
        svh=stored["svh"].cuda(),
        trellis=trellis,
        K=trellis.shape[-1] // 16,
        in_features=trellis.shape[0] * 16,
        out_features=trellis.shape[1] * 16,
        mcg=codebook == "mcg",
        mul1=codebook == "mul1",
    )
    made.get_inner_weight_tensor = lambda: exl3.LinearEXL3.get_inner_weight_tensor(made)
    return made


def read_cases(exl3: ModuleType, extension: SimpleNamespace) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    tensors: dict[str, torch.Tensor] = {}
    for bits in range(1, 9):
        rows, columns = SHAPES.get(bits, (128, 128))
        trellis = torch.randint(
            -(1 << 15), 1 << 15, (rows // 16, columns // 16, 16 * bits), generator=random
        )
        stored = {
            "trellis": trellis.to(torch.int16),
            "suh": torch.randn(rows, generator=random).mul(0.02).half(),
            "svh": torch.randn(columns, generator=random).half(),
        }
        # As a channel of zeros has them.
        stored["svh"][::50] = 0
        tensors |= {f"b{bits}.{name}": tensor for name, tensor in stored.items()}
        for codebook in CODEBOOKS:
            case = f"b{bits}.{codebook}"
            made = linear(exl3, stored, codebook)
            inner, dense = made.get_inner_weight_tensor(), exl3.LinearEXL3.get_weight_tensor(made)
            fused = torch.empty_like(dense)
            extension.reconstruct_had_slice(
                fused, made.trellis, made.suh, made.svh, made.K, made.mcg, made.mul1, 0
            )
            largest = dense.float().abs().max()
            apart = (fused.float() - dense.float()).abs().max() / largest
            exact = exact_weight(inner, made.suh, made.svh)
            off = (dense.double() - exact).abs().max() / largest
            print(f"{case}: fused {apart:.1e} of the largest, own {off:.1e} from float64")
            digest = hashlib.sha256(inner.cpu().numpy().tobytes()).digest()
            tensors[f"{case}.sha256"] = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
            tensors[f"{case}.inner"] = inner[::ROW_STEP, :64]
            tensors[f"{case}.dense"] = dense[::ROW_STEP]
    packed = torch.randint(-(1 << 15), 1 << 15, (8,), generator=random).to(torch.int16)
    reader = SimpleNamespace(transformers_fix=False)
    tensors["signs.packed"] = packed
    tensors["signs.half"] = exl3.LinearEXL3.unpack_bf(reader, packed)
    return tensors


def exact_weight(inner: torch.Tensor, suh: torch.Tensor, svh: torch.Tensor) -> torch.Tensor:
    """The weight [in, out] in float64."""
    had = torch.ones(1, 1, dtype=torch.float64, device=inner.device)
    while len(had) < 128:
        had = torch.cat((torch.cat((had, had), 1), torch.cat((had, -had), 1)))
    rows, columns = inner.shape
    w = (had @ inner.double().view(-1, 128, columns)).view(rows, columns)
    w = (w.view(rows, -1, 128) @ had).view(rows, columns) / 128
    return w * suh.double()[:, None] * svh.double()


def made_cases(quantize: ModuleType) -> dict[str, torch.Tensor]:
    """Linears of its own quantizer, calibrated and not."""
    tensors: dict[str, torch.Tensor] = {}
    torch.manual_seed(4)
    for name, bits, codebook, shape, calibrated in (
        ("calibrated", 3, "mul1", (256, 128), True),
        ("uncalibrated", 6, "mcg", (128, 128), False),
        ("first", 2, "3inst", (128, 256), True),
    ):
        rows, columns = shape
        weight = torch.randn(rows, columns, device="cuda") * 0.03
        weight[:, 7] = 0
        weight[3] *= 20
        states = torch.randn(1024, rows, device="cuda")
        hessian = {
            "H": states.T @ states if calibrated else torch.zeros(rows, rows, device="meta"),
            "first_key": name,
            "count": len(states),
            "finalized": False,
            "num_total": 0,
            "inf_nan": torch.zeros(2, dtype=torch.long),
            "device": torch.device("cuda:0"),
            "L": None,
        }
        arguments = {
            "K": bits,
            "seed": 5,
            "sigma_reg": 0.025,
            "devices": ["cuda:0"],
            "apply_out_scales": True,
        }
        if codebook != "3inst":
            arguments[codebook] = True
        dense, error, stored = quantize.quantize_exl3(weight.clone(), hessian, arguments, True)
        off = (dense - weight).square().mean() / weight.square().mean()
        print(f"{name}: proxy error {error:.2e}, relative squared error {off:.2e}", flush=True)
        tensors |= {f"made.{name}.{key}": value for key, value in stored.items()}
        tensors[f"made.{name}.dense"] = dense[::ROW_STEP]
    return tensors


def main() -> None:
    package, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    sources = package / "exllamav3_ext"
    if len(sys.argv) > 3:
        build(sys.argv[3], sources)
        return
    beside = subprocess.Popen([sys.executable, __file__, str(package), str(out), "writing"])
    reading = build("reading", sources)
    extension = SimpleNamespace(**{name: getattr(reading, name) for name in PARTS["reading"][1]})
    exl3, quantize = library(package, extension)
    tensors = read_cases(exl3, extension)
    save(tensors, out)
    beside.wait(timeout=150)
    writing = build("writing", sources)
    for name in PARTS["writing"][1]:
        setattr(extension, name, getattr(writing, name))
    save(tensors | made_cases(quantize), out)


def save(tensors: dict[str, torch.Tensor], out: Path) -> None:
    tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, out, metadata={"exllamav3": "1.4.1", "commit": "4f8ad01"})
    print(f"{out}: {out.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    main()

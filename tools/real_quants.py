"""Quantize a real model in the formats that people publish, for README's table.

The base is `tools/real_model.py`'s SmolLM2-135M-Instruct, rounded to bfloat16, in which its authors
published it. GGUF files are made by llama.cpp's own `llama-quantize`, which `tools/llama_cpp.py`
builds; the others by the demo's quantizers: AWQ and GPTQ with groups of 32
weights, calibrated on text that the model writes itself, FP8 with dynamic activations, and NVFP4
weights rounded to nearest.

    python tools/real_quants.py SOURCE FOLDER --llama-cpp DIR

FOLDER gets `SmolLM2-135M-Instruct`, the base, and `quants`. What is there already stays. About ten
minutes on two cores, nine of them AWQ and GPTQ.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from scoremode.demo.quantize import VARIANTS, quantize_folder

GGUF = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_M", "Q2_K")
# The demo's names of the others → theirs here.
FOLDERS = {
    "W8A16": "W8A16",
    "FP8_DYNAMIC": "FP8_DYNAMIC",
    "NVFP4A16": "NVFP4A16",
    "W4A16-g32-AWQ": "AWQ-4bit",
    "W4A16-g32-GPTQ": "GPTQ-4bit",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="what tools/real_model.py wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    base, quants = args.folder / args.source.name, args.folder / "quants"
    quants.mkdir(parents=True, exist_ok=True)
    whole(base, lambda target: write_bfloat16(args.source, target))
    for kind in GGUF:
        whole(
            quants / f"{kind}.gguf",
            lambda file, kind=kind: gguf(args.llama_cpp, args.source, kind, file),
        )
    variants = {variant.name: variant for variant in VARIANTS}
    for name, own in FOLDERS.items():
        variant = replace(variants[name], name=own)
        whole(quants / own, lambda target, v=variant: quantize_folder(base, target, v))


def whole(target: Path, make: Callable[[Path], None]) -> None:
    """Makes `target` beside itself and renames it, so that what is there is whole."""
    if target.exists():
        return
    print(target, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        made = Path(scratch) / target.name
        make(made)
        made.rename(target)


def write_bfloat16(source: Path, target: Path) -> None:
    """Writes a float32 model in bfloat16, rounded to nearest, as its `config.json` then says."""
    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(rounded, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, target / file.name)


def gguf(llama_cpp: Path, source: Path, kind: str, file: Path) -> None:
    """Writes a GGUF file of `kind` from the model's own, whose values the base has rounded."""
    quantize = llama_cpp / "build" / "bin" / "llama-quantize"
    own = source.with_name(f"{source.name}.Q4_1.gguf")
    run(quantize, "--allow-requantize", own, file, kind)


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()

"""Quantize a real model in the formats that people publish, for README's table.

    python tools/real_quants.py SOURCE FOLDER --text wiki.test.raw --llama-cpp DIR

SOURCE is `tools/real_model.py`'s SmolLM2-135M-Instruct, whose weights a Q4_1 file had: they lie on a
grid of 4 bits, and a 4-bit format would show how its grid fits that one. So the base is the same model
with its channels scaled at random, in the linears that give them and inversely in those that take
them, which leaves no grid; it is written in bfloat16, in which its authors published the model.

GGUF files are made by llama.cpp's own converter and `llama-quantize`, which `tools/llama_cpp.py`
builds; the others by the demo's quantizers: AWQ and GPTQ with groups of 32 weights, calibrated on the
end of the text, which is not measured; FP8 with dynamic activations; NVFP4 weights rounded to nearest.

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
# Characters of the text's end that AWQ and GPTQ are calibrated on, about 32,000 tokens.
CALIBRATION = 135_000
# Standard deviation of the scales' logarithms; values of a head.
SPREAD, HEAD = 0.1, 64
NORMED = {
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
# The converter looks for a file of sentencepiece's by importing that, and knows a tokenizer by a hash
# of what it makes of a text, in which the one that was read from a GGUF file is another.
CONVERT = """
import runpy, sys
folder, *sys.argv = sys.argv[1:]
sys.path.insert(0, folder)
from conversion.base import TextModel
def missing(self):
    raise FileNotFoundError
TextModel._set_vocab_sentencepiece = missing
TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="what tools/real_model.py wrote")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="WikiText-2's wiki.test.raw")
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    args = parser.parse_args()
    base, quants = args.folder / args.source.name, args.folder / "quants"
    quants.mkdir(parents=True, exist_ok=True)
    whole(base, lambda target: write_base(args.source, target))
    for kind in GGUF:
        file = quants / f"{kind}.gguf"
        whole(file, lambda target, kind=kind: write_gguf(args.llama_cpp, base, kind, target))
    calibration = args.text.read_text(encoding="utf-8")[-CALIBRATION:]
    variants = {variant.name: variant for variant in VARIANTS}
    for name, own in FOLDERS.items():
        variant = replace(variants[name], name=own)
        whole(quants / own, lambda to, v=variant: quantize_folder(base, to, v, calibration))


def whole(target: Path, make: Callable[[Path], None]) -> None:
    """Makes `target` beside itself and renames it, so that what is there is whole."""
    if target.exists():
        return
    print(target, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
        made = Path(scratch) / target.name
        make(made)
        made.rename(target)


def write_base(source: Path, target: Path) -> None:
    """Writes the model of `source` with scaled channels, in bfloat16, as `config.json` then says."""
    target.mkdir()
    tensors = load_file(source / "model.safetensors")
    scale_channels(tensors)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(rounded, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, target / file.name)


def scale_channels(tensors: dict[str, torch.Tensor]) -> None:
    """Scales the channels of a Llama's float32 `tensors` in place; what it computes stays the same."""
    generator = torch.Generator().manual_seed(0)
    for norm in [name for name in tensors if name.endswith("input_layernorm.weight")]:
        layer = norm.removesuffix("input_layernorm.weight")

        def weight(name: str, layer: str = layer) -> torch.Tensor:
            return tensors[f"{layer}{name}.weight"]

        def drawn(size: int) -> torch.Tensor:
            return torch.exp(SPREAD * torch.randn(size, generator=generator))

        for made, taken in NORMED.items():
            scale = drawn(len(weight(made)))
            weight(made).div_(scale)
            for name in taken:
                weight(name).mul_(scale)
        scale = drawn(len(weight("mlp.up_proj")))
        weight("mlp.up_proj").mul_(scale.unsqueeze(1))
        weight("mlp.down_proj").div_(scale)
        # Heads of queries that share a head of values take the same channels.
        values, output = weight("self_attn.v_proj"), weight("self_attn.o_proj")
        scale = drawn(len(values))
        values.mul_(scale.unsqueeze(1))
        shared = output.shape[1] // len(values)
        output.div_(scale.view(-1, HEAD).repeat_interleave(shared, 0).flatten())


def write_gguf(llama_cpp: Path, base: Path, kind: str, file: Path) -> None:
    """Writes the base as a GGUF file of `kind`."""
    dense, source = base.parent / f"{base.name}-BF16.gguf", llama_cpp / "source"
    if not dense.exists():
        convert = (source, source / "convert_hf_to_gguf.py", base, "--outtype", "bf16")
        run(sys.executable, "-c", CONVERT, *convert, "--outfile", dense)
    run(llama_cpp / "build" / "bin" / "llama-quantize", dense, file, kind)


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()

"""Checkpoints of mixtures of experts, packed and dense, for the tests of experts."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from support.models import edit_config, edit_tensors, make_checkpoint
from support.quantized import LibraryLinear, config_of, preset
from support.schemes import arguments, compress, decompress, group, quantization

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Format:
    """One way to store a linear: a dense weight → the library's tensors and what they stand for."""

    name: str
    pack: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
    config: dict[str, Any]

    def __str__(self) -> str:
        return self.name


def pack_int4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    arguments_ = arguments(4, "group", 32, True)
    stored = compress(weight, arguments_)
    return stored, decompress(stored, arguments_)


def pack_nvfp4(weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """e2m1 in groups of 16: the tensors by suffix, and the library's dense weight of them."""
    linear = LibraryLinear(weight, preset("NVFP4A16"), weight)
    return linear.stored(), linear.decompressed()


FORMATS = [
    Format("W4A16", pack_int4, quantization({"group_0": group("Linear")})),
    Format("NVFP4A16", pack_nvfp4, config_of("NVFP4A16")),
]


# Families that have their experts transposed, and as linears where quantizers store them.
TRANSPOSED = ("gpt_oss", "llama4_text")
EXPERT = re.compile(r"\.experts\.\d+\.\w+\.weight$")


def unroll(tensors: Tensors) -> None:
    """gpt-oss' and Llama 4's fused experts → a linear each, as llm-compressor stores them. Gate and up
    lie in turns where there are biases, else one after the other."""
    for name in [n for n in tensors if n.endswith("gate_up_proj")]:
        experts = name.removesuffix(".gate_up_proj")
        for suffix, end in (("weight", ""), ("bias", "_bias")):
            if f"{name}{end}" not in tensors:
                continue
            whole, down = tensors.pop(f"{name}{end}"), tensors.pop(f"{experts}.down_proj{end}")
            in_turns = suffix == "bias" or f"{name}_bias" in tensors
            gate, up = (whole[..., 0::2], whole[..., 1::2]) if in_turns else whole.chunk(2, -1)
            for part, every in (("gate_proj", gate), ("up_proj", up), ("down_proj", down)):
                for e, own in enumerate(every):
                    own = own.T if suffix == "weight" else own
                    tensors[f"{experts}.{e}.{part}.{suffix}"] = own.contiguous()


def fuse(tensors: Tensors) -> None:
    """The inverse of `unroll`."""
    layers = {n.partition(".experts.")[0] for n in tensors if ".experts.0." in n}
    for layer in layers:
        count = len([n for n in tensors if re.match(rf"{layer}\.experts\.\d+\.down_proj\.w", n)])
        has_bias = f"{layer}.experts.0.down_proj.bias" in tensors

        def take(part: str, suffix: str, layer: str = layer, count: int = count) -> torch.Tensor:
            names = [f"{layer}.experts.{e}.{part}.{suffix}" for e in range(count)]
            values = [tensors.pop(name) for name in names]
            return torch.stack([v.T if suffix == "weight" else v for v in values])

        for suffix, end in (("weight", ""), ("bias", "_bias"))[: 1 + has_bias]:
            gate, up = take("gate_proj", suffix), take("up_proj", suffix)
            together = (
                torch.stack((gate, up), dim=-1).flatten(-2)
                if has_bias
                else torch.cat((gate, up), -1)
            )
            tensors[f"{layer}.experts.gate_up_proj{end}"] = together.contiguous()
            tensors[f"{layer}.experts.down_proj{end}"] = take("down_proj", suffix).contiguous()


def make_packed(folder, name: str, form: Format, dtype=torch.bfloat16):
    """A checkpoint with packed experts, and a dense one of the weights that they stand for."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=dtype)
        if name in TRANSPOSED:
            edit_tensors(target, unroll)
    others: set[str] = set()

    def pack(tensors: Tensors) -> None:
        for key in list(tensors):
            if not EXPERT.search(key):
                if ".experts." not in key:
                    others.add(key.rpartition(".")[0])
                continue
            stored, _ = form.pack(tensors.pop(key))
            tensors |= {f"{key.removesuffix('.weight')}.{s}": t for s, t in stored.items()}

    def decode(tensors: Tensors) -> None:
        for key in tensors:
            if EXPERT.search(key):
                tensors[key] = form.pack(tensors[key])[1].to(dtype)
        if name in TRANSPOSED:
            fuse(tensors)

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, quantization_config=form.config | {"ignore": sorted(others)})
    return packed, dense

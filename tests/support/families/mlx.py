"""Checkpoints of MLX made by plain torch, and the dense ones of the same weights."""

import re
from pathlib import Path
from typing import Any

import torch
from support.family import Case, Config, Family, Pair
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.schemes.mlx import Modules

Tensors = dict[str, torch.Tensor]
# Embeddings and heads too.
QUANTIZED = re.compile(r"(_proj|mlp\.gate|router|embed_tokens|lm_head)\.weight$")
# What mlx-lm calls the parts of an expert, and what Mixtral does.
_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_EXPERT = re.compile(r"(.*)\.experts\.0\.(\w+)\.weight")


def switched(tensors: Tensors) -> None:
    """Renames and stacks experts as mlx-lm's `sanitize` does, family by family."""
    for name in list(tensors):
        if found := _EXPERT.fullmatch(name):
            every, home, part = [], found[1], found[2]
            while (one := f"{home}.experts.{len(every)}.{part}.weight") in tensors:
                every.append(tensors.pop(one))
            own = _PARTS.get(part, part)
            tensors[f"{home}.switch_mlp.{own}.weight"] = torch.stack(every)
        elif name.endswith(("input_linear.weight", "experts.gate_up_proj")):
            # Granite's lies as a linear does; gpt-oss' and Llama 4's transposed, the first interleaved.
            is_granite = name.endswith("weight")
            whole = tensors.pop(name)
            whole = whole if is_granite else whole.transpose(1, 2)
            bias = tensors.pop(f"{name}_bias", None)
            gate, up = whole.chunk(2, dim=1) if bias is None else (whole[:, ::2], whole[:, 1::2])
            home = name.replace("input_linear.weight", "switch_mlp").removesuffix(".gate_up_proj")
            tensors[f"{home}.gate_proj.weight"] = gate.contiguous()
            tensors[f"{home}.up_proj.weight"] = up.contiguous()
            if bias is not None:
                tensors[f"{home}.gate_proj.bias"] = bias[:, ::2].contiguous()
                tensors[f"{home}.up_proj.bias"] = bias[:, 1::2].contiguous()
        elif name.endswith("output_linear.weight"):
            home = name.replace("output_linear.weight", "switch_mlp")
            tensors[f"{home}.down_proj.weight"] = tensors.pop(name)
        elif name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = tensors.pop(name).transpose(1, 2).contiguous()
        elif name.endswith("experts.down_proj_bias"):
            tensors[name.replace("_bias", ".bias")] = tensors.pop(name)


def quantize(weight: torch.Tensor, bits: int, size: int) -> Tensors:
    """Suffix → tensor; `dense` is the effective weight. Of experts [E, O, I] as of one."""
    if weight.dim() == 3:
        each = [quantize(own, bits, size) for own in weight]
        return {suffix: torch.stack([own[suffix] for own in each]) for suffix in each[0]}
    dtype, (rows, columns) = weight.dtype, weight.shape
    groups = weight.float().view(rows, -1, size)
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / ((1 << bits) - 1)).clamp_min(1e-6).to(dtype)
    bias = low.to(dtype)
    q = (groups - bias.float()[..., None]) / scale.float()[..., None]
    q = q.round().clamp(0, (1 << bits) - 1)
    dense = (q.to(dtype) * scale[..., None] + bias[..., None]).view(rows, columns)
    stream = (q.int().view(rows, columns, 1) >> torch.arange(bits)) & 1
    words = (stream.view(rows, -1, 32).long() << torch.arange(32)).sum(2)
    return {"weight": words.to(torch.uint32), "scales": scale, "biases": bias, "dense": dense}


def make_pair(
    folder: Path, name: str, bits: int = 4, size: int = 32, key: str = "quantization", **named: Any
) -> tuple[Path, Path]:
    """A random bfloat16 model, quantized, and a dense one of what it stands for, experts as mlx-lm has
    them in both; `named`: the last part of modules that have other bits."""
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16, change=_whole_groups)
        edit_tensors(target, switched)
    overrides: dict[str, Any] = {}

    def stored(tensors: Tensors, name: str) -> Tensors:
        module = name.removesuffix(".weight")
        other = named.get(module.rpartition(".")[2])
        if other is not None:
            overrides[module] = {"group_size": size, "bits": other}
        return quantize(tensors[name], other or bits, size)

    def pack(tensors: Tensors) -> None:
        for name in _quantized(tensors):
            made = stored(tensors, name)
            del tensors[name], made["dense"]
            tensors |= {f"{name.removesuffix('weight')}{s}": t for s, t in made.items()}

    def decode(tensors: Tensors) -> None:
        for name in _quantized(tensors):
            tensors[name] = stored(tensors, name)["dense"]

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    edit_config(packed, **{key: {"group_size": size, "bits": bits} | overrides})
    return packed, dense


def _quantized(tensors: Tensors) -> list[str]:
    """Names of weights; gates that choose with a bias besides are no linears of mlx-lm's."""
    chosen = {name.removesuffix("e_score_correction_bias") for name in tensors}
    return [n for n in tensors if QUANTIZED.search(n) and n.removesuffix("weight") not in chosen]


def _whole_groups(settings: dict[str, Any]) -> None:
    """DeepSeek's low ranks as multiples of a group."""
    for name in ("kv_lora_rank", "q_lora_rank"):
        if name in settings:
            settings[name] = 32


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def small_floats(weight: torch.Tensor, size: int, bits: int) -> Tensors:
    """Any codes under scales near one, of a linear of the weight's shape."""
    low, high = (40, 70) if size == 16 else (110, 130)
    rows, columns = weight.shape
    words = torch.randint(0, 1 << 32, (rows, columns * bits // 32))
    scales = torch.randint(low, high, (rows, columns // size))
    stored = {"weight": words.to(torch.uint32), "scales": scales.to(torch.uint8)}
    mode = {(16, 4): "nvfp4", (32, 4): "mxfp4", (32, 8): "mxfp8"}[size, bits]
    return stored | {"dense": weight_of(stored, "m", {"mode": mode})}


def _fields(module: str, config: Config) -> dict[str, Any]:
    """The module's own, where it has some, in place of those of all."""
    own = config.get(module)
    fields = own if isinstance(own, dict) else config
    assert own is not False and own != {}, "not to be quantized"
    return {name: fields.get(name) for name in ("mode", "bits", "group_size")}


def weight_of(stored: Tensors, module: str, config: Config, *_: Any) -> torch.Tensor:
    fields = _fields(module, config)
    usual = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}.get(fields["mode"], (4, 64))
    bits, size = fields["bits"] or usual[0], fields["group_size"] or usual[1]
    words = stored["weight"].view(torch.int32).long() & 0xFFFFFFFF
    stream = (words.unsqueeze(2) >> torch.arange(32)) & 1
    codes = (stream.flatten(1).unflatten(1, (-1, bits)) << torch.arange(bits)).sum(2)
    codes, scale = codes.unflatten(1, (-1, size)), stored["scales"]
    if fields["mode"] in (None, "", "affine"):
        bias = stored["biases"]
        return (codes.to(scale.dtype) * scale.unsqueeze(2) + bias.unsqueeze(2)).flatten(1).float()
    if bits == 8:
        values = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    else:
        values = torch.cat((E2M1, -E2M1))[codes]
    if size == 16:
        power = scale.view(torch.float8_e4m3fn).float()
    else:
        power = torch.ldexp(torch.ones(scale.shape), scale.int() - 127)
        power[scale == 255] = torch.inf
    return (values * power.unsqueeze(2)).flatten(1).bfloat16().float()


def case(bits: int) -> Case:
    fields = {"group_size": 32, "bits": bits}
    return Case(
        f"{bits}", lambda w: quantize(w, bits, 32), fields, f"MLX {bits}-bit g32", models=()
    )


def float_case(mode: str, size: int, bits: int) -> Case:
    fields = {"group_size": size, "bits": bits, "mode": mode}
    label = f"MLX {mode.upper()}"
    return Case(mode, lambda w: small_floats(w, size, bits), fields, label, models=())


def whole_pair(folder: Path, name: str, case: Case) -> Pair:
    """Of the integers."""
    bits, size = case.config["bits"], case.config["group_size"]
    return make_pair(folder, name, bits, size, "quantization_config", down_proj=8)


FAMILY = Family(
    Modules,
    {"bits": 4, "group_size": 64},
    (
        *map(case, (4, 3, 5, 8)),
        float_case("mxfp4", 32, 4),
        float_case("nvfp4", 16, 4),
        float_case("mxfp8", 32, 8),
    ),
    pair=whole_pair,
    spare=lambda config, name: config.update({name: False}),
    weight=weight_of,
    not_decoded=(
        ({"bits": 7}, "7 bits in groups of 64"),
        ({"group_size": 48}, "4 bits in groups of 48"),
        ({"mode": "fp4"}, "mode 'fp4'"),
        ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, "mode 'mxfp4' of 8 bits in groups of 32"),
        ({"m": {"bits": 1}}, "1 bits in groups of 64"),
        ({"linear_class": "x"}, "linear_class 'x'"),
        ({"m": 0}, "m 0"),
        ({"quantize_input": True}, "quantize_input True"),
        ({"m": {"mode": "mxfp8", "quantize_input": True}}, "quantize_input True"),
    ),
    not_understood=(
        ({"bits": "4"}, "bits '4' is not an integer"),
        ({"group_size": 64.0}, "group_size 64.0 is not an integer"),
        ({"bits": True}, "bits True is not an integer"),
        ({"mode": 4}, "mode 4 is not a string"),
        ({"m": {"bits": [4]}}, "m: bits [4] is not an integer"),
    ),
)

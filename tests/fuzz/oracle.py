"""What a checkpoint's tensors are, without scoremode: by safetensors' layout, by compressed-tensors,
for what its newest release no longer reads by long division, and for ModelOpt's by plain torch.

Nothing here is fast or careful: it is for tiny files.
"""

import contextlib
import io
import json
import math
import re
import warnings
from pathlib import Path
from typing import Any

import regex
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import (
    FP8BlockDequantizer,
)
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.utils.match import is_match, match_targets
from fuzz.files import MODELOPT, split
from fuzz.libraries import Input, input_of, method_of, weight_of
from safetensors.torch import load_file
from support.families.modelopt import FORMATS, fp8_block_weight, int4_weight
from torch.nn import functional

Tensors = dict[str, torch.Tensor]
_EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings"}
_ARGS, _SCHEME = set(QuantizationArgs.model_fields), set(QuantizationScheme.model_fields)


class Disputed(Exception):
    """Neither the library nor the long division can say."""


class Oracle:
    """The files in `folder`, once scoremode has accepted them."""

    def __init__(self, folder: Path, files: list[Path]):
        self.raw = {name: content for file in files for name, content in _raw(file).items()}
        self.tensors: Tensors = {}
        self.metadata: dict[str, str] = {}
        for file in files:
            self.tensors |= load_file(file)
            self.metadata |= _header(file).get("__metadata__") or {}
        for name, tensor in self.tensors.items():
            # The library has scales of one dtype only, by their code.
            if tensor.dtype == torch.float8_e8m0fnu:
                self.tensors[name] = tensor.view(torch.uint8)
        config = json.loads((folder / "config.json").read_bytes())
        nested = config.get("text_config") or {}
        names = ("quantization_config", "compression_config", "quantization")
        found = [c.get(n) for c in (config, nested) for n in names]
        self.quantization = next((c for c in found if c and isinstance(c, dict)), None)
        if not self.quantization and (folder / MODELOPT).exists():
            self.quantization = json.loads((folder / MODELOPT).read_bytes())
            self.quantization["quant_method"] = "modelopt"
        # Of a library whose words compressed-tensors has none for.
        self.other = method_of(self.quantization)

    def scheme(self, module: str) -> tuple[QuantizationScheme, str, bool]:
        """The library's scheme and format of a module; whether its columns are in order g_idx."""
        method = str(self.quantization.get("quant_method")).lower()
        if method == "fp8":
            return _blocks(self.quantization, self._stored(module)), "fp8", False
        if method in ("mxfp4", "gpt_oss_mxfp4"):
            weights = QuantizationArgs(num_bits=4, type="float", strategy="group", group_size=32)
            return QuantizationScheme(targets=["Linear"], weights=weights), "mxfp4", False
        if _is_modelopts(self.quantization):
            algorithm, _ = _algorithm(self.quantization, module)
            return _modelopt_inputs(algorithm), "modelopt", False
        config, reordered = _known(self.quantization)
        config["ignore"] = _tamed(config.get("ignore") or [], module)
        for name, group in list(config["config_groups"].items()):
            if isinstance(group, list):
                config["config_groups"][name] = _tamed(group, module)
                continue
            group["targets"] = _tamed(group["targets"], module)
            # One that it can't read claims none of the modules that come here.
            if not _is_read(group):
                config["config_groups"].pop(name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library = QuantizationConfig.model_validate(config)
        except (ValueError, TypeError, KeyError, NotImplementedError, RecursionError) as error:
            raise Disputed(f"library's config: {' '.join(str(error).split())[:300]}") from None
        schemes = {t: s for s in library.config_groups.values() for t in s.targets}
        by_name = module.rpartition(".")[2] in _EMBEDDINGS
        instance = torch.nn.Embedding(1, 1) if by_name else torch.nn.Linear(1, 1)
        if is_match(module, instance, library.ignore or []):
            raise AssertionError(f"{module} is in the library's ignore list")
        found = match_targets(module, instance, schemes)
        if not found:
            raise AssertionError(f"{module}: the library finds no group")
        scheme = schemes[found[0]]
        name = next(n for n, s in library.config_groups.items() if s is scheme)
        return scheme, scheme.format or library.format, name in reordered

    def weight(self, module: str) -> torch.Tensor:
        """float32 [O, I], of experts that are stored as one [E, O, I]."""
        if self.other:
            own = self._below(module)
            return weight_of(self.other, own, module, self.quantization, self.metadata)
        scheme, form, reordered = self.scheme(module)
        stored = self._stored(module)
        if form == "fp8":
            return _dequantized(stored, scheme.weights.block_structure)
        if form == "mxfp4":
            return _gpt_oss(stored)
        if form == "modelopt":
            return _modelopt_weight(stored, *_algorithm(self.quantization, module))
        if form == "pack-quantized":
            return _long_division(stored, scheme.weights, reordered)
        scale, weight = stored["weight_scale"], stored.get("weight")
        if weight is not None and scale.shape == (len(weight),) and len(weight) > 1:
            # One a row, which the library's own has a second dimension for.
            stored["weight_scale"] = scale.view(-1, 1)
        args = scheme.weights
        if weight is not None and args.strategy == "group" and weight.shape[1] % args.group_size:
            return _with_short_group(stored, args.group_size)
        columns = None
        if form in ("nvfp4-pack-quantized", "mxfp4-pack-quantized"):
            # The library reads whole groups: a short one is filled up, and cut off again.
            columns = 2 * stored["weight_packed"].shape[1]
            missing = -columns % args.group_size // 2
            stored["weight_packed"] = functional.pad(stored["weight_packed"], (0, missing))
        compressor = BaseCompressor.get_value_from_registry(str(form))
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                dense = compressor.decompress(stored, scheme)["weight"][:, :columns]
            except Exception as error:  # noqa: BLE001  whatever it is, the library can't
                text = f"{type(error).__name__} {error}"
                raise Disputed(f"library's {form}: {' '.join(text.split())[:300]}") from None
        return dense.float()

    def input(self, module: str) -> Input | None:
        """How a module's input is quantized, of one of the other libraries."""
        assert self.other
        own = self._below(module)
        return input_of(self.other, own, module, self.quantization, self.metadata)

    def _below(self, module: str) -> Tensors:
        """A module's tensors by all that follows its name."""
        start = f"{module}."
        return {n.removeprefix(start): t for n, t in self.tensors.items() if n.startswith(start)}

    def _stored(self, module: str) -> Tensors:
        """A linear's tensors by suffix; of experts stored as one by what follows their name."""
        found = {n.rpartition(".")[2]: t for n, t in self.tensors.items()
                 if n.rpartition(".")[0] == module}  # fmt: skip
        of_all = {
            n.removeprefix(module): t for n, t in self.tensors.items() if n.startswith(module)
        }
        if "weight_global_scale" in found:
            # What one of no dimension divides would keep its own dtype.
            found["weight_global_scale"] = found["weight_global_scale"].reshape(1)
        return found or of_all

    def library_weight(self, module: str) -> torch.Tensor | None:
        """The same by the library alone, None where it can't."""
        scheme, form, reordered = self.scheme(module)
        stored = self._stored(module)
        if reordered or form in ("fp8", "mxfp4", "modelopt"):
            return None
        if form == "pack-quantized":
            # What it no longer reads it takes for something else.
            columns = int(stored["weight_shape"][1])
            if stored["weight_packed"].shape[1] != -(-columns * scheme.weights.num_bits // 32):
                return None
        zero_point = stored.get("weight_zero_point")
        if zero_point is not None and len(zero_point) == 1 and scheme.weights.strategy == "group":
            stored["weight_zero_point"] = zero_point.repeat(2, 1)
        compressor = BaseCompressor.get_value_from_registry(str(form))
        try:
            return compressor.decompress(stored, scheme)["weight"].float()
        except Exception:  # noqa: BLE001
            return None


def _blocks(config: dict[str, Any], stored: Tensors) -> QuantizationScheme:
    """What transformers' config is in compressed-tensors' words."""
    block = config.get("weight_block_size", [128, 128])
    if "weight_scale" in stored:
        block = None
    eight: dict[str, Any] = {"num_bits": 8, "type": "float"}
    if str(config.get("activation_scheme")).lower() == "static":
        inputs = QuantizationArgs(**eight, strategy="tensor", dynamic=False)
    elif block is None:
        inputs = QuantizationArgs(**eight, strategy="token", dynamic=True)
    else:
        inputs = QuantizationArgs(**eight, strategy="group", group_size=block[1], dynamic=True)
    weights = QuantizationArgs(**eight, strategy="tensor")
    if block is not None:
        weights = QuantizationArgs(**eight, strategy="block", block_structure=block)
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)


def _is_modelopts(config: dict[str, Any]) -> bool:
    method = config.get("quant_method")
    if method is not None or "config_groups" in config:
        return str(method).lower().startswith("modelopt")
    return "quant_algo" in config or "quantization" in config


def _algorithm(config: dict[str, Any], module: str) -> tuple[str, int | None]:
    """Its name in capitals, and the columns of a group, where that can be chosen and is said."""

    def inner_name(name: str) -> str:
        return re.sub(r"^((language_)?model\.)+", "", name)

    fields = config.get("quantization") or config
    if fields["quant_algo"].upper() == "MIXED_PRECISION":
        layers = {inner_name(name): layer for name, layer in fields["quantized_layers"].items()}
        around = [name for name in layers if f"{inner_name(module)}.".startswith(f"{name}.")]
        fields = layers[max(around, key=len)]
    elif fields["quant_algo"].upper() == "NVFP4":
        groups = config.get("config_groups")
        if isinstance(groups, dict) and groups:
            inputs = [
                g.get("input_activations") if isinstance(g, dict) else 1 for g in groups.values()
            ]
            if all(each is None for each in inputs):
                return "W4A16_NVFP4", 16
    return fields["quant_algo"].upper(), fields.get("group_size") or None


def _modelopt_inputs(algorithm: str) -> QuantizationScheme:
    eight: dict[str, Any] = {"num_bits": 8, "type": "float"}
    local = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    inputs: dict[str, Any] | None = {
        "FP8": eight | {"strategy": "tensor"},
        "W4A8_AWQ": eight | {"strategy": "tensor"},
        "FP8_PER_CHANNEL_PER_TOKEN": eight | {"strategy": "token", "dynamic": True},
        "MXFP8": eight | {"strategy": "group", "group_size": 32, "dynamic": True},
        "NVFP4": local | {"dynamic": "local"},
        "NVFP4_AWQ": local | {"dynamic": "local"},
    }.get(algorithm)
    return QuantizationScheme(
        targets=["Linear"],
        weights=QuantizationArgs(**eight),
        input_activations=inputs and QuantizationArgs(**inputs),
    )


def _modelopt_weight(stored: Tensors, algorithm: str, said: int | None) -> torch.Tensor:
    size = said or 128
    scale = stored["weight_scale"]
    if "weight_scale_2" in stored:
        stored["weight_scale_2"] = stored["weight_scale_2"].float().reshape(())
    if algorithm == "FP8_PB_WO":
        rows, columns = (math.ceil(n / size) for n in stored["weight"].shape)
        # Longer than the weight is as long as it.
        stored["weight_scale"] = scale.reshape(rows, 1, columns, 1)
        size = min(size, max(stored["weight"].shape))
        return fp8_block_weight(stored, torch.float32, size)
    if "W4A" in algorithm and algorithm.endswith("_AWQ"):
        # Where no config says it, what the scales' shape does.
        size = said or stored["weight"].shape[1] // scale.shape[1]
    if algorithm == "W4A16_AWQ":
        return int4_weight(stored, torch.float32, min(size, stored["weight"].shape[1]))
    if algorithm.startswith("FP8"):
        stored["weight_scale"] = scale.reshape(-1) if algorithm != "FP8" else scale.reshape(())
    if algorithm == "W4A8_AWQ" and size != 128:
        raise Disputed(f"W4A8_AWQ in groups of {size}")
    return FORMATS[algorithm].weight(stored, torch.float32)


def _dequantized(stored: Tensors, block: list[int] | None) -> torch.Tensor:
    """By compressed-tensors where the scales are those of blocks; else each for its even share."""
    if "" in stored:
        each = zip(stored[""], stored["_scale_inv"], strict=True)
        parts = [{"weight": w, "weight_scale_inv": s} for w, s in each]
        return torch.stack([_dequantized(part, block) for part in parts])
    weight = stored["weight"]
    names = ("weight_scale_inv", "weight_scale", "scale")
    scale = next(stored[name] for name in names if name in stored)
    if scale.dtype == torch.uint8:
        scale = _powers(scale)
    scale, exact = scale.float(), weight.float()
    if weight.dtype == torch.int8:
        exact = _pairs(weight.view(torch.uint8))
        block = [1, 32]
    rows, columns = exact.shape
    if block and scale.shape == (-(-rows // block[0]), -(-columns // block[1])):
        if weight.dtype != torch.int8:
            converter = FP8BlockDequantizer(weight_block_size=tuple(block), dtype=torch.float32)
            return converter._create_dequantized_weight(weight, scale)
        return exact * scale.repeat_interleave(32, 1)[:, :columns]
    scale = scale.reshape(-1, scale.shape[-1] if scale.dim() == 2 else 1)
    width = block[1] if block else columns
    by_row = scale.repeat_interleave(rows // len(scale), 0)
    return exact * by_row.repeat_interleave(min(width, columns), 1)[:, :columns]


def _gpt_oss(stored: Tensors) -> torch.Tensor:
    """bfloat16 in exact steps: pairs, then powers of two."""
    blocks, scales = stored["_blocks"], stored["_scales"]
    values = _pairs(blocks.flatten(2)).unflatten(2, (-1, 32)) * _powers(scales).unsqueeze(3)
    return values.flatten(2).bfloat16().float()


def _powers(codes: torch.Tensor) -> torch.Tensor:
    powers = torch.exp2(codes.double() - 127)
    return powers.masked_fill(codes == 255, math.nan).float()


def _pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two e2m1 in a byte, the first in the low nibble."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat((values, -values))
    halves = torch.stack((codes & 15, codes >> 4), -1)
    return values[halves.long()].flatten(-2)


def _raw(file: Path) -> dict[str, bytes]:
    """Every tensor's bytes by the format's definition."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = _header(file)
    header.pop("__metadata__", None)
    spans = {n: e["data_offsets"] for n, e in header.items()}
    return {n: content[start + begin : start + end] for n, (begin, end) in spans.items()}


def _header(file: Path) -> dict[str, Any]:
    return split(file.read_bytes())[0]


def _tamed(names: list[str], module: str) -> list[str]:
    """Patterns that the library may take for ever to match, as one of the module if they match it."""
    hostile = [n for n in names if n.startswith("re:") and re.search(r"\)[*+{]|([*+?{].*){4}", n)]
    is_found = any(regex.match(n[3:], module, timeout=2) for n in hostile)
    quick = [n for n in names if n not in hostile]
    return [*quick, f"re:{re.escape(module)}$"] if is_found else quick


def _is_read(group: dict[str, Any]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            QuantizationScheme.model_validate(group)
    except (ValueError, TypeError, NotImplementedError):
        return False
    return True


def _known(config: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Without fields that the newest library doesn't have; the groups in activation order."""
    config = json.loads(json.dumps(config))
    if config.get("quant_method") is None:
        config.pop("quant_method", None)
    config.setdefault("format", "dense")
    config["format"] = config["format"] or "dense"
    # What plays no part in what a weight is.
    for name in set(config) - {"config_groups", "format", "ignore", "quant_method"}:
        config.pop(name)
    reordered = set()
    for name, group in config.get("config_groups", {}).items():
        if not isinstance(group, dict):
            continue
        for key in set(group) - _SCHEME:
            group.pop(key)
        for key in ("weights", "input_activations", "output_activations"):
            args = group.get(key)
            if not isinstance(args, dict):
                continue
            for field in set(args) - _ARGS:
                args.pop(field)
            for field in ("observer", "observer_kwargs", "zp_dtype", "scale_dtype"):
                args.pop(field, None)
            if key != "weights":
                args.pop("actorder", None)
            order = args.get("actorder")
            if order is True or str(order).lower() in ("group", "dynamic"):
                args["actorder"] = None
                if key == "weights":
                    reordered.add(name)
    return config, reordered


def _long_division(stored: Tensors, args: QuantizationArgs, reordered: bool) -> torch.Tensor:
    """pack-quantized, by each row's words as one long number."""
    rows, columns = stored["weight_shape"].tolist()
    scale, bits = stored["weight_scale"], args.num_bits
    q = _unpacked(stored["weight_packed"], bits, columns)
    size = args.group_size if args.strategy == "group" else columns
    groups = math.ceil(columns / size)
    scale = scale.reshape(-1, groups if args.strategy == "group" else 1)
    zero = torch.zeros(1, 1)
    if not args.symmetric:
        zero = stored["weight_zero_point"]
        if args.strategy == "tensor":
            zero = zero.reshape(1, 1).float()
        else:
            zero = _unpacked(zero.T, bits, rows).T.float()
    where = torch.arange(columns) // size
    if reordered:
        where = stored["weight_g_idx"].long()
    exact = (q.float() - zero.expand(rows, groups)[:, where]).to(scale.dtype)
    return (exact * scale.expand(rows, groups)[:, where]).float()


def _with_short_group(stored: Tensors, size: int) -> torch.Tensor:
    """A code a byte in groups of columns, the last of which is short: the library reads whole ones."""
    scale, columns = stored["weight_scale"], stored["weight"].shape[1]
    if scale.dtype == torch.uint8:
        # The last one is infinite to the library.
        scale = _powers(scale).masked_fill(scale == 255, math.inf).bfloat16()

    def spread(values: torch.Tensor) -> torch.Tensor:
        return values.repeat_interleave(min(size, columns), 1)[:, :columns]

    q = stored["weight"].to(scale.dtype)
    if "weight_zero_point" in stored:
        q = q - spread(stored["weight_zero_point"]).to(scale.dtype)
    return (q * spread(scale)).float()


def _unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Signed values [rows, count] of int32 words, in the layout that their number fits."""
    width = words.shape[1]
    dense = width == -(-count * bits // 32)
    per_word, values = 32 // bits, []
    for row in words.tolist():
        number = sum((w & 0xFFFFFFFF) << (32 * i) for i, w in enumerate(row))
        at = [i * bits if dense else i // per_word * 32 + i % per_word * bits for i in range(count)]
        values.append([(number >> a) % (1 << bits) - (1 << (bits - 1)) for a in at])
    return torch.tensor(values)


def is_one_line(message: str) -> bool:
    """Short, readable, and without another exception's looks."""
    inner = re.search(r"(Traceback|[A-Z]\w*(Error|Exception)\(|<\w+ object at)", message)
    return bool(message.strip()) and message.isprintable() and len(message) < 2000 and not inner

"""AutoRound: weights in AWQ's or GPTQ's layout, by `packing_format`; a layer may have bits of its own.

Zero points are stored less one where the format is `…gptq`, and as they are in its own and in AWQ's.
Source: auto-round 0.16, `export_to_autoround`, `qlinear_torch`, `qlinear_torch_zp`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.fp8 import block_float8
from scoremode.schemes.gptq import GptqConfig, Overrides, overridden, size_of, stored_less_one
from scoremode.schemes.layout import SCALES, UNTOLD, Layout, Linear, Tensor
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed
from scoremode.schemes.patterns import Patterns
from scoremode.schemes.qweight import MARKS, Declared, Qweight, Stored, promised_qweight

_METHOD = "quantization method 'auto-round'"
_NAME = re.compile(r"[\w.-]+")
# The scales of float8 blocks.
_SCALE = "weight_scale_inv"
# Weights in it are as they are stored.
_DENSE = 16
_WORDS = {"columns": "inputs", "outputs": "outputs"}
# Parts of a `packing_format` that name a layout; of an older `backend` also what it once ran on.
_PACKINGS = frozenset(
    (
        *("", "gptq", "auto_gptq", "awq", "auto_awq", "gptqmodel"),
        *("exllamav2", "tritonv2", "triton", "torch"),
    )
)


@dataclass(frozen=True)
class AutoRoundConfig(GptqConfig):
    """The fields of the config that decide what a weight means.

    - `order`: of its words, None if not said.
    - `float8`: modules whose weights are float8, by name or pattern of `extra_config`, and the rows
      and columns of each that share a scale.
    """

    order: str | None = None
    float8: tuple[tuple[Patterns, tuple[int, int]], ...] = ()

    def block_of(self, module: str) -> tuple[int, int] | None:
        """Rows and columns that share a scale, of a module in float8; None for the rest."""
        # A name goes before patterns.
        for names, block in self.float8:
            if names.has(module) or (module not in self.named and names.matches(module)):
                return block
        return None


def parse_auto_round(config: Mapping[str, Any]) -> AutoRoundConfig:
    """Reads a `quantization_config`."""
    fields = Fields(config, method=_METHOD)
    _refuse_others(fields)
    name = "packing_format" if fields.any("packing_format") is not None else "backend"
    packing = (fields.text(name) or "").lower()
    # Up to 0.2 it was `autoround:exllamav2`; `auto` says nothing.
    packing = "" if packing == "auto" else packing.replace("autoround", "auto_round")
    if not set(packing.replace("auto_round", "").split(":")) <= _PACKINGS:
        raise not_decoded(_METHOD, name, packing)
    bits = fields.whole("bits")
    if bits is None:
        raise fields.wrong("bits", "a number of bits")
    less_one, order = None, None
    if "awq" in packing:
        less_one, order = False, "outputs"
    elif packing:
        less_one = "gptq" in packing and "gptqmodel" not in packing
        order = "columns"
    declared = Declared(bits, size_of(fields, 128), bool(fields.flag("sym", True)))
    extra = fields.object("extra_config")
    patterns, overrides, named = [], [], {}
    float8: dict[tuple[int, int], list[str]] = {}
    for pattern in fields.any("extra_config") or {}:
        assert extra is not None
        what = extra.object(pattern)
        if what is not None and (block := _float8_block(what)) is not None:
            is_name = _NAME.fullmatch(pattern) is not None
            float8.setdefault(block, []).append(pattern if is_name else f"re:{pattern}$")
            continue
        if what is not None and what.any("bits") != _DENSE:
            _refuse_others(what)
        own = overridden(what, declared)
        said = own if own.bits < _DENSE else None
        # Names of modules as they are, or regular expressions.
        if _NAME.fullmatch(pattern):
            named[pattern] = said
        else:
            patterns.append(f"re:{pattern}$")
            overrides.append(said)
    desc_act = bool(fields.flag("desc_act", False))
    of_pattern = Overrides(Patterns(patterns, "extra_config"), tuple(overrides))
    blocks = tuple((Patterns(names, "extra_config"), block) for block, names in float8.items())
    return AutoRoundConfig(declared, of_pattern, desc_act, less_one, order, blocks, named=named)


def _float8_block(what: Fields) -> tuple[int, int] | None:
    """Rows and columns under one scale, of float8 weights in blocks whose inputs stay as they are."""
    kind, size = what.any("data_type"), what.any("group_size")
    dense_inputs = (what.whole("act_bits") or _DENSE) >= _DENSE
    if what.any("bits") != 8 or kind not in ("fp", "fp8", "fp8_e4m3") or not dense_inputs:
        return None
    match size:
        case [int(rows), int(columns)] if 0 < rows < 1 << 31 and 0 < columns < 1 << 31:
            return rows, columns
    return None


def _refuse_others(fields: Fields) -> None:
    """Raises UnsupportedFormat for weights that aren't integers, and for quantized inputs."""
    kind = fields.text("data_type", "int")
    if kind is not None and not kind.startswith("int"):
        raise fields.not_decoded("data_type", kind)
    bits = fields.whole("act_bits")
    if bits is not None and bits < _DENSE:
        raise fields.not_decoded("act_bits", bits)
    fields.refuse("super_bits")


def _float8_layout(scaling: Scaling) -> Layout:
    return {
        "weight": Tensor("F8_E4M3", scaling.shape),
        _SCALE: Tensor("F32", scaling.stored_shape, SCALES),
    }


class Modules(Library[AutoRoundConfig]):
    """Linears with a `qweight`."""

    methods = frozenset(("auto-round", "intel/auto-round", "auto_round", "autoround"))
    parse = staticmethod(parse_auto_round)
    method = _METHOD
    about = ("`auto-round`", "what it stores as GPTQ or AWQ do, and float8 blocks", "W")
    marks = MARKS
    required = "qweight"
    untold = f"{UNTOLD}, and the words' order where packing_format is missing"

    def promise(self, linear: Linear) -> Layout | None:
        config = self.config
        if (block := config.block_of(linear.module)) is not None:
            return _float8_layout(Scaling(linear.shape, "block", block=block))
        declared = config.of(linear.module)
        if not linear.in_layer or declared is None:
            return None
        zero = 1 << (declared.bits - 1)
        if config.order == "outputs":
            return promised_qweight(linear, declared, "outputs", zero)
        zero -= bool(config.less_one)
        ordered = config.desc_act or None
        return promised_qweight(linear, declared, "columns", zero, ordered=ordered)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Packed, str]:
        stored, config = Stored(module, tensors, self.checkpoint), self.config
        block = config.block_of(module)
        if block is not None:
            scaling = Scaling(stored.matrix("weight"), "block", block=block)
            stored.match(_float8_layout(scaling))
            if unknown := set(tensors) - {"weight", _SCALE, "bias"}:
                raise stored.wrong(f"float8 with {', '.join(sorted(unknown))}: not decoded")
            return block_float8(scaling, scale=_SCALE), "auto-round"
        first = config.of(module)
        if first is None:
            raise stored.wrong(f"stored quantized, and extra_config says {_DENSE} bits")
        order, bits, shape, groups = stored.words()
        if config.order not in (None, order):
            raise stored.wrong(
                f"qweight has words of {_WORDS[order]}, and packing_format says "
                f"{_WORDS[config.order]}"
            )
        declared = stored.declared(bits, shape[1], groups, first, config.all)
        scaling = stored.scaling(shape, declared)
        less_one = ordered = False
        if order == "columns":
            less_one = stored_less_one(stored, bits, declared.symmetric, config.less_one)
            ordered = stored.in_activation_order(scaling, declared=config.desc_act)
        elif declared.symmetric and not stored.zeros_are(8, bits):
            raise stored.wrong("sym is not false, and its zero points are not all 8")
        scheme = Qweight.of(
            scaling, bits, "AutoRound", order, not declared.symmetric, ordered, less_one
        )
        return stored.used_by(scheme, "qzeros", "g_idx"), "auto-round"

"""GPTQ: integers of 2, 3, 4 or 8 bits, as AutoGPTQ and GPTQModel store them.

Their first format stores zero points less one, the second as they are; configs say the wrong one at
times. Where weights are declared symmetric the zero points are half of the codes' range, which tells;
for others the config's word is taken, but not where the first format has a code that one can't be added
to: GPTQModel carries into the next one, vLLM takes 2^bits, others zero.

Which linears are quantized is told by their tensors; configs don't list the others.
Sources: AutoGPTQ 0.7; GPTQModel 7.7, `QuantizeConfig`, `convert_gptq_v1_to_v2_format_module`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.schemes.fields import Fields, not_decoded, shown
from scoremode.schemes.layout import UNTOLD, Layout, Linear
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.patterns import Patterns
from scoremode.schemes.qweight import (
    MARKS,
    Declared,
    Qweight,
    Stored,
    check_gates,
    promised_qweight,
)

_METHOD = "quantization method 'gptq'"
# By format: whether zero points are stored less one.
_FORMATS = {"gptq": True, "gptq_v2": False}
_WORDS = ("int32", "torch.int32")
# Fields that say that a weight means more than its tensors tell.
_MORE = ("adapter", "is_marlin_format")


@dataclass(frozen=True)
class Overrides:
    """Settings of modules by the first pattern that matches from their names' start; None for those
    that are not quantized."""

    patterns: Patterns
    declared: tuple[Declared | None, ...]


@dataclass(frozen=True)
class GptqConfig(TensorsDecide):
    """The fields of the config that decide what a weight means.

    - `overrides`: go before `declared`.
    - `named`: those of modules by name, which go before all; exports list experts by the ten thousand.
    - `less_one`: whether zero points are stored less one, None if nothing says it.
    """

    declared: Declared
    overrides: Overrides
    desc_act: bool
    less_one: bool | None
    named: Mapping[str, Declared | None] = field(default_factory=dict, kw_only=True)

    def of(self, module: str) -> Declared | None:
        """The module's settings by the config, None if it is not to be quantized."""
        if module in self.named:
            return self.named[module]
        index = self.overrides.patterns.first(module)
        return self.declared if index is None else self.overrides.declared[index]

    @cached_property
    def all(self) -> tuple[Declared, ...]:
        """Every setting that the config has for some module, each once."""
        every = (self.declared, *self.overrides.declared, *self.named.values())
        return tuple(dict.fromkeys(d for d in every if d is not None))


def parse_gptq(config: Mapping[str, Any]) -> GptqConfig:
    """Reads a `quantization_config`."""
    fields = Fields(config, method=_METHOD)
    fields.refuse(*_MORE)
    fields.choice("pack_dtype", _WORDS, "int32")
    name = "checkpoint_format" if fields.any("checkpoint_format") is not None else "format"
    checkpoint_format = fields.choice(name, _FORMATS)
    other = fields.any("format")
    if name != "format" and isinstance(other, str) and other in {*_FORMATS} - {checkpoint_format}:
        # The two have zero points that differ by one.
        raise fields.wrong("format", f"its checkpoint_format {shown(checkpoint_format)}")
    bits = fields.whole("bits")
    if bits is None:
        raise fields.wrong("bits", "a number of bits")
    declared = Declared(bits, size_of(fields, 128), bool(fields.flag("sym", True)))
    # Writers that name no format know the first one only.
    form = checkpoint_format or "gptq"
    overrides, ordered = _overrides(fields, declared, form)
    desc_act = bool(fields.flag("desc_act", False)) or ordered
    return GptqConfig(declared, overrides, desc_act, _FORMATS[form])


def _overrides(fields: Fields, base: Declared, form: str) -> tuple[Overrides, bool]:
    """GPTQModel's `dynamic`: pattern → what differs; `-:` before one says not quantized. And whether
    the inputs of some are in activation order."""
    dynamic = fields.object("dynamic")
    patterns, found, ordered = [], [], False
    for pattern in fields.any("dynamic") or {}:
        assert dynamic is not None
        what, declared = dynamic.object(pattern), None
        if not pattern.startswith("-:"):
            declared = overridden(what, base)
            if what is not None:
                _refuse_others(what, pattern, form)
                ordered = ordered or bool(what.flag("desc_act", False))
        patterns.append("re:" + re.sub(r"^[+-]:", "", pattern))
        found.append(declared)
    return Overrides(Patterns(patterns, "dynamic"), tuple(found)), ordered


def _refuse_others(what: Fields, pattern: str, form: str) -> None:
    """Raises UnsupportedFormat for what else an override says that would change a weight."""
    same: dict[str, tuple[str, ...]] = dict.fromkeys(("format", "checkpoint_format"), (form,))
    same |= dict.fromkeys(("method", "quant_method"), ("gptq",)) | {"pack_dtype": _WORDS}
    for name in (*same, *_MORE):
        value = what.any(name)
        if value and value not in same.get(name, ()):
            raise not_decoded(_METHOD, f"dynamic, {pattern}, {name}", value)


def overridden(what: Fields | None, base: Declared) -> Declared:
    """`base` with what an override says; raises CheckpointError for values of another type."""
    if what is None:
        return base
    bits, symmetric = what.whole("bits", base.bits), what.flag("sym", base.symmetric)
    assert bits is not None and symmetric is not None
    return Declared(bits, size_of(what, base.group_size), symmetric)


def size_of(fields: Fields, default: int) -> int:
    """The `group_size`; -1 is all inputs. Raises CheckpointError for what is no size."""
    size = fields.size("group_size", default)
    if size is None:
        raise fields.wrong("group_size", "a size")
    return size


def stored_less_one(stored: Stored, bits: int, symmetric: bool, declared: bool | None) -> bool:
    """Tells whether zero points are stored less one; `declared`: what the config says, None if nothing.

    Raises CheckpointError where it can't be told, or where readers differ.
    """
    half, most = 1 << (bits - 1), (1 << bits) - 1
    if symmetric:
        for zero, less_one in ((half - 1, True), (half, False)):
            if stored.zeros_are(zero, bits):
                return less_one
        raise stored.wrong(
            f"sym is not false, and its zero points are neither all {half - 1} (stored less "
            f"one, checkpoint_format gptq) nor all {half} (gptq_v2)"
        )
    if declared is None:
        raise stored.wrong(
            "nothing says whether its zero points are stored less one (checkpoint_format gptq) or as "
            "they are (gptq_v2)"
        )
    if declared and stored.has_zero(most, bits):
        raise stored.wrong(
            f"a zero point is stored as {most}, to which the format gptq has one added: "
            f"{most + 1}, 0, or a carry into the next one, by who reads it; gptq_v2 has {most}"
        )
    return declared


class Modules(Library[GptqConfig]):
    """Linears with a `qweight` [words of inputs, O]."""

    # Some configs name the kernel that vLLM is to run.
    methods = frozenset(("gptq", "gptq_marlin"))
    parse = staticmethod(parse_gptq)
    method = _METHOD
    about = ("`gptq`", "yes; not GPTQModel's planar, Marlin's and BitBLAS' layouts", "W")
    looks, looks_by = "GPTQ or AWQ", ("qweight",)
    told = ({"desc_act"},)
    marks = MARKS
    required = "qweight"
    untold = f"{UNTOLD}, whether zero points are stored less one, and the order of inputs"

    def check(self) -> None:
        super().check()
        check_gates(self.checkpoint)

    def promise(self, linear: Linear) -> Layout | None:
        config, declared = self.config, self.config.of(linear.module)
        if not linear.in_layer or declared is None:
            return None
        zero = (1 << (declared.bits - 1)) - bool(config.less_one)
        return promised_qweight(linear, declared, "columns", zero, ordered=config.desc_act)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Qweight, str]:
        stored, config = Stored(module, tensors, self.checkpoint), self.config
        first = config.of(module)
        if first is None:
            raise stored.wrong("stored quantized, and dynamic says that it isn't")
        order, bits, shape, groups = stored.words()
        if order != "columns":
            raise stored.wrong("qweight has words of outputs, as AWQ's, and the config says GPTQ")
        declared = stored.declared(bits, shape[1], groups, first, config.all)
        scaling = stored.scaling(shape, declared)
        less_one = stored_less_one(stored, bits, declared.symmetric, config.less_one)
        ordered = stored.in_activation_order(scaling, declared=config.desc_act)
        scheme = Qweight.of(scaling, bits, "GPTQ", order, not declared.symmetric, ordered, less_one)
        return stored.used_by(scheme, "qzeros", "g_idx"), "gptq"

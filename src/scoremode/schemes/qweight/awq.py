"""AWQ: 4-bit integers with zero points, in AutoAWQ's layouts `gemm`, `gemv` and `gemv_fast`.

Which linears are quantized is told by their tensors: a config lists others by parts of their names, and
leaves out heads.
Source: AutoAWQ 0.2.9, `WQLinear_GEMM`, and what the others name; transformers 5.23, `AwqConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.foreseen import UNTOLD, Foresee, Foreseen, Linear
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.qweight.gemv import SIZES, Gemv, foreseen_gemv, stored_gemv
from scoremode.schemes.qweight.gemv_fast import (
    GemvFast,
    foreseen_gemv_fast,
    stored_gemv_fast,
)
from scoremode.schemes.qweight.scheme import Qweight
from scoremode.schemes.qweight.stored import (
    MARKS,
    Declared,
    Stored,
    check_any,
    check_gates,
    foreseen_tensors,
)

__all__ = ["AwqConfig", "Modules", "parse_awq"]

_METHOD = "quantization method 'awq'"
_VERSIONS = ("gemm", "gemv", "gemv_fast")


@dataclass(frozen=True)
class AwqConfig(TensorsDecide):
    """All of the config that decides what a weight means.

    - `version`: the layout.
    - `not_converted`: names, or runs of a name's components, that are not quantized.
    """

    version: str
    declared: Declared
    not_converted: tuple[str, ...]

    def excepts(self, module: str) -> bool:
        """Tells whether `not_converted` names the module."""
        parts = module.split(".")
        ends = range(1, len(parts) + 1)
        # Lists may have hundreds of names, and a checkpoint tens of thousands of experts.
        runs = (".".join(parts[begin:end]) for end in ends for begin in range(end))
        return not self._names.isdisjoint(runs)

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.not_converted)


def parse_awq(config: Mapping[str, Any]) -> AwqConfig:
    """Reads a `quantization_config`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    # GPTQModel calls it a format.
    said = {name: fields.text(name) for name in ("version", "format", "checkpoint_format")}
    versions = {name: version.lower() for name, version in said.items() if version is not None}
    layout = next(iter(versions.values()), "gemm")
    for name, version in versions.items():
        if version not in _VERSIONS or version != layout:
            raise not_decoded(_METHOD, name, said[name])
    bits = _one_of(fields, "bits", "w_bit", 4)
    if bits != 4:
        raise not_decoded(_METHOD, "bits", bits)
    size = _one_of(fields, "group_size", "q_group_size", 128)
    if size != -1 and not 0 < size < 1 << 31:
        raise fields.wrong("group_size", "a size")
    if layout != "gemm" and size < 128 and size not in (-1, *SIZES):
        raise not_decoded(_METHOD, f"version '{layout}' and group_size", size)
    symmetric = not fields.flag("zero_point", True)
    if layout == "gemv_fast" and symmetric:
        raise not_decoded(_METHOD, f"version '{layout}' and zero_point", False)
    return AwqConfig(layout, Declared(4, size, symmetric), fields.names("modules_to_not_convert"))


def _one_of(fields: Fields, name: str, older: str, default: int) -> int:
    value = fields.whole(name)
    value = fields.whole(older) if value is None else value
    return default if value is None else value


class Modules(Library):
    """Linears with a `qweight` [I, words of outputs], [O, words of inputs] (`gemv`), or words of four
    outputs (`gemv_fast`)."""

    # Some say the kernel that vLLM shall run.
    methods = frozenset(("awq", "awq_marlin"))
    marks = MARKS
    untold = UNTOLD

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._checkpoint = checkpoint
        self._config = parse_awq(config)
        check_any(checkpoint, _METHOD)
        check_gates(checkpoint, config)

    @property
    def config(self) -> AwqConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        parsed = parse_awq(config)

        def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
            if not linear.in_layer or parsed.excepts(linear.module):
                return None
            if parsed.version == "gemv":
                return foreseen_gemv(linear, parsed.declared)
            if parsed.version == "gemv_fast":
                return foreseen_gemv_fast(linear, parsed.declared)
            return foreseen_tensors(linear, parsed.declared, "outputs", 8)

        return tensors

    def scheme(
        self, module: str, tensors: Mapping[str, TensorInfo]
    ) -> tuple[Qweight | Gemv | GemvFast, str]:
        stored = Stored(module, tensors, self._checkpoint)
        if self._config.excepts(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        if set(tensors) == {"scales"}:
            # In models without a gate, such as Falcon, no linear before it could take the factors.
            raise UnsupportedFormat(
                f"{module}: this activation's output is divided by its tensor {module}.scales "
                "(AutoAWQ's ScaledActivation), and dividing it is not built"
            )
        if self._config.version == "gemv":
            return stored.used_by(stored_gemv(stored, self._config.declared)), "awq"
        if self._config.version == "gemv_fast":
            return stored.used_by(stored_gemv_fast(stored, self._config.declared)), "awq"
        order, bits, shape, groups = stored.layout()
        if order != "outputs":
            raise stored.wrong("qweight has words of inputs, as GPTQ's, and the config says AWQ")
        declared = stored.declared(bits, shape[1], groups, self._config.declared, ())
        if declared.symmetric and not stored.zeros_are(8, bits):
            raise stored.wrong("zero_point is false, and its zero points are not all 8")
        scaling = stored.scaling(shape, declared)
        scheme = Qweight(scaling, bits, "AWQ", order, not declared.symmetric)
        return stored.used_by(scheme, "qzeros"), "awq"

"""AWQ: 4-bit integers with zero points, in AutoAWQ's layouts `gemm`, `gemv` and `gemv_fast`.

Which linears are quantized is told by their tensors: a config lists others by parts of their names, and
leaves out heads.
Source: AutoAWQ 0.2.9, `WQLinear_GEMM`, and what the others name; transformers 5.23, `AwqConfig`.

Layout `gemv`: a row of words for each output, its zero points packed along its groups.

The effective weight is (q - z) · s, rounded in float16, as its kernel for more than eight tokens has
it; the other one multiplies in float32.
Source: AutoAWQ 0.2.9, `WQLinear_GEMV`; its kernels' `gemmv2_forward_4bit_cuda_m128n64k32`.

Layout `gemv_fast`, llm-awq's own: words of 16 bits, four outputs' side by side.

The effective weight is q · s + z in float16, rounded once, as its kernels have it: zero points are
stored times the scale and negated. Here it is a product and a sum in float32, both exact where a zero
point is a code's multiple of the scale.
Source: AutoAWQ 0.2.9, `WQLinear_GEMVFast`, `pack_intweight`; its kernels' `dequantize_s4_to_fp16x2` and
`__hfma2` after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import (
    Elements,
    Tensors,
    look_up,
    row_blocks,
    unpack_integers,
)
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.layout import UNTOLD, Layout, Linear, Tensor
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.packed import Packed
from scoremode.schemes.qweight import (
    MARKS,
    Declared,
    Qweight,
    Stored,
    check_gates,
    promised_qweight,
)

# Words of zero points come in multiples of as many, by the size of groups; one from 128 on.
SIZES = {32: 4, 64: 2}


@dataclass(frozen=True)
class Gemv(Packed):
    """Integers of 4 bits under a scale and a zero point for each group of an output's inputs.

    - `qweight` int32 [O, I / 8]; `qzeros` int32 [O, words], eight groups to each; `scales`
      [O, 8 · words]. These two have more places than there are groups.
    """

    @classmethod
    def of(cls, scaling: Scaling) -> "Gemv":
        return cls(
            scaling=scaling,
            elements=Elements(4),
            label=f"AWQ W4A16 {scaling.label} asym",
            codes=Codes("int", 15, scaling.columns_of_one),
            weight="qweight",
            scale="scales",
            zero_point="qzeros",
        )

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        super().decode(self._of_groups(tensors, scratch), out, scratch)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return super().factor(self._of_groups(tensors, scratch), out, scratch)

    def _of_groups(self, tensors: Tensors, scratch: Scratch) -> dict[str, torch.Tensor]:
        """The tensors, of which scales and zero points are [O, groups], these int8."""
        groups = self.scaling.stored_shape[1]
        # A copy, since the integers are scratch.
        zero_points = unpack_integers(tensors["qzeros"], self.elements, groups, scratch).clone()
        scales = tensors["scales"][:, :groups].contiguous()
        return {"qweight": tensors["qweight"], "scales": scales, "qzeros": zero_points}


def gemv_layout(shape: tuple[int, int], declared: Declared) -> Layout | None:
    """The tensors of a linear, by the config alone with all zero points 8; None where its inputs are no
    whole number of words and groups."""
    rows, columns = shape
    size = declared.size(columns)
    if columns % 8 or columns % size:
        return None
    words = zero_words(columns, size)
    return {
        "qweight": Tensor("I32", (rows, columns // 8)),
        "qzeros": Tensor("I32", (rows, words), content=b"\x88"),
        "scales": Tensor("F16", (rows, 8 * words)),
    }


def stored_gemv(stored: Stored, declared: Declared) -> Gemv:
    """The Scheme of a module. Raises CheckpointError."""
    rows, width = stored.matrix("qweight", ("I32",))
    shape = rows, 8 * width
    size, layout = declared.size(shape[1]), gemv_layout(shape, declared)
    if layout is None:
        raise stored.wrong(f"{shape[1]} inputs are no whole number of groups of {size}")
    stored.match(layout)
    if declared.symmetric and not _are_eight(stored, shape[1] // size):
        raise stored.wrong("zero_point is false, and its zero points are not all 8")
    return Gemv.of(stored.scaling(shape, declared))


def zero_words(columns: int, size: int) -> int:
    """The number of words that an output's zero points take, eight groups to each."""
    multiple = SIZES.get(size, 1)
    return -(-columns // size // (8 * multiple)) * multiple


def _are_eight(stored: Stored, groups: int) -> bool:
    info = stored.tensors["qzeros"]
    words = np.frombuffer(stored.checkpoint.read_bytes(info.name), "<u4").reshape(info.shape)
    codes = words[:, :, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    return bool((codes.reshape(len(words), -1)[:, :groups] == 8).all())


@dataclass(frozen=True)
class GemvFast:
    """Integers of 4 bits in groups of `size` inputs.

    - `qweight` int16 [O / 4, I]: for every 64 inputs 16 words of each of four outputs. Eight words are
      32 inputs, and the b-th code of the j-th is input 8 b + j.
    - `scales`, `qzeros` float16 [places, O]: more places than there are groups.
    """

    shape: tuple[int, int]
    size: int

    @property
    def label(self) -> str:
        return f"AWQ W4A16 g{self.size} asym"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("qweight", "scales", "qzeros")

    @property
    def inputs(self) -> None:
        return None

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        packed, groups = tensors["qweight"].contiguous(), self.shape[1] // self.size
        scale, zero = (tensors[name][:groups].contiguous() for name in ("scales", "qzeros"))

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.gemv_fast(out, packed, scale, zero, self.size)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        scale, zero = (t.T.float().unsqueeze(2) for t in (scale, zero))
        for rows in row_blocks(self.shape, out.device, 4):
            q = self._codes(packed[rows.start // 4 : rows.stop // 4], scratch)
            q.unflatten(1, (-1, self.size)).mul_(scale[rows]).add_(zero[rows])
            rounded = scratch.get("rounded", tuple(q.shape), torch.float16, q.device)
            out[rows].copy_(q.copy_(rounded.copy_(q)))

    def _codes(self, packed: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        """float32 [4 n, I] from 0 on, of [n, I] words, valid until the next call."""
        shape = 4 * len(packed), self.shape[1]
        words = scratch.get("words", (shape[0], shape[1] // 4), packed.dtype, packed.device)
        by_row = packed.unflatten(1, (-1, 4, 16)).transpose(1, 2)
        words.view(by_row.shape).copy_(by_row)
        found = look_up(words.view(torch.uint8), Elements(4), torch.float32, scratch)
        q = scratch.get("values", shape, torch.float32, packed.device)
        q.unflatten(1, (-1, 4, 8)).copy_(found.unflatten(1, (-1, 8, 4)).transpose(2, 3))
        return q.add_(8)


def gemv_fast_layout(shape: tuple[int, int], declared: Declared) -> Layout | None:
    """The tensors of a linear; None where it fills no whole words and groups."""
    rows, columns = shape
    size = declared.size(columns)
    if rows % 4 or columns % 64 or columns % size:
        return None
    places = Tensor("F16", (8 * zero_words(columns, size), rows))
    return {"qweight": Tensor("I16", (rows // 4, columns)), "scales": places, "qzeros": places}


def stored_gemv_fast(stored: Stored, declared: Declared) -> GemvFast:
    """The Scheme of a module. Raises CheckpointError."""
    height, columns = stored.matrix("qweight", ("I16",))
    shape, size = (4 * height, columns), declared.size(columns)
    layout = gemv_fast_layout(shape, declared)
    if layout is None:
        raise stored.wrong(f"{columns} inputs are no whole number of 64 or of groups of {size}")
    stored.match(layout)
    return GemvFast(shape, size)


_METHOD = "quantization method 'awq'"
_VERSIONS = ("gemm", "gemv", "gemv_fast")


@dataclass(frozen=True)
class AwqConfig(TensorsDecide):
    """The fields of the config that decide what a weight means.

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
    """Reads a `quantization_config`."""
    fields = Fields(config, method=_METHOD)
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


class Modules(Library[AwqConfig]):
    """Linears with a `qweight` [I, words of outputs], [O, words of inputs] (`gemv`), or words of four
    outputs (`gemv_fast`)."""

    # Some configs name the kernel that vLLM is to run.
    methods = frozenset(("awq", "awq_marlin"))
    parse = staticmethod(parse_awq)
    method = _METHOD
    about = ("`awq`", "`gemm`, `gemv`, `gemv_fast`, 4 bits", "W")
    looks, looks_by = "GPTQ or AWQ", ("qweight",)
    told = ({"zero_point"},)
    marks = MARKS
    required = "qweight"
    untold = UNTOLD

    def check(self) -> None:
        super().check()
        check_gates(self.checkpoint)

    def promise(self, linear: Linear) -> Layout | None:
        config = self.config
        if not linear.in_layer or config.excepts(linear.module):
            return None
        match config.version:
            case "gemv":
                return gemv_layout(linear.shape, config.declared)
            case "gemv_fast":
                return gemv_fast_layout(linear.shape, config.declared)
            case _:
                return promised_qweight(linear, config.declared, "outputs", 8)

    def scheme(
        self, module: str, tensors: Mapping[str, TensorInfo]
    ) -> tuple[Qweight | Gemv | GemvFast, str]:
        stored = Stored(module, tensors, self.checkpoint)
        if self.config.excepts(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        if set(tensors) == {"scales"}:
            # In models without a gate, such as Falcon, no linear before it could take the factors.
            raise UnsupportedFormat(
                f"{module}: this activation's output is divided by its tensor {module}.scales "
                "(AutoAWQ's ScaledActivation), and dividing it is not built"
            )
        if self.config.version == "gemv":
            return stored.used_by(stored_gemv(stored, self.config.declared)), "awq"
        if self.config.version == "gemv_fast":
            return stored.used_by(stored_gemv_fast(stored, self.config.declared)), "awq"
        order, bits, shape, groups = stored.words()
        if order != "outputs":
            raise stored.wrong("qweight has words of inputs, as GPTQ's, and the config says AWQ")
        declared = stored.declared(bits, shape[1], groups, self.config.declared, ())
        if declared.symmetric and not stored.zeros_are(8, bits):
            raise stored.wrong("zero_point is false, and its zero points are not all 8")
        scaling = stored.scaling(shape, declared)
        scheme = Qweight.of(scaling, bits, "AWQ", order, not declared.symmetric)
        return stored.used_by(scheme, "qzeros"), "awq"

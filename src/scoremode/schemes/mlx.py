"""MLX: integers under a scale and a bias, q · s + b, and small floats under scales of a byte.

A linear has a `weight` and its `scales`. So have a layer's experts, whose `gate_proj`, `up_proj` and
`down_proj` hold all of them as one [E, O, I], in a module `switch_mlp` or, of some models, `experts`.
Codes of 2 to 8 bits lie in words of 32 from the lowest bits on and run on over words. Of integers the
product and the sum are each rounded in the dtype of the scales. mxfp4 and mxfp8 are e2m1 and e4m3 under
a power of two for 32 columns, nvfp4 is e2m1 under an e4m3 for 16; all of these products are exact in
bfloat16 but for the smallest.

A config's `quantization`, which newer ones have once more as `quantization_config`, has a group size, a
width in bits and a mode for all modules with scales, and by name what others have. By the config alone
those are quantized that it doesn't name and whose inputs are whole groups, as mlx-lm does where it is
told nothing else.
Source: mlx-lm 0.32, `load_model`, `quantize_model`, `QuantizedSwitchLinear`; mlx 0.32, `quantize`,
`dequantize` on a CPU.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.lib import fallback
from scoremode.schemes.base import Scheme, Scratch
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import FLOATS, Elements, Tensors, row_blocks, unpack
from scoremode.schemes.fields import Fields, not_decoded, shown
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.layout import SCALES, Headers, Layout, Linear, Tensor
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.packed import Packed
from scoremode.schemes.patterns import plain

METHOD = "quantization method 'mlx'"
_BITS = (2, 3, 4, 5, 6, 8)
# That a linear's inputs are quantized as its weight is (mlx's QQLinear).
_INPUTS = "quantize_input"
# Group size and bits of the modes that have but one pair.
_FIXED = {"mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


@dataclass(frozen=True)
class Mode:
    """The way a module's weight is quantized: `affine`, or small floats under scales of one byte."""

    name: str
    size: int
    bits: int


@dataclass(frozen=True)
class MlxConfig(TensorsDecide):
    """The fields of the config that decide what a weight means.

    - `default`: of modules that are not named.
    - `named`: by module, None for one that stays dense; without beginnings, which may be others than a
      wrapper's tensors have.
    """

    default: Mode
    named: Mapping[str, Mode | None]

    def claims(self, module: str) -> bool:
        """True where the module is named; mlx-lm takes others for what they are stored as."""
        return self.named.get(plain(module)) is not None

    def of(self, module: str) -> Mode | None:
        return self.named.get(plain(module), self.default)


def parse_mlx(config: Mapping[str, Any]) -> MlxConfig:
    """Reads MLX's `quantization`."""
    fields = Fields(config, method=METHOD)
    default = _mode(fields)
    named: dict[str, Mode | None] = {}
    for name, value in config.items():
        if name in ("group_size", "bits", "mode", "quant_method", _INPUTS):
            continue
        if value is True:
            mode = default
        elif value in (False, None, {}) and type(value) not in (int, float):
            # As to the library, which asks whether there is something.
            mode = None
        elif isinstance(value, Mapping):
            mode = _mode(Fields(value, name))
        else:
            raise not_decoded(METHOD, name, value)
        if named.setdefault(plain(name), mode) != mode:
            raise CheckpointError(
                f"quantization_config can't be understood: {shown(name)} is named twice, with other "
                "beginnings, and differs"
            )
    return MlxConfig(default, named)


def _mode(fields: Fields) -> Mode:
    """The mode in an object; a missing field has the library's own value, in a module's object too."""
    if fields.any(_INPUTS):
        raise _unsupported(fields, f"{_INPUTS} {shown(fields.any(_INPUTS))}")
    name = fields.text("mode") or "affine"
    size, bits = fields.whole("group_size"), fields.whole("bits")
    if name in _FIXED:
        fixed = _FIXED[name]
        if (size or fixed[0], bits or fixed[1]) != fixed:
            raise _unsupported(fields, f"mode '{name}' of {bits} bits in groups of {size}")
        return Mode(name, *fixed)
    if name != "affine":
        raise _unsupported(fields, f"mode {shown(name)}")
    size, bits = size or 64, bits or 4
    if size not in (16, 32, 64, 128) or bits not in _BITS:
        raise _unsupported(fields, f"{bits} bits in groups of {size}")
    return Mode(name, size, bits)


def _unsupported(fields: Fields, what: str) -> UnsupportedFormat:
    where = f"{fields.where}: " if fields.where else ""
    return UnsupportedFormat(f"{where}{METHOD} with {what}: not decoded")


def floats(shape: tuple[int, int], mode: Mode) -> Packed:
    """A weight in one of the modes `mxfp4`, `mxfp8` and `nvfp4`."""
    return Packed(
        scaling=Scaling(shape, "group", mode.size),
        elements=FLOATS[mode.bits],
        label=f"MLX {mode.name.upper()}",
        codes=Codes("float"),
        scale="scales",
        scale_dtype=torch.float8_e4m3fn if mode.name == "nvfp4" else None,
    )


@dataclass(frozen=True)
class Affine:
    """A weight of `bits` in groups of `size` columns."""

    shape: tuple[int, int]
    bits: int
    size: int

    @property
    def label(self) -> str:
        return f"MLX {self.bits}-bit g{self.size}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", "scales", "biases")

    @property
    def inputs(self) -> None:
        return None

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        packed = tensors["weight"].contiguous().view(torch.int32)
        scale, bias = tensors["scales"].contiguous(), tensors["biases"].contiguous()

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.mlx(out, packed, scale, bias, self.bits, self.size)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        elements, half = Elements(self.bits), 1 << (self.bits - 1)
        for rows in row_blocks(self.shape, out.device):
            q = unpack(packed[rows], elements, self.shape[1], scale.dtype, scratch).add_(half)
            groups = q.unflatten(1, (-1, self.size))
            groups.mul_(scale[rows].unsqueeze(2)).add_(bias[rows].unsqueeze(2))
            out[rows].copy_(q)


def _layout(shape: tuple[int, ...], mode: Mode, dtype: str) -> Layout:
    """The tensors of one linear [O, I], or of experts [E, O, I]; scales and biases are `dtype`."""
    *around, columns = shape
    groups = (*around, -(-columns // mode.size))
    words = Tensor("U32", (*around, -(-columns * mode.bits // 32)))
    if mode.name != "affine":
        return {"weight": words, "scales": Tensor("U8", groups)}
    return {
        "weight": words,
        "scales": Tensor(dtype, groups, SCALES),
        "biases": Tensor(dtype, groups),
    }


_EXPERTS = re.compile(
    r"(.*\.(?:switch_mlp|experts)\.(?:gate_proj|up_proj|down_proj)\.)(weight|scales|biases)"
)


class Modules(Library[MlxConfig]):
    """Linears, embeddings and experts with `scales` beside their weight."""

    methods = frozenset(("mlx",))
    parse = staticmethod(parse_mlx)
    method = METHOD
    about = (
        "`quantization` with `group_size` and `bits` (MLX)",
        "affine, mxfp4, mxfp8, nvfp4",
        "W",
    )
    looks, looks_by = "MLX", ("biases",)
    told = ({"bits", "group_size"},)
    required = "scales"
    marks = frozenset(("scales", "biases"))
    untold = (
        "which modules are quantized (taken for it: all linears and the embedding, where their inputs "
        "are whole groups)"
    )
    embeds = True

    def promise(self, linear: Linear) -> Layout | None:
        mode = self.config.of(linear.module)
        whole = mode is not None and linear.shape[1] % mode.size == 0
        if mode is None or not (whole or self.config.claims(linear.module)):
            return None
        return _layout(linear.shape, mode, linear.dtype)

    @classmethod
    def split(cls, name: str) -> tuple[str, str]:
        if found := _EXPERTS.fullmatch(name):
            return f"{found[1]}weight", found[2]
        return super().split(name)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        stacked = _EXPERTS.fullmatch(module) is not None
        mode = self.config.of(module.removesuffix(".weight") if stacked else module)
        if mode is None:
            raise stored.wrong("stored quantized, and the config says that it is not")
        parts = ("weight", "scales", *(("biases",) if mode.name == "affine" else ()))
        stored.refuse_others({*parts, "bias"}, f"{METHOD} in mode {mode.name}")
        weight = tensors.get("weight")
        if weight is not None and len(weight.shape) == 3 and not stacked:
            raise UnsupportedFormat(
                f"{module}: a weight of 3 dimensions ({list(weight.shape)}), and no experts' by its "
                "name: not decoded"
            )
        # One matrix, or one of each expert.
        some = (None,) * (3 if stacked else 2)
        *count, rows, width = stored.of_shape("weight", some, ("U32",))
        groups = stored.of_shape("scales", some)[-1]
        columns = groups * mode.size
        if width * 32 != columns * mode.bits:
            raise stored.wrong(
                f"{width} words a row are not {groups} groups of {mode.size} in {mode.bits} bits"
            )
        stored.match(_layout((*count, rows, columns), mode, tensors["scales"].dtype))

        def make() -> Scheme:
            shape = rows, columns
            one = (
                Affine(shape, mode.bits, mode.size)
                if mode.name == "affine"
                else floats(shape, mode)
            )
            names = tuple((part, part) for part in parts)
            return Stacked(count[0], Expert(one, names)) if stacked else one

        return self.alike((*count, rows, columns, mode), make), "mlx"

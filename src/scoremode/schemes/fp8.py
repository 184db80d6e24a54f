"""The quantized modules of a checkpoint whose `quant_method` is `fp8`, and their Schemes.

A linear has a `weight` and its scales; experts that are stored as one have `gate_up_proj` (or
`up_proj`) and `down_proj` [E, O, I], each with its `_scale_inv`.

`quantization_config` of transformers' FineGrainedFP8, as DeepSeek, Qwen and others publish it.

Which linears are quantized is told by their tensors: a checkpoint's list of others may be missing
(DeepSeek's, whose head is dense all the same) or name them by other names (GLM-5's), and transformers
uses a dense weight as it is wherever it finds one.
Source: transformers 5.23, `FineGrainedFP8Config`.

Weights of one float8 an element, with a scale a block, a row or a tensor; experts of e2m1.

The scale multiplies, whatever its name: the effective weight is code times scale in float32, rounded
once more to the dtype that is computed in. Scales are floats, or powers of two in a byte each (ue8m0).
The last blocks of rows and of columns may be short, as in DeepSeek's kernels.
Source: transformers 5.23, `Fp8Dequantize`, for whole blocks and e2m1;
compressed-tensors' `FP8BlockDequantizer` for short ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme, Scheme
from scoremode.schemes.compressed_tensors_weights import FloatQuantized, Mx
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, not_decoded
from scoremode.schemes.foreseen import UNTOLD, Foresee, Foreseen, Linear
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.patterns import NotConverted

__all__ = ["METHOD", "BlockFloat8", "Fp4", "Fp8Config", "Modules", "parse_fp8"]


METHOD = "quantization method 'fp8'"
# Said in configs that mean more than blocks of float8: ModelOpt's, Quark's, embeddings in float8.
_MORE = (
    *("quant_algo", "config_groups", "quantized_layers", "moe_quant_algo"),
    *("export", "modules_to_convert", "dequantize"),
)


@dataclass(frozen=True)
class Fp8Config:
    """What of the config decides what a weight means.

    - `block`: rows and columns that share a scale, None for one scale a tensor or a row; `says_block`:
      whether that is said, and no default of transformers'.
    - `static`: whether inputs have one stored scale; otherwise they have one a token and block of
      columns, or one a token.
    - `powers_of_two`: whether scales are such.
    - `fp4_experts`: whether weights of 8-bit integers are pairs of e2m1.
    - `not_converted`: modules that are not quantized.
    - `kv_cache`: how keys and values are declared to be quantized.
    """

    block: tuple[int, int] | None
    says_block: bool
    static: bool
    powers_of_two: bool
    fp4_experts: bool
    not_converted: NotConverted
    kv_cache: TensorFormat | UnreadCache | None = None

    def claims(self, module: str) -> bool:
        """False: a linear without a quantized one's tensors is dense."""
        return False

    @property
    def inputs(self) -> TensorFormat:
        """How a linear's input is quantized."""
        if self.static:
            return TensorFormat(8, "float", "tensor")
        if self.block is None:
            return TensorFormat(8, "float", "token", dynamic=True, powers_of_two=self.powers_of_two)
        return TensorFormat(
            8, "float", "group", self.block[1], dynamic=True, powers_of_two=self.powers_of_two
        )

    def excepts(self, module: str) -> bool:
        """Tells whether the config's list names the module."""
        return self.not_converted.name(module)


def parse_fp8(config: Mapping[str, Any], expert_dtype: Any = None) -> Fp8Config:
    """Reads a `quantization_config` whose `quant_method` is `fp8`.

    `expert_dtype`: what the model's own config says of it, as DeepSeek-V4's does.
    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    for name in _MORE:
        if fields.any(name):
            raise not_decoded(METHOD, name, fields.any(name))
    wanted = {"fmt": ("e4m3", "float8_e4m3fn"), "scale_fmt": ("float", "ue8m0")}
    for name, values in wanted.items():
        if fields.text(name) not in (None, *values):
            raise not_decoded(METHOD, name, fields.any(name))
    said = fields.text("expert_dtype")
    experts = expert_dtype if said is None else said
    if experts not in (None, "fp8", "fp4"):
        raise not_decoded(METHOD, "expert_dtype", experts)
    scheme = fields.text("activation_scheme", "dynamic") or ""
    if scheme.lower() not in ("dynamic", "static"):
        raise not_decoded(METHOD, "activation_scheme", scheme)
    return Fp8Config(
        _block(fields),
        says_block=fields.any("weight_block_size") is not None,
        static=scheme.lower() == "static",
        powers_of_two=fields.text("scale_fmt") == "ue8m0",
        fp4_experts=experts == "fp4",
        # MiniMax calls the list ignored_layers.
        not_converted=NotConverted.of(fields, "modules_to_not_convert", "ignored_layers"),
        kv_cache=declared_cache(lambda: _cache(fields)),
    )


def _cache(fields: Fields) -> TensorFormat | None:
    """AutoFP8, AMD and Tencent write `static`: float8 e4m3 under stored scales, one a tensor."""
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if (value := fields.any(name)) == "static":
            return TensorFormat(8, "float", "tensor")
        if value:
            raise not_decoded(METHOD, name, value)
    return None


def _block(fields: Fields) -> tuple[int, int] | None:
    value = fields.any("weight_block_size", [128, 128])
    if value is None:
        return None
    match value:
        case [int(rows), int(columns)] if bool not in (type(rows), type(columns)):
            if 0 < rows < 1 << 31 and 0 < columns < 1 << 31:
                return rows, columns
    raise fields.wrong("weight_block_size", "rows and columns")


@dataclass(frozen=True)
class BlockFloat8(FloatQuantized):
    """Float8 whose products with scales are rounded in float32, whatever the dtype of the scales.

    `stored_scale`: the suffix of the scales.
    """

    stored_scale: str = "weight_scale_inv"

    @property
    def label(self) -> str:
        of_two = " ue8m0" if self.inputs and self.inputs.format.powers_of_two else ""
        static = " static" if self.inputs and self.inputs.format.dynamic is False else ""
        return f"FP8 {self.scaling.label}{of_two}{static}"

    @property
    def scale_name(self) -> str:
        return self.stored_scale

    @property
    def nan_scale(self) -> bool:
        # As torch's float8_e8m0fnu, so that no score of one passes.
        return True

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        return torch.float32


@dataclass(frozen=True)
class Fp4(Mx):
    """Pairs of e2m1 in a byte, the first in the low nibble, in groups of 32 under powers of two: exact
    in bfloat16, as MXFP4 is. `stored_scale`: the suffix of the scales."""

    stored_scale: str = "weight_scale_inv"

    @property
    def label(self) -> str:
        return "FP4 g32 ue8m0"

    @property
    def tensors(self) -> tuple[str, ...]:
        return ("weight", self.stored_scale)

    @property
    def scale_name(self) -> str:
        return self.stored_scale

    @property
    def nan_scale(self) -> bool:
        return True


_SCALE = "weight_scale_inv"
# AutoFP8 and vLLM call one a tensor so, and DeepSeek-V4 all.
_PLAIN, _SHORT = "weight_scale", "scale"
_PROJECTION = re.compile(
    r"(.*\.experts\.(?:gate_up_proj|up_proj|down_proj))(?:_scale_inv|_activation_scale)?"
)
_BYTES = ("U8", "F8_E8M0")
# Scales of the outputs of linears of keys and values.
_OF_THE_CACHE = frozenset(("k_scale", "v_scale", "output_scale"))
# e2m1 that share a scale.
_GROUP = 32


@dataclass(frozen=True)
class _Names:
    """What a module's tensors are called: its weight, its scales, the static scale of its input."""

    weight: str
    scale: str
    inputs: str


class Modules(Library):
    """Linears and experts whose weights are float8 or pairs of e2m1, with scales."""

    methods = frozenset(("fp8",))
    untold = UNTOLD
    records = _OF_THE_CACHE
    marks = frozenset(
        (_SCALE, _PLAIN, *(f"{part}_proj_scale_inv" for part in ("gate_up", "gate", "up", "down")))
    )

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_fp8(config, checkpoint.text_config.get("expert_dtype"))
        if not any(
            name.rpartition(".")[2] in self.marks or info.dtype in ("F8_E4M3", "I8")
            for name, info in checkpoint.tensors.items()
        ):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a {_SCALE}: not decoded")
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[tuple, Scheme] = {}

    @property
    def config(self) -> Fp8Config:
        return self._config

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        found = _PROJECTION.fullmatch(name)
        module, _, suffix = name.rpartition(".")
        return (found[1] if found else module), suffix

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        parsed = parse_fp8(config, model.get("expert_dtype"))

        def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
            if not linear.in_layer or parsed.excepts(linear.module):
                return None
            rows, columns = linear.shape
            if parsed.fp4_experts and re.search(r"\bexperts\.\d", linear.module):
                pairs = Foreseen("I8", (rows, columns // 2))
                return {"weight": pairs, _SCALE: Foreseen("F8_E8M0", (rows, columns // _GROUP))}
            scaling = Scaling(linear.shape, "tensor")
            if parsed.block is not None:
                scaling = Scaling(linear.shape, "block", block=parsed.block)
            of_scales = Foreseen("F8_E8M0" if parsed.powers_of_two else "F32", scaling.stored_shape)
            static = {"activation_scale": Foreseen("F32", (1,))} if parsed.static else {}
            return {"weight": Foreseen("F8_E4M3", linear.shape), _SCALE: of_scales, **static}

        return tensors

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        key = (
            module.rpartition(".")[2] if _PROJECTION.fullmatch(module) else "",
            *((suffix, info.dtype, info.shape) for suffix, info in sorted(tensors.items())),
        )
        stored = Headers(module, tensors)
        if self.config.excepts(module.rpartition(".")[0] if key[0] else module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        if key not in self._alike:
            self._alike[key] = self._stacked(stored, key[0]) if key[0] else self._linear(stored)
        return self._alike[key], "fp8"

    def _linear(self, stored: Headers) -> FactoredScheme:
        found = [name for name in (_SCALE, _PLAIN, _SHORT) if name in stored.tensors]
        scale = found[0] if found else _SCALE
        static = "activation_scale" if "activation_scale" in stored.tensors else "input_scale"
        names = _Names("weight", scale, static)
        self._check_known(stored, names, "bias")
        config = self.config
        if scale == _PLAIN:
            if config.says_block:
                raise stored.wrong(f"{_PLAIN} is no block's, and weight_block_size is given")
            config = replace(config, block=None)
        return self._scheme(stored, names, config, ())

    def _stacked(self, stored: Headers, own: str) -> Stacked:
        names = _Names(own, f"{own}_scale_inv", f"{own}_activation_scale")
        self._check_known(stored, names)
        experts, *_ = stored.of_shape(own, ("F8_E4M3", "I8"), (None, None, None))
        one = self._scheme(stored, names, self.config, (experts,))
        renamed = dict(zip(one.tensors, (names.weight, names.scale), strict=True))
        if one.inputs is not None:
            renamed |= dict.fromkeys(one.inputs.tensors, names.inputs)
        return Stacked(experts, Expert(one, tuple(renamed.items())))

    def _check_known(self, stored: Headers, names: _Names, *others: str) -> None:
        known = {names.weight, names.scale, *others}
        if self.config.static:
            known.add(names.inputs)
        if self.config.kv_cache is not None:
            known |= _OF_THE_CACHE
        if unknown := set(stored.tensors) - known:
            raise UnsupportedFormat(
                f"{stored.module}: float8 with {', '.join(sorted(unknown))} is not supported"
            )

    def _scheme(
        self, stored: Headers, names: _Names, config: Fp8Config, experts: tuple[int, ...]
    ) -> FactoredScheme:
        """The Scheme of a linear, or of one expert where tensors have these many."""
        any_size = (None, None)
        weight = stored.tensors.get(names.weight)
        in_pairs = weight is not None and weight.dtype == "I8"
        of_type = ("I8",) if in_pairs else ("F8_E4M3",)
        *_, rows, columns = stored.of_shape(names.weight, of_type, (*experts, *any_size))
        inputs = Inputs(config.inputs, ())
        suffix = _SCALE if experts else names.scale
        if config.static:
            shapes = [experts] if experts else [(), (1,), (1, 1)]
            stored.check_input(names.inputs, shapes=shapes)
            inputs = replace(inputs, tensors=("activation_scale" if experts else names.inputs,))
        if in_pairs:
            if not config.fp4_experts:
                raise UnsupportedFormat(
                    f"{stored.module}: weight has dtype I8, and expert_dtype is not fp4: not decoded"
                )
            scaling = Scaling((rows, columns * 2), "group", _GROUP)
            stored.expect(names.scale, _BYTES, [(*experts, *scaling.stored_shape)])
            return Fp4(scaling, 4, inputs=inputs, stored_scale=suffix)
        scaling = self._scaling(stored, names, config, (rows, columns), experts)
        if stored.tensors[names.scale].dtype in _BYTES and not config.powers_of_two:
            raise stored.wrong(
                f"its scales are powers of two ({stored.tensors[names.scale].dtype}), and scale_fmt "
                "is not ue8m0"
            )
        return BlockFloat8(scaling, inputs=inputs, stored_scale=suffix)

    def _scaling(
        self,
        stored: Headers,
        names: _Names,
        config: Fp8Config,
        shape: tuple[int, int],
        experts: tuple[int, ...],
    ) -> Scaling:
        """Where the scales apply, by their shape: that of blocks, of rows, or of a tensor."""
        rows, columns = shape
        possible: dict[tuple[int, ...], Scaling] = {}
        if config.block is not None:
            scaling = Scaling(shape, "block", block=config.block)
            possible[*experts, *scaling.stored_shape] = scaling
            halved = scaling.stored_shape[0] == 1
            width = config.block[1]
        else:
            possible = dict.fromkeys([(*experts, 1, 1)], Scaling(shape, "tensor"))
            if not experts:
                possible |= dict.fromkeys([(), (1,)], Scaling(shape, "tensor"))
                possible.setdefault((rows,), Scaling(shape, "channel"))
            possible.setdefault((*experts, rows, 1), Scaling(shape, "channel"))
            halved, width = True, columns
        if halved and names.weight == "gate_up_proj" and rows > 2 and rows % 2 == 0:
            # Gate and up have scales of their own where both are within one block.
            half = Scaling(shape, "block", block=(rows // 2, width))
            possible.setdefault((*experts, 2, ceil(columns / width)), half)
        found = stored.expect(names.scale, (*SCALES, *_BYTES), list(possible))
        return possible[found.shape]

"""FP8 as transformers' FineGrainedFP8 has it, and DeepSeek, Qwen and others publish it.

A linear has a `weight` of one float8 an element, with a scale a block, a row or a tensor; experts that
are stored as one have `gate_up_proj` (or `up_proj`) and `down_proj` [E, O, I], each with its
`_scale_inv`; some experts are pairs of e2m1 in groups of 32. The scale multiplies, whatever its name:
the effective weight is code times scale in float32, rounded once more to the dtype that is computed in.
Scales are floats, or powers of two in a byte each (ue8m0). The last blocks of rows and of columns may
be short, as in DeepSeek's kernels.

Which linears are quantized is told by their tensors: a checkpoint's list of others may be missing
(DeepSeek's, whose head is dense all the same) or name them by other names (GLM-5's), and transformers
uses a dense weight as it is wherever it finds one.
Source: transformers 5.23, `FineGrainedFP8Config`, `Fp8Dequantize`, for whole blocks and e2m1;
compressed-tensors' `FP8BlockDequantizer` for short ones.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scheme
from scoremode.schemes.compressed_tensors_weights import float_quantized, mx
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, not_decoded
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.layout import POWERS_OF_TWO, SCALES, UNTOLD, Headers, Layout, Linear, Tensor
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed
from scoremode.schemes.patterns import NotConverted

METHOD = "quantization method 'fp8'"
# Said in configs that mean more than blocks of float8: ModelOpt's, Quark's, embeddings in float8.
_MORE = (
    *("quant_algo", "config_groups", "quantized_layers", "moe_quant_algo"),
    *("export", "modules_to_convert", "dequantize"),
)


@dataclass(frozen=True)
class Fp8Config:
    """The fields of the config that decide what a weight means.

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
        """The format of a linear's input."""
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
    """
    fields = Fields(config, method=METHOD)
    fields.refuse(*_MORE)
    fields.choice("fmt", ("e4m3", "float8_e4m3fn"))
    scales = fields.choice("scale_fmt", ("float", "ue8m0"))
    said = fields.text("expert_dtype")
    experts = expert_dtype if said is None else said
    if experts not in (None, "fp8", "fp4"):
        raise not_decoded(METHOD, "expert_dtype", experts)
    scheme = fields.text("activation_scheme", "dynamic") or ""
    if scheme.lower() not in ("dynamic", "static"):
        raise not_decoded(METHOD, "activation_scheme", scheme)
    return Fp8Config(
        fields.block("weight_block_size", [128, 128]),
        says_block=fields.any("weight_block_size") is not None,
        static=scheme.lower() == "static",
        powers_of_two=scales == "ue8m0",
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


def block_float8(
    scaling: Scaling, *, inputs: Inputs | None = None, scale: str = "weight_scale_inv"
) -> Packed:
    """Float8 whose products with scales are rounded in float32, whatever the dtype of the scales."""
    of_two = " ue8m0" if inputs and inputs.format.powers_of_two else ""
    static = " static" if inputs and inputs.format.dynamic is False else ""
    label = f"FP8 {scaling.label}{of_two}{static}"
    # A scale's NaN is that of torch's float8_e8m0fnu, so that no score of one passes.
    return float_quantized(
        scaling, inputs=inputs, label=label, scale=scale, nan_scale=True, rounded=torch.float32
    )


def fp4(
    scaling: Scaling, *, inputs: Inputs | None = None, scale: str = "weight_scale_inv"
) -> Packed:
    """Pairs of e2m1 in a byte, the first in the low nibble, in groups of 32 under powers of two: exact
    in bfloat16, as MXFP4 is."""
    names = {"label": "FP4 g32 ue8m0", "weight": "weight", "scale": scale}
    return mx(scaling, 4, inputs=inputs, nan_scale=True, **names)


_SCALE = "weight_scale_inv"
# AutoFP8 and vLLM call one a tensor so, and DeepSeek-V4 all.
_PLAIN, _SHORT = "weight_scale", "scale"
_PROJECTION = re.compile(
    r"(.*\.experts\.(?:gate_up_proj|up_proj|down_proj))(?:_scale_inv|_activation_scale)?"
)
# Scales of the outputs of linears of keys and values.
_OF_THE_CACHE = frozenset(("k_scale", "v_scale", "output_scale"))
# e2m1 that share a scale.
_GROUP = 32


@dataclass(frozen=True)
class _Names:
    """The names of a module's tensors: its weight, its scales, the static scale of its input."""

    weight: str
    scale: str
    inputs: str


def _layout(
    names: _Names,
    shape: tuple[int, ...],
    scales: list[tuple[int, ...]],
    config: Fp8Config,
    *,
    in_pairs: bool,
) -> Layout:
    """The tensors of a linear [O, I], or of experts [E, O, I]; scales have one of these shapes."""
    *around, columns = shape
    weight = Tensor("F8_E4M3", shape)
    of_scales = "F8_E8M0" if in_pairs or config.powers_of_two else "F32"
    dtypes = POWERS_OF_TWO if in_pairs else (*SCALES, *POWERS_OF_TWO)
    if in_pairs:
        weight = Tensor("I8", (*around, columns // 2))
    layout = {
        names.weight: weight,
        names.scale: Tensor(of_scales, scales[0], dtypes, tuple(scales)),
    }
    if config.static:
        shapes = (shape[:1],) if len(shape) == 3 else ((), (1,), (1, 1))
        layout[names.inputs] = Tensor("F32", shapes[0], SCALES, shapes, optional=True)
    return layout


def _scalings(
    shape: tuple[int, int],
    config: Fp8Config,
    experts: tuple[int, ...] = (),
    *,
    in_pairs: bool = False,
    fused: bool = False,
) -> dict[tuple[int, ...], Scaling]:
    """The possible Scalings by the shape of the scales: of groups, of blocks, of rows, or of a tensor.

    - `experts`: how many are stored as one, none for a linear; `fused`: whether they are gates and ups.
    """
    rows, columns = shape
    if in_pairs:
        scaling = Scaling(shape, "group", _GROUP)
        return {(*experts, *scaling.stored_shape): scaling}
    if config.block is not None:
        scaling = Scaling(shape, "block", block=config.block)
        possible = {(*experts, *scaling.stored_shape): scaling}
        halved, width = scaling.stored_shape[0] == 1, config.block[1]
    else:
        possible = {(*experts, 1, 1): Scaling(shape, "tensor")}
        if not experts:
            possible |= dict.fromkeys([(), (1,)], Scaling(shape, "tensor"))
            possible.setdefault((rows,), Scaling(shape, "channel"))
        possible.setdefault((*experts, rows, 1), Scaling(shape, "channel"))
        halved, width = True, columns
    if halved and fused and rows > 2 and rows % 2 == 0:
        # Gate and up have scales of their own where both are within one block.
        half = Scaling(shape, "block", block=(rows // 2, width))
        possible.setdefault((*experts, 2, ceil(columns / width)), half)
    return possible


class Modules(Library[Fp8Config]):
    """Linears and experts whose weights are float8 or pairs of e2m1, with scales."""

    methods = frozenset(("fp8",))
    method = METHOD
    about = ("`fp8` (DeepSeek, Qwen, AutoFP8)", "yes", "W+A")
    looks, looks_by = "float8 of transformers and DeepSeek", ("weight_scale_inv",)
    experts = _PROJECTION
    untold = UNTOLD
    records = _OF_THE_CACHE
    marks = frozenset(
        (_SCALE, _PLAIN, *(f"{part}_proj_scale_inv" for part in ("gate_up", "gate", "up", "down")))
    )

    def read(self, config: Mapping[str, Any]) -> Fp8Config:
        return parse_fp8(config, self.checkpoint.text_config.get("expert_dtype"))

    def check(self) -> None:
        if not any(
            name.rpartition(".")[2] in self.marks or info.dtype in ("F8_E4M3", "I8")
            for name, info in self.checkpoint.tensors.items()
        ):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a {_SCALE}: not decoded")

    def promise(self, linear: Linear) -> Layout | None:
        config = self.config
        if not linear.in_layer or config.excepts(linear.module):
            return None
        in_pairs = config.fp4_experts and re.search(r"\bexperts\.\d", linear.module) is not None
        names = _Names("weight", _SCALE, "activation_scale")
        scales = _scalings(linear.shape, config, in_pairs=in_pairs)
        return _layout(names, linear.shape, list(scales), config, in_pairs=in_pairs)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        projection = module.rpartition(".")[2] if _PROJECTION.fullmatch(module) else ""
        headers = ((suffix, info.dtype, info.shape) for suffix, info in sorted(tensors.items()))
        stored = Headers(module, tensors)
        if self.config.excepts(module.rpartition(".")[0] if projection else module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")

        def make() -> Scheme:
            return self._stacked(stored, projection) if projection else self._linear(stored)

        return self.alike((projection, *headers), make), "fp8"

    def _linear(self, stored: Headers) -> Packed:
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
        experts, *_ = stored.of_shape(own, (None, None, None), ("F8_E4M3", "I8"))
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
        stored.refuse_others(known, "float8")

    def _scheme(
        self, stored: Headers, names: _Names, config: Fp8Config, experts: tuple[int, ...]
    ) -> Packed:
        """The Scheme of a linear, or of one expert where tensors have these many."""
        weight = stored.tensors.get(names.weight)
        in_pairs = weight is not None and weight.dtype == "I8"
        *_, rows, columns = stored.of_shape(
            names.weight, (*experts, None, None), ("I8",) if in_pairs else ("F8_E4M3",)
        )
        if in_pairs and not config.fp4_experts:
            raise UnsupportedFormat(
                f"{stored.module}: weight has dtype I8, and expert_dtype is not fp4: not decoded"
            )
        shape = (rows, columns * 2) if in_pairs else (rows, columns)
        fused = names.weight == "gate_up_proj"
        scalings = _scalings(shape, config, experts, in_pairs=in_pairs, fused=fused)
        stored.match(_layout(names, (*experts, *shape), list(scalings), config, in_pairs=in_pairs))
        inputs = Inputs(config.inputs, ())
        if config.static:
            inputs = replace(inputs, tensors=("activation_scale" if experts else names.inputs,))
        suffix = _SCALE if experts else names.scale
        scale = stored.tensors[names.scale]
        scaling = scalings[scale.shape]
        if in_pairs:
            return fp4(scaling, inputs=inputs, scale=suffix)
        if scale.dtype in POWERS_OF_TWO and not config.powers_of_two:
            raise stored.wrong(
                f"its scales are powers of two ({scale.dtype}), and scale_fmt is not ue8m0"
            )
        return block_float8(scaling, inputs=inputs, scale=suffix)

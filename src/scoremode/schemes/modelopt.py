"""The quantized modules of a checkpoint that ModelOpt exported, and their Schemes.

Experts are linears of their own, whatever the library's module is, but for two: those of Llama 4 and
gpt-oss are stored as one, `experts.gate_up_proj` and `experts.down_proj`, as the library's parameters
lie: [E, I, O], packed along I. A scale of the whole is one for all experts there.
Source: ModelOpt 0.47, `_export_quantized_weight`, `_export_fused_experts`.

What a linear would be stored as, by a config of ModelOpt alone.

Scales have the dtypes and shapes that ModelOpt 0.47 writes. Of AWQ a `pre_quant_scale` is left out,
which the linears have that no norm comes before: 16 / O bits a weight.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import FLOATS, TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme, Scheme, input_factor
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.foreseen import UNTOLD, Foresee, Foreseen, Linear
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.modelopt_config import METHOD, Algorithm, ModelOptConfig, parse_modelopt
from scoremode.schemes.modelopt_weights import Float8, Int4Awq, Int4Float8Awq, Mxfp8, Nvfp4

__all__ = ["Modules", "foresee"]


# Routers that are linears. Exports leave them, and not all list them.
_ROUTER = re.compile(r"(.*\.)?(router|mlp\.gate|block_sparse_moe\.gate|shared_expert_gate)(\..*)?")
_ONE = Foreseen("F32", ())


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read, and where it has no
    list of what is excluded: every export leaves the head at least, so the list was left out."""
    parsed = parse_modelopt(config)
    fields = config.get("quantization") or config
    listed = [name for name in ("exclude_modules", "ignore") if fields.get(name) is not None]
    if parsed.algorithm is not None and not listed:
        raise UnsupportedFormat(
            f"{METHOD} with quant_algo {parsed.stated} and no exclude_modules: which linears are "
            "quantized is known from its tensors alone"
        )

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        algorithm = parsed.algorithm_of(linear.module)
        if algorithm is None or parsed.excluded.has(linear.module):
            return None
        named = parsed.claims(linear.module)
        if not named and (not linear.in_layer or _ROUTER.fullmatch(linear.module)):
            return None
        return _stored(linear, algorithm)

    return tensors


def _stored(linear: Linear, algorithm: Algorithm) -> dict[str, Foreseen]:
    name, (rows, columns) = algorithm.name, linear.shape
    inputs = {"input_scale": _ONE}
    if name.endswith("AWQ") and name != "NVFP4_AWQ":
        if algorithm.group is None:
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {name} and no group_size: it is known from its tensors alone"
            )
        scales = Scaling(linear.shape, "group", algorithm.group).stored_shape
        stored = {
            "weight": Foreseen("U8", (-(-rows // 2), columns)),
            "weight_scale": Foreseen("F32", scales),
        }
        return stored | ({"weight_scale_2": _ONE, **inputs} if name == "W4A8_AWQ" else {})
    if "NVFP4" in name:
        scales = Scaling(linear.shape, "group", 16).stored_shape
        stored = {
            "weight": Foreseen("U8", (rows, -(-columns // 2))),
            "weight_scale": Foreseen("F8_E4M3", scales),
            "weight_scale_2": _ONE,
        }
        return stored | ({} if name == "W4A16_NVFP4" else inputs)
    stored = {"weight": Foreseen("F8_E4M3", linear.shape)}
    if name == "MXFP8":
        scales = Scaling(linear.shape, "group", 32).stored_shape
        return stored | {"weight_scale": Foreseen("U8", scales)}
    if name == "FP8_PER_CHANNEL_PER_TOKEN":
        return stored | {"weight_scale": Foreseen("F32", (rows,))}
    if name == "FP8_PB_WO":
        assert algorithm.group is not None
        block = algorithm.group, algorithm.group
        down, across = Scaling(linear.shape, "block", block=block).stored_shape
        return stored | {"weight_scale": Foreseen("F32", (down, 1, across, 1))}
    return stored | {"weight_scale": _ONE, **inputs}


_FACTOR = "pre_quant_scale"
# Of experts that are stored as one.
_STACKED = frozenset(
    f"{part}_proj_{scale}"
    for part in ("gate_up", "gate", "up", "down")
    for scale in ("weight_scale", "weight_scale_2", "input_scale", _FACTOR)
)
_PROJECTION = re.compile(
    r"(.*\.experts\.(?:gate_up_proj|down_proj))(?:_weight_scale|_weight_scale_2|_input_scale)?"
)
_LOW_RANK = frozenset(("svdquant_lora_a", "svdquant_lora_b"))
# Scales of what a linear gives out, which belong to the cache.
_OF_THE_CACHE = frozenset(("k_scale", "v_scale"))
_FLOAT8_STATIC = Inputs(TensorFormat(8, "float", "tensor"), ("input_scale",))
_FLOAT8_TOKEN = Inputs(TensorFormat(8, "float", "token", dynamic=True), ())
_NVFP4 = Inputs(TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), ("input_scale",))
_MXFP8 = Inputs(TensorFormat(8, "float", "group", 32, dynamic=True, powers_of_two=True), ())


class Modules(Library):
    """Linears and experts with scales, each in the format of the config's algorithm for it."""

    methods = frozenset(("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"))
    marks = frozenset(("weight_scale", "weight_scale_2", _FACTOR, *_STACKED, *_LOW_RANK))
    records = _OF_THE_CACHE
    untold = UNTOLD

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_modelopt(config, checkpoint.modelopt)
        suffixes = {name.rpartition(".")[2] for name in checkpoint.tensors}
        if self._config.stated and self.marks.isdisjoint(suffixes):
            # Dense whatever the config says.
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {self._config.stated}, and no tensor is a weight_scale: "
                "not decoded"
            )
        for name, info in checkpoint.tensors.items():
            found = _PROJECTION.fullmatch(name)
            if found and name == found[1] and info.dtype in FLOATS and self._config.claims(name):
                raise CheckpointError(
                    f"{name} is stored dense ({info.dtype.lower()}), and quantization_config says "
                    "that it is quantized"
                )
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[tuple, Scheme] = {}

    @property
    def config(self) -> ModelOptConfig:
        return self._config

    @classmethod
    def untold_by(cls, config: Mapping[str, Any]) -> str | None:
        """Nothing where `quantized_layers` name them all."""
        return None if parse_modelopt(config).algorithm is None else cls.untold

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        found = _PROJECTION.fullmatch(name)
        module, _, suffix = name.rpartition(".")
        return (found[1] if found else module), suffix

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        own = module.rpartition(".")[2] if _PROJECTION.fullmatch(module) else ""
        if not own and (others := _STACKED & set(tensors)):
            raise UnsupportedFormat(
                f"{module}: experts stored as one by ModelOpt with {', '.join(sorted(others))}: not "
                "decoded"
            )
        if self.config.excluded.has(module):
            raise stored.wrong("stored quantized, and the config's exclude_modules name it")
        algorithm = self.config.algorithm_of(module)
        if algorithm is None:
            where = "quantized_layers don't name it" if self.config.stated else "quant_algo is null"
            raise stored.wrong(f"stored quantized, and the config's {where}")
        key = (algorithm, own, *((s, i.dtype, i.shape) for s, i in tensors.items()))
        if key not in self._alike:
            build = self._stacked if own else self._build
            self._alike[key] = build(stored, algorithm)
        return self._alike[key], algorithm.name

    def _build(self, stored: Headers, algorithm: Algorithm) -> FactoredScheme:
        scheme = _BUILDERS[algorithm.name](stored, algorithm)
        known = {*scheme.tensors, input_factor(scheme), "bias"}
        known |= _of_inputs(stored, scheme, algorithm, "input_scale")
        if self.config.kv_cache is not None:
            known |= _OF_THE_CACHE
        self._check_known(stored, known, algorithm)
        return scheme

    def _stacked(self, stored: Headers, algorithm: Algorithm) -> Stacked:
        own = stored.module.rpartition(".")[2]
        if algorithm.name not in _OF_EXPERTS:
            raise UnsupportedFormat(
                f"{stored.module}: experts stored as one in {algorithm.name}: not decoded"
            )
        of_type = "F8_E4M3" if algorithm.name == "FP8" else "U8"
        count, columns, rows = stored.of_shape(own, (of_type,), (None, None, None))
        scale, inputs = f"{own}_weight_scale", f"{own}_input_scale"
        names, shared = {"weight": own, "weight_scale": scale, "input_scale": inputs}, [inputs]
        if algorithm.name == "FP8":
            stored.expect_one(scale, SCALES)
            shared.append(scale)
            one = Float8(Scaling((rows, columns), "tensor"), inputs=_FLOAT8_STATIC)
        else:
            scaling = Scaling((rows, 2 * columns), "group", 16)
            if 2 * columns % 16:
                raise stored.wrong(f"its {2 * columns} inputs are quantized in groups of 16")
            stored.expect(scale, ("F8_E4M3",), [(count, *reversed(scaling.stored_shape))])
            whole = names["weight_scale_2"] = f"{own}_weight_scale_2"
            stored.expect_one(whole, ("F32",))
            shared.append(whole)
            one = Nvfp4(scaling, inputs=None if algorithm.name == "W4A16_NVFP4" else _NVFP4)
        known = {*(names[suffix] for suffix in one.tensors)}
        known |= _of_inputs(stored, one, algorithm, inputs)
        self._check_known(stored, known, algorithm)
        return Stacked(count, Expert(one, tuple(names.items()), tuple(shared), transposed=True))

    @staticmethod
    def _check_known(stored: Headers, known: set[str | None], algorithm: Algorithm) -> None:
        if unknown := set(stored.tensors) - known:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(
                f"{stored.module}: {algorithm.name} with {names} is not supported"
            )


def _of_inputs(
    stored: Headers, scheme: FactoredScheme, algorithm: Algorithm, name: str
) -> set[str | None]:
    """The static scale of the input, checked, where there is one by that name."""
    static = scheme.inputs is not None and bool(scheme.inputs.tensors)
    # Older exports of W4A16 have it all the same; vLLM leaves it out.
    left_over = algorithm.name == "W4A16_NVFP4" and name in stored.tensors
    if static or left_over:
        stored.check_input(name)
        return {name}
    return set()


def _float8(strategy: str, inputs: Inputs) -> Callable[[Headers, Algorithm], Float8]:
    def build(stored: Headers, algorithm: Algorithm) -> Float8:
        scaling = Scaling(stored.matrix("weight", ("F8_E4M3",)), strategy)
        if strategy == "tensor":
            stored.expect_one("weight_scale", SCALES)
        else:
            rows = scaling.shape[0]
            stored.expect("weight_scale", SCALES, [(rows,), (rows, 1)])
        return Float8(scaling, inputs=inputs)

    return build


def _float8_block(stored: Headers, algorithm: Algorithm) -> Float8:
    """Blocks of weights alone, as ModelOpt calls them, whatever an engine does with the inputs."""
    assert algorithm.group is not None
    block = algorithm.group, algorithm.group
    scaling = Scaling(stored.matrix("weight", ("F8_E4M3",)), "block", block=block)
    rows, columns = scaling.stored_shape
    shapes: list[tuple[int, ...]] = [(rows, columns), (rows, 1, columns, 1)]
    # Of a single block a scale of no dimension is exported.
    stored.expect("weight_scale", SCALES, shapes + [()] * (rows == columns == 1))
    return Float8(scaling)


def _nvfp4(stored: Headers, algorithm: Algorithm) -> Nvfp4:
    rows, width = stored.matrix("weight", ("U8",))
    scaling = Scaling((rows, 2 * width), "group", 16)
    stored.expect("weight_scale", ("F8_E4M3",), [scaling.stored_shape])
    stored.expect_one("weight_scale_2", ("F32",))
    _expect_whole_groups(stored, scaling)
    if algorithm.name == "NVFP4_AWQ":
        return Nvfp4(scaling, True, _factor(stored, 2 * width), inputs=_NVFP4)
    return Nvfp4(scaling, inputs=None if algorithm.name == "W4A16_NVFP4" else _NVFP4)


def _int4(stored: Headers, algorithm: Algorithm) -> Int4Awq:
    pairs, columns = stored.matrix("weight", ("U8",))
    size = algorithm.group
    if size is None:
        _, groups = stored.of_shape("weight_scale", SCALES, (2 * pairs, None))
        if columns % groups:
            raise stored.wrong(
                f"its {columns} inputs have {groups} scales, and no config says the group_size"
            )
        size = columns // groups
    scaling = Scaling((2 * pairs, columns), "group", size)
    stored.expect("weight_scale", SCALES, [scaling.stored_shape])
    factor = _factor(stored, columns)
    if algorithm.name == "W4A16_AWQ":
        return Int4Awq(scaling, factor)
    stored.expect_one("weight_scale_2", ("F32",))
    return Int4Float8Awq(scaling, factor, inputs=_FLOAT8_STATIC)


def _factor(stored: Headers, columns: int) -> str | None:
    """The suffix of what inputs are multiplied with: of most linears it went into the norm before."""
    if _FACTOR not in stored.tensors:
        return None
    stored.expect(_FACTOR, SCALES, [(columns,)])
    return _FACTOR


def _mxfp8(stored: Headers, algorithm: Algorithm) -> Mxfp8:
    scaling = Scaling(stored.matrix("weight", ("F8_E4M3",)), "group", 32)
    stored.expect("weight_scale", ("U8", "F8_E8M0"), [scaling.stored_shape])
    _expect_whole_groups(stored, scaling)
    return Mxfp8(scaling, 8, inputs=_MXFP8)


def _expect_whole_groups(stored: Headers, scaling: Scaling) -> None:
    """Raises CheckpointError for a last group that is short, which ModelOpt doesn't write."""
    columns, size = scaling.shape[1], scaling.size
    assert size is not None
    if columns % size:
        raise stored.wrong(f"its {columns} inputs are quantized in groups of {size}")


# Those whose layout of experts stored as one is known from exports.
_OF_EXPERTS = ("FP8", "NVFP4", "W4A16_NVFP4")
_BUILDERS: dict[str, Callable[[Headers, Algorithm], FactoredScheme]] = {
    "FP8": _float8("tensor", _FLOAT8_STATIC),
    "FP8_PER_CHANNEL_PER_TOKEN": _float8("channel", _FLOAT8_TOKEN),
    "FP8_PB_WO": _float8_block,
    "NVFP4": _nvfp4,
    "W4A16_NVFP4": _nvfp4,
    "NVFP4_AWQ": _nvfp4,
    "MXFP8": _mxfp8,
    "W4A16_AWQ": _int4,
    "W4A8_AWQ": _int4,
}

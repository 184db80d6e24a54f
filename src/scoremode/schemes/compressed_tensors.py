"""compressed-tensors' formats by their names, and a module's Scheme by what the config says of it.

Each format is a row of FORMATS: the layout of a linear's tensors, what weights it takes, and the Scheme
that they make. What does not fit is an error that names the module: a missing tensor, a dtype, a shape,
a field that the format doesn't have.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors_config import (
    Group,
    QuantizationConfig,
    parse_quantization,
    sparse_format,
)
from scoremode.schemes.compressed_tensors_weights import (
    float_quantized,
    int_quantized,
    mx,
    nvfp4,
    pack_quantized,
)
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.layout import POWERS_OF_TWO, SCALES, Headers, Layout, Linear, Tensor, single
from scoremode.schemes.library import Library
from scoremode.schemes.packed import Packed

# Left by a cache's quantization in its own checkpoints; they belong to the cache.
_OF_THE_CACHE = {"output_scale", "output_zero_point"}


@dataclass(frozen=True)
class Stored(Headers):
    """A module's tensors by suffix, the group of `config` that claims it, with the format of its
    `weights`, and a reader of small tensors' bytes."""

    config: QuantizationConfig
    group: Group
    weights: TensorFormat
    read: Callable[[str], bytes]

    @property
    def format(self) -> str:
        """The format's name."""
        return str(self.group.format or self.config.format)

    def unsupported(self, what: str) -> UnsupportedFormat:
        return UnsupportedFormat(f"{self.module}: {self.format} with {what} is not supported")

    def has_zero_points(self) -> bool:
        """Tells whether the weights have some. Raises CheckpointError where only the tensors say so."""
        if self.weights.symmetric and "weight_zero_point" in self.tensors:
            raise self.wrong("has zero points, and the config says symmetric")
        return not self.weights.symmetric

    def scaling(self, shape: tuple[int, int]) -> Scaling:
        """The Scaling of the weights. Raises CheckpointError for a size that is not given."""
        weights = self.weights
        if weights.strategy == "block" and weights.block is None:
            raise self.wrong("quantized by block, and its block_structure is not given")
        if weights.strategy in ("group", "tensor_group") and weights.group_size is None:
            raise self.wrong("quantized by group, and its group size is not given")
        return _scaling(shape, weights)

    def inputs(self, columns: int) -> Inputs | None:
        """Returns how the config has the module's input quantized, its static tensors checked."""
        if self.group.outputs is not None:
            raise self.unsupported(f"quantized outputs ({self.group.outputs})")
        f = self.group.inputs
        if f is None:
            return None
        known = {("int", bits) for bits in range(2, 9)} | {("float", bits) for bits in (4, 6, 8)}
        local = f.strategy == "tensor_group"
        by_group = f.strategy in ("group", "tensor_group")
        if (
            (f.type, f.bits) not in known
            or (f.type == "float" and not f.symmetric)
            or f.strategy not in ("token", "tensor", "group", "tensor_group")
            or (local and (f.type, f.bits, f.dynamic) != ("float", 4, "local"))
            or (f.dynamic == "local" and not local)
            or (f.dynamic is False and f.strategy != "tensor")
            or by_group != (f.group_size is not None)
        ):
            dynamic = {False: "static ", True: "dynamic ", "local": "local "}[f.dynamic]
            raise self.unsupported(f"inputs {dynamic}{f}")
        if f.group_size and columns % f.group_size:
            raise self.wrong(f"its {columns} inputs are quantized in groups of {f.group_size}")
        layout = _layout_of_inputs(f)
        self.match(layout)
        if f.dynamic is False and f.symmetric and "input_zero_point" in self.tensors:
            # Older releases stored those of symmetric inputs too.
            self._expect_zero("input_zero_point")
        return Inputs(f, tuple(layout))

    def used_by(self, scheme: Packed, *others: str) -> Packed:
        """The `scheme`. Raises UnsupportedFormat for tensors that neither it nor anything else uses."""
        known = {
            *scheme.tensors,
            *(scheme.inputs.tensors if scheme.inputs else ()),
            *others,
            "bias",
        }
        if self.config.kv_cache is not None:
            known |= _OF_THE_CACHE
        if self.group.inputs and self.group.inputs.symmetric:
            known.add("input_zero_point")
        if unknown := set(self.tensors) - known:
            raise self.unsupported(", ".join(sorted(unknown)))
        return scheme

    def _expect_zero(self, suffix: str) -> None:
        self.match({suffix: single("I8", (1,), ("I8", "I32", "F8_E4M3", *SCALES))})
        # A zero of any of them, a negative one included, has no bit but the sign's.
        content = self.read(f"{self.module}.{suffix}")
        if int.from_bytes(content, "little") not in (0, 0x80 << 8 * (len(content) - 1)):
            raise self.wrong(f"is symmetric, and its {suffix} is not zero")


_FIRST_DENSE = (0, 18)
_INTEGERS = {"I32": "<i4", "I64": "<i8"}


def _scaling(shape: tuple[int, int], weights: TensorFormat) -> Scaling:
    if weights.strategy == "block":
        return Scaling(shape, "block", block=weights.block)
    if weights.strategy in ("group", "tensor_group"):
        return Scaling(shape, "group", weights.group_size)
    return Scaling(shape, weights.strategy)


def _layout_of_inputs(inputs: TensorFormat) -> dict[str, Tensor]:
    """Static scales and zero points of a linear's input. Weights alone don't need them; arithmetic that
    quantizes the input asks for them when the model is built."""
    scale = single("F32", (1,), SCALES, optional=True)
    if inputs.dynamic == "local":
        return {"input_global_scale": scale}
    if inputs.dynamic:
        return {}
    zero = {"input_zero_point": single("I8", (1,), ("I8",), optional=True)}
    return {"input_scale": scale} | ({} if inputs.symmetric else zero)


def _by_scale(scaling: Scaling, dtype: str, dtypes: tuple[str, ...]) -> Tensor:
    """Scales or zero points; one a row may be a vector, one a tensor has any rank."""
    shape = scaling.stored_shape
    if scaling.strategy == "tensor":
        return single(dtype, (1,), dtypes)
    return Tensor(dtype, shape, dtypes, (shape, shape[:1]) if shape[1] == 1 else ())


def packed_layout(
    shape: tuple[int, int], weights: TensorFormat, dtype: str = "BF16", *, dense: bool = True
) -> dict[str, Tensor]:
    """pack-quantized: words of codes, and of zero points along the outputs; see `pack_quantized`."""
    (rows, columns), bits, scaling = shape, weights.bits, _scaling(shape, weights)

    def words(values: int) -> int:
        return -(-values * bits // 32) if dense else -(-values // (32 // bits))

    layout = {
        "weight_shape": Tensor("I64", (2,), ("I64", "I32"), content=struct.pack("<2q", *shape)),
        "weight_packed": Tensor("I32", (rows, words(columns))),
        "weight_scale": _by_scale(scaling, dtype, SCALES),
    }
    if not weights.symmetric:
        groups = scaling.stored_shape[1]
        of_words = Tensor("I32", (words(rows), groups))
        of_tensor = single("I8", (1,))
        layout["weight_zero_point"] = of_tensor if scaling.strategy == "tensor" else of_words
    if weights.actorder == "group":
        layout["weight_g_idx"] = Tensor("I32", (columns,), ("I32", "I64"))
    return layout


def naive_layout(
    shape: tuple[int, int], weights: TensorFormat, dtype: str = "BF16"
) -> dict[str, Tensor]:
    """int-quantized, float-quantized and naive-quantized: a byte an element."""
    scaling = _scaling(shape, weights)
    layout = {
        "weight": Tensor("I8" if weights.type == "int" else "F8_E4M3", shape),
        "weight_scale": _by_scale(scaling, dtype, SCALES),
    }
    if not weights.symmetric:
        layout["weight_zero_point"] = _by_scale(scaling, "I8", ("I8",))
    return layout


def nvfp4_layout(
    shape: tuple[int, int], weights: TensorFormat, dtype: str = "BF16"
) -> dict[str, Tensor]:
    """nvfp4-pack-quantized: pairs of e2m1 under float8 scales, under one for all."""
    rows, columns = shape
    return {
        "weight_packed": Tensor("U8", (rows, columns // 2)),
        "weight_scale": Tensor("F8_E4M3", _scaling(shape, weights).stored_shape),
        "weight_global_scale": single("F32", (1,)),
    }


def mx_layout(
    shape: tuple[int, int], weights: TensorFormat, dtype: str = "BF16"
) -> dict[str, Tensor]:
    """mxfp4-pack-quantized, mxfp6-pack-quantized, mxfp8-quantized: floats under powers of two."""
    (rows, columns), bits = shape, weights.bits
    scale = Tensor("U8", _scaling(shape, weights).stored_shape, POWERS_OF_TWO)
    if bits == 8:
        return {"weight": Tensor("F8_E4M3", shape), "weight_scale": scale}
    return {"weight_packed": Tensor("U8", (rows, columns * bits // 8)), "weight_scale": scale}


def _stored_shape(stored: Stored) -> tuple[int, int]:
    info = stored.expect("weight_shape", ("I64", "I32"), [(2,)])
    rows, columns = (int(n) for n in np.frombuffer(stored.read(info.name), _INTEGERS[info.dtype]))
    if rows < 1 or columns < 1:
        raise CheckpointError(f"{stored.module}.weight_shape is {rows} x {columns}")
    return rows, columns


def _is_dense(stored: Stored, shape: tuple[int, int]) -> bool:
    """Tells whether values run on over words, by the widths of what is stored; where these are the same
    in both layouts, by the config's version."""
    both = {dense: packed_layout(shape, stored.weights, dense=dense) for dense in (True, False)}
    axes = {"weight_packed": 1}
    if "weight_zero_point" in both[True] and stored.weights.strategy != "tensor":
        axes["weight_zero_point"] = 0
    layouts, words = set(both), []
    for suffix, axis in axes.items():
        shapes = {dense: layout[suffix].shape for dense, layout in both.items()}
        info = stored.expect(suffix, ("I32",), dict.fromkeys(shapes.values()))
        layouts &= {dense for dense, of_words in shapes.items() if of_words == info.shape}
        words.append(info.shape[axis])
    if not layouts:
        raise stored.wrong("its weights and zero points are packed in different layouts")
    bits = stored.weights.bits
    if len(layouts) == 1 or 32 % bits == 0 or max(words) == 1:
        # Within one word, and for widths that divide it, both are the same.
        return True in layouts
    version = stored.config.version
    if (told := has_dense_words(version)) is not None:
        return told
    raise stored.wrong(
        f"its {bits}-bit values may be packed in either of two layouts, and the config's version "
        f"is {version!r}"
    )


def has_dense_words(version: str | None) -> bool | None:
    """Tells whether the release of this `version` has values run on over words; None if it can't be
    told."""
    release = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(a|b|rc|\.?dev)?", version or "")
    if release is None:
        return None
    major, minor, patch = (int(n or 0) for n in release.groups()[:3])
    # Development versions between the two releases (0.17.2a20260701) have either.
    between = bool(release[4]) and (
        (major, minor, patch) == (*_FIRST_DENSE, 0)
        or ((major, minor) == (_FIRST_DENSE[0], _FIRST_DENSE[1] - 1) and patch > 0)
    )
    return None if between else (major, minor) >= _FIRST_DENSE


def _check_order(stored: Stored, columns: int, size: int | None) -> None:
    """Every group has its `size` inputs, the last one what is left."""
    assert size is not None
    info = stored.header("weight_g_idx")
    given = np.frombuffer(stored.read(info.name), _INTEGERS[info.dtype])
    if not np.array_equal(np.sort(given), np.arange(columns) // size):
        raise CheckpointError(
            f"{stored.module}.weight_g_idx doesn't put {columns} inputs into groups of {size}"
        )


@dataclass(frozen=True)
class Format:
    """A form of linears that the library compresses.

    - `layout`: a linear's tensors, by O × I, the format of its weights and the model's dtype.
    - `fits`: whether weights can be so; `shape`: O × I by the tensors; `make`: the Scheme.
    """

    layout: Callable[[tuple[int, int], TensorFormat, str], dict[str, Tensor]]
    fits: Callable[[TensorFormat], bool]
    shape: Callable[[Stored], tuple[int, int]]
    make: Callable[[Scaling, TensorFormat, Inputs | None], Packed]

    def build(self, stored: Stored) -> Packed:
        """The Scheme of a module."""
        if self.layout is packed_layout:
            return _build_packed(stored)
        weights = stored.weights
        if not self.fits(weights):
            order = f" in activation order {weights.actorder}" if weights.actorder else ""
            raise stored.unsupported(f"weights {weights}{order}")
        scaling = stored.scaling(self.shape(stored))
        stored.match(self.layout(scaling.shape, weights, "BF16"))
        inputs = stored.inputs(scaling.shape[1])
        if weights.type == "int":
            stored.has_zero_points()
        return stored.used_by(self.make(scaling, weights, inputs))


def _is_int(weights: TensorFormat) -> bool:
    by = weights.strategy in ("group", "channel", "tensor")
    return weights.type == "int" and 2 <= weights.bits <= 8 and by


def _is_ordered(weights: TensorFormat) -> bool:
    return weights.actorder == "group"


def _is_float8(weights: TensorFormat) -> bool:
    kind = (weights.type, weights.bits, weights.symmetric)
    by = weights.strategy in ("tensor", "channel", "group", "block")
    return kind == ("float", 8, True) and by and not weights.is_mx and not _is_ordered(weights)


def _is_nvfp4(weights: TensorFormat) -> bool:
    kind = (weights.type, weights.bits, weights.symmetric)
    by = (weights.strategy, weights.group_size)
    return kind == ("float", 4, True) and by == ("tensor_group", 16)


def _build_packed(stored: Stored) -> Packed:
    weights = stored.weights
    if not _is_int(weights):
        raise stored.unsupported(f"weights {weights}")
    shape = _stored_shape(stored)
    scaling = stored.scaling(shape)
    has_g_idx = _is_ordered(weights)
    inputs = stored.inputs(shape[1])
    if has_g_idx and scaling.size is None:
        raise stored.wrong("in activation order by group, and has no groups")
    if has_g_idx and inputs is not None:
        raise stored.unsupported("activation order and quantized inputs")
    if not has_g_idx and "weight_g_idx" in stored.tensors:
        raise stored.wrong("has weight_g_idx, and the config says no actorder group")
    has_zero_point = stored.has_zero_points()
    dense = _is_dense(stored, shape)
    stored.match(packed_layout(shape, weights, dense=dense))
    scheme = pack_quantized(scaling, weights.bits, has_zero_point, has_g_idx, dense, inputs=inputs)
    if has_g_idx:
        _check_order(stored, shape[1], scaling.size)
    return stored.used_by(scheme, "weight_shape")


def _matrix(stored: Stored) -> tuple[int, int]:
    return stored.matrix("weight")


def _in_bytes(stored: Stored) -> tuple[int, int]:
    """O × I of small floats that share bytes."""
    rows, width = stored.matrix("weight_packed")
    bits = stored.weights.bits
    if bits == 6 and width % 3:
        raise stored.wrong(f"its rows have {width} bytes, and four values take three")
    return rows, width * 8 // bits


def _mx_format(bits: int) -> Format:
    def fits(weights: TensorFormat) -> bool:
        kind = (weights.type, weights.bits, weights.symmetric)
        by = (weights.strategy, weights.group_size) == ("group", 32)
        # A dtype of scales says what the format's name says anyway.
        of_two = weights.scale_dtype in (None, "uint8") and not _is_ordered(weights)
        return kind == ("float", bits, True) and by and of_two

    shape = _matrix if bits == 8 else _in_bytes
    return Format(
        mx_layout, fits, shape, lambda scaling, _, inputs: mx(scaling, bits, inputs=inputs)
    )


_INT = Format(
    naive_layout,
    lambda w: _is_int(w) and not _is_ordered(w),
    _matrix,
    lambda scaling, w, inputs: int_quantized(scaling, w.bits, not w.symmetric, inputs=inputs),
)
_FLOAT = Format(
    naive_layout,
    _is_float8,
    _matrix,
    lambda scaling, _, inputs: float_quantized(scaling, inputs=inputs),
)
FORMATS = {
    "pack-quantized": replace(_INT, layout=packed_layout),
    "int-quantized": _INT,
    "float-quantized": _FLOAT,
    "naive-quantized": Format(
        naive_layout,
        lambda w: (_INT if w.type == "int" else _FLOAT).fits(w),
        _matrix,
        lambda scaling, w, inputs: (_INT if w.type == "int" else _FLOAT).make(scaling, w, inputs),
    ),
    "nvfp4-pack-quantized": Format(
        nvfp4_layout, _is_nvfp4, _in_bytes, lambda scaling, _, inputs: nvfp4(scaling, inputs=inputs)
    ),
    "mxfp4-pack-quantized": _mx_format(4),
    "mxfp6-pack-quantized": _mx_format(6),
    "mxfp8-quantized": _mx_format(8),
}


class Modules(Library[QuantizationConfig]):
    """The quantized modules of a checkpoint, each in the format of the group that claims it."""

    methods = frozenset(("compressed-tensors",))
    parse = staticmethod(parse_quantization)
    about = (
        "`compressed-tensors` (llm-compressor)",
        "every format but the sparse ones: INT2 to INT8, FP8, NVFP4, MXFP4, MXFP6, MXFP8",
        "W or W+A",
    )
    looks, looks_by = "compressed-tensors", ("weight_packed",)
    marks = frozenset(
        ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
    )

    def promise(self, linear: Linear) -> Layout | None:
        config, group = self.config, self.config.group_of(linear.module)
        if group is None or group.weights is None:
            return None
        name, weights = str(group.format or config.format), group.weights
        # A format that is not known `scheme` refuses.
        layout = FORMATS[name].layout if name in FORMATS else naive_layout
        if layout is packed_layout:
            layout = partial(packed_layout, dense=has_dense_words(config.version) is not False)
        tensors = layout(linear.shape, weights, linear.dtype)
        if "weight_g_idx" in tensors:
            columns = linear.shape[1]
            places = (np.arange(columns) // (weights.group_size or columns)).astype("<i4")
            order = tensors["weight_g_idx"]._replace(content=places.tobytes())
            tensors["weight_g_idx"] = order
        return tensors | (_layout_of_inputs(group.inputs) if group.inputs else {})

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Packed, str]:
        stored = self._claim(module, tensors)
        build, key = FORMATS[stored.format].build, self._key(stored)
        scheme = build(stored) if key is None else self.alike(key, lambda: build(stored))
        return scheme, stored.group.name

    def _claim(self, module: str, tensors: Mapping[str, TensorInfo]) -> Stored:
        group = self.config.group_of(module)
        if group is None:
            raise CheckpointError(
                f"{module} is stored quantized, and no quantization group claims it"
            )
        if group.weights is None:
            raise CheckpointError(
                f"{module} is stored quantized, and group {group.name} quantizes no weights"
            )
        read = self.checkpoint.read_bytes
        stored = Stored(module, tensors, self.config, group, group.weights, read)
        if stored.format == "mixed-precision":
            raise stored.wrong(
                f"quantized with mixed precision, and group {group.name} names no format"
            )
        if stored.format not in FORMATS:
            unknown = f"format {stored.format}: not known, or not one of packed weights"
            raise UnsupportedFormat(f"{module}: {sparse_format(stored.format) or unknown}")
        return stored

    def _key(self, stored: Stored) -> tuple | None:
        """Everything that a Scheme is made from, None where that is more than headers and a shape."""
        tensors = stored.tensors
        if "weight_g_idx" in tensors or "input_zero_point" in tensors:
            return None
        shape = tensors.get("weight_shape")
        content = stored.read(shape.name) if shape and shape.bytes <= 16 else shape
        return (id(stored.group), content, *((s, i.dtype, i.shape) for s, i in tensors.items()))

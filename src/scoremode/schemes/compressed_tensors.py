"""compressed-tensors' formats by their names, and a module's Scheme by what the config says of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.compressed_tensors_config import (
    Group,
    QuantizationConfig,
    parse_quantization,
)
from scoremode.schemes.compressed_tensors_weights import (
    FloatQuantized,
    IntQuantized,
    Mx,
    Nvfp4,
    PackQuantized,
)
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.unsupported import sparse_format

__all__ = [
    "FORMATS",
    "Modules",
    "Stored",
    "build_float",
    "build_int",
    "build_mx",
    "build_naive",
    "build_nvfp4",
    "build_packed",
    "foresee",
]


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_quantization(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        group = parsed.group_of(linear.module)
        if group is None or group.weights is None:
            return None
        form = str(group.format or parsed.format)
        dense_words = has_dense_words(parsed.version)
        return {
            **_weight(linear, group.weights, form, dense_words=dense_words is not False),
            **_inputs(group, form),
        }

    return tensors


def _weight(
    linear: Linear, weights: TensorFormat, form: str, *, dense_words: bool
) -> dict[str, Foreseen]:
    rows, columns = linear.shape
    scales = _scaling(linear, weights).stored_shape
    by_tensor = weights.strategy == "tensor"
    of_scales = (1,) if by_tensor else scales
    zero = {} if weights.symmetric else {"weight_zero_point": Foreseen("I8", of_scales)}
    scale = {"weight_scale": Foreseen(linear.dtype, of_scales)}
    if form == "pack-quantized":
        bits = weights.bits

        def words(values: int) -> int:
            return -(-values * bits // 32) if dense_words else -(-values // (32 // bits))

        shape = b"".join(n.to_bytes(8, "little") for n in linear.shape)
        if zero and not by_tensor:
            zero = {"weight_zero_point": Foreseen("I32", (words(rows), scales[1]))}
        order = {}
        if weights.actorder == "group":
            size = weights.group_size or columns
            places = b"".join((i // size).to_bytes(4, "little") for i in range(columns))
            order = {"weight_g_idx": Foreseen("I32", (columns,), places)}
        return {
            "weight_packed": Foreseen("I32", (rows, words(columns))),
            "weight_shape": Foreseen("I64", (2,), shape),
            **scale,
            **zero,
            **order,
        }
    if form == "nvfp4-pack-quantized":
        return {
            "weight_packed": Foreseen("U8", (rows, columns // 2)),
            "weight_scale": Foreseen("F8_E4M3", scales),
            "weight_global_scale": Foreseen("F32", (1,)),
        }
    if form.startswith("mxfp"):
        packed = {"weight_packed": Foreseen("U8", (rows, columns * weights.bits // 8))}
        if weights.bits == 8:
            packed = {"weight": Foreseen("F8_E4M3", linear.shape)}
        return packed | {"weight_scale": Foreseen("U8", scales)}
    dtype = "I8" if weights.type == "int" else "F8_E4M3"
    return {"weight": Foreseen(dtype, linear.shape), **scale, **zero}


def _scaling(linear: Linear, weights: TensorFormat) -> Scaling:
    if weights.strategy == "block":
        return Scaling(linear.shape, "block", block=weights.block)
    if weights.strategy in ("group", "tensor_group"):
        return Scaling(linear.shape, "group", weights.group_size)
    return Scaling(linear.shape, weights.strategy)


def _inputs(group: Group, form: str) -> dict[str, Foreseen]:
    inputs = group.inputs
    if inputs is None or inputs.dynamic is True:
        return {}
    if inputs.dynamic == "local":
        return {"input_global_scale": Foreseen("F32", (1,))}
    zero = {} if inputs.symmetric else {"input_zero_point": Foreseen("I8", (1,))}
    return {"input_scale": Foreseen("F32", (1,))} | zero


Built = TypeVar("Built", bound=FactoredScheme)
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
        if weights.strategy == "block":
            if weights.block is None:
                raise self.wrong("quantized by block, and its block_structure is not given")
            return Scaling(shape, "block", block=weights.block)
        if weights.strategy not in ("group", "tensor_group"):
            return Scaling(shape, weights.strategy)
        if weights.group_size is None:
            raise self.wrong("quantized by group, and its group size is not given")
        return Scaling(shape, "group", weights.group_size)

    def expect_scale(self, suffix: str, dtypes: tuple[str, ...], scaling: Scaling) -> None:
        """Scales or zero points; one a row may be a vector, one a tensor of any rank."""
        shape = scaling.stored_shape
        if scaling.strategy == "tensor":
            self.expect_one(suffix, dtypes)
        else:
            self.expect(suffix, dtypes, [shape, shape[:1]] if shape[1] == 1 else [shape])

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
        tensors: tuple[str, ...] = ()
        if local:
            self.check_input("input_global_scale")
            tensors = ("input_global_scale",)
        elif f.dynamic is False:
            self.check_input("input_scale")
            tensors = ("input_scale",)
            if not f.symmetric:
                self.check_input("input_zero_point", ("I8",))
                tensors += ("input_zero_point",)
            elif "input_zero_point" in self.tensors:
                # Older releases stored those of symmetric inputs too.
                self._expect_zero("input_zero_point")
        return Inputs(f, tensors)

    def used_by(self, scheme: Built, *others: str) -> Built:
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
        self.expect_one(suffix, ("I8", "I32", "F8_E4M3", *SCALES))
        # A zero of any of them, a negative one included, has no bit but the sign's.
        content = self.read(f"{self.module}.{suffix}")
        if int.from_bytes(content, "little") not in (0, 0x80 << 8 * (len(content) - 1)):
            raise self.wrong(f"is symmetric, and its {suffix} is not zero")


_FIRST_DENSE = (0, 18)


_INTEGERS = {"I32": "<i4", "I64": "<i8"}


def build_packed(stored: Stored) -> PackQuantized:
    """The Scheme of a pack-quantized module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        weights.type != "int"
        or not 2 <= weights.bits <= 8
        or weights.strategy not in ("group", "channel", "tensor")
    ):
        raise stored.unsupported(f"weights {weights}")
    rows, columns = shape = _stored_shape(stored)
    scaling = stored.scaling(shape)
    has_g_idx = weights.actorder == "group"
    inputs = stored.inputs(columns)
    if has_g_idx and scaling.size is None:
        raise stored.wrong("in activation order by group, and has no groups")
    if has_g_idx and inputs is not None:
        raise stored.unsupported("activation order and quantized inputs")
    if not has_g_idx and "weight_g_idx" in stored.tensors:
        raise stored.wrong("has weight_g_idx, and the config says no actorder group")
    has_zero_point = stored.has_zero_points()
    layouts = _layouts(stored, "weight_packed", rows, columns, transposed=False)
    stored.expect_scale("weight_scale", SCALES, scaling)
    if has_zero_point and scaling.strategy == "tensor":
        stored.expect_one("weight_zero_point", ("I8",))
    elif has_zero_point:
        groups = scaling.stored_shape[1]
        layouts &= _layouts(stored, "weight_zero_point", groups, rows, transposed=True)
    dense = _is_dense(stored, layouts)
    scheme = PackQuantized(scaling, weights.bits, has_zero_point, has_g_idx, dense, inputs=inputs)
    if has_g_idx:
        _check_order(stored, columns, scaling.size)
    return stored.used_by(scheme, "weight_shape")


def _stored_shape(stored: Stored) -> tuple[int, int]:
    info = stored.expect("weight_shape", ("I64", "I32"), [(2,)])
    rows, columns = (int(n) for n in np.frombuffer(stored.read(info.name), _INTEGERS[info.dtype]))
    if rows < 1 or columns < 1:
        raise CheckpointError(f"{stored.module}.weight_shape is {rows} x {columns}")
    return rows, columns


def _layouts(stored: Stored, suffix: str, rows: int, values: int, *, transposed: bool) -> set[bool]:
    """Layouts, dense or not, that `values` packed to [rows, words] may have by their width."""
    bits = stored.weights.bits
    widths = {True: -(-values * bits // 32), False: -(-values // (32 // bits))}
    shapes = {k: (w, rows) if transposed else (rows, w) for k, w in widths.items()}
    info = stored.expect(suffix, ("I32",), list(dict.fromkeys(shapes.values())))
    found = {dense for dense, shape in shapes.items() if shape == info.shape}
    # Within one word, and for widths that divide it, both are the same.
    return {True, False} if values <= 32 // bits or 32 % bits == 0 else found


def _is_dense(stored: Stored, layouts: set[bool]) -> bool:
    if not layouts:
        raise stored.wrong("its weights and zero points are packed in different layouts")
    bits = stored.weights.bits
    if len(layouts) == 1 or 32 % bits == 0:
        return True in layouts
    words = [stored.tensors["weight_packed"].shape[1]]
    if "weight_zero_point" in stored.tensors and stored.weights.strategy != "tensor":
        words.append(stored.tensors["weight_zero_point"].shape[0])
    if max(words) == 1:
        # Within one word both layouts agree.
        return True
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
    info = stored.expect("weight_g_idx", ("I32", "I64"), [(columns,)])
    given = np.frombuffer(stored.read(info.name), _INTEGERS[info.dtype])
    if not np.array_equal(np.sort(given), np.arange(columns) // size):
        raise CheckpointError(
            f"{stored.module}.weight_g_idx doesn't put {columns} inputs into groups of {size}"
        )


def build_naive(stored: Stored) -> IntQuantized | FloatQuantized:
    """The Scheme of a naive-quantized module. Raises CheckpointError, UnsupportedFormat."""
    return build_int(stored) if stored.weights.type == "int" else build_float(stored)


def build_int(stored: Stored) -> IntQuantized:
    """The Scheme of an int-quantized module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        weights.type != "int"
        or not 2 <= weights.bits <= 8
        or weights.strategy not in ("group", "channel", "tensor")
        or weights.actorder == "group"
    ):
        order = f" in activation order {weights.actorder}" if weights.actorder else ""
        raise stored.unsupported(f"weights {weights}{order}")
    shape = stored.matrix("weight", ("I8",))
    scaling = stored.scaling(shape)
    inputs = stored.inputs(shape[1])
    stored.expect_scale("weight_scale", SCALES, scaling)
    if stored.has_zero_points():
        stored.expect_scale("weight_zero_point", ("I8",), scaling)
    return stored.used_by(IntQuantized(scaling, weights.bits, not weights.symmetric, inputs=inputs))


def build_float(stored: Stored) -> FloatQuantized:
    """The Scheme of a float-quantized module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits) != ("float", 8)
        or not weights.symmetric
        or weights.strategy not in ("tensor", "channel", "group", "block")
        or weights.actorder == "group"
        or weights.is_mx
    ):
        raise stored.unsupported(f"weights {weights}")
    shape = stored.matrix("weight", ("F8_E4M3",))
    scheme = FloatQuantized(stored.scaling(shape), inputs=stored.inputs(shape[1]))
    stored.expect_scale("weight_scale", SCALES, scheme.scaling)
    return stored.used_by(scheme)


def build_nvfp4(stored: Stored) -> Nvfp4:
    """The Scheme of an NVFP4 module. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits) != ("float", 4)
        or (weights.strategy, weights.group_size) != ("tensor_group", 16)
        or not weights.symmetric
    ):
        raise stored.unsupported(f"weights {weights}")
    rows, width = stored.matrix("weight_packed", ("U8",))
    scaling = stored.scaling((rows, 2 * width))
    stored.expect("weight_scale", ("F8_E4M3",), [scaling.stored_shape])
    stored.expect_one("weight_global_scale", ("F32",))
    return stored.used_by(Nvfp4(scaling, inputs=stored.inputs(2 * width)))


def build_mx(stored: Stored, bits: int) -> Mx:
    """The Scheme of an MX module of `bits`. Raises CheckpointError, UnsupportedFormat."""
    weights = stored.weights
    if (
        (weights.type, weights.bits, weights.strategy) != ("float", bits, "group")
        or weights.group_size != 32
        or weights.scale_dtype not in (None, "uint8")  # what the format's name says anyway
        or not weights.symmetric
        or weights.actorder == "group"
    ):
        raise stored.unsupported(f"weights {weights}")
    if bits == 8:
        rows, width = stored.matrix("weight", ("F8_E4M3",))
    else:
        rows, width = stored.matrix("weight_packed", ("U8",))
    if bits == 6 and width % 3:
        raise stored.wrong(f"its rows have {width} bytes, and four values take three")
    columns = width * 8 // bits
    scaling = stored.scaling((rows, columns))
    stored.expect("weight_scale", ("U8", "F8_E8M0"), [scaling.stored_shape])
    return stored.used_by(Mx(scaling, bits, inputs=stored.inputs(columns)))


FORMATS: dict[str, Callable[[Stored], FactoredScheme]] = {
    "pack-quantized": build_packed,
    "int-quantized": build_int,
    "float-quantized": build_float,
    "naive-quantized": build_naive,
    "nvfp4-pack-quantized": build_nvfp4,
    "mxfp4-pack-quantized": partial(build_mx, bits=4),
    "mxfp6-pack-quantized": partial(build_mx, bits=6),
    "mxfp8-quantized": partial(build_mx, bits=8),
}


class Modules(Library):
    """The quantized modules of a checkpoint, each in the format of the group that claims it."""

    methods = frozenset(("compressed-tensors",))
    marks = frozenset(
        ("weight_packed", "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
    )

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._checkpoint = checkpoint
        self._config = parse_quantization(config)
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[tuple, FactoredScheme] = {}

    @property
    def config(self) -> QuantizationConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[FactoredScheme, str]:
        stored = self._claim(module, tensors)
        key = self._key(stored)
        scheme = self._alike.get(key) if key else None
        if scheme is None:
            scheme = FORMATS[stored.format](stored)
            if key:
                self._alike[key] = scheme
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
        read = self._checkpoint.read_bytes
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
        """All that a Scheme is made from, None where that is more than headers and a shape."""
        tensors = stored.tensors
        if "weight_g_idx" in tensors or "input_zero_point" in tensors:
            return None
        shape = tensors.get("weight_shape")
        content = stored.read(shape.name) if shape and shape.bytes <= 16 else shape
        return (id(stored.group), content, *((s, i.dtype, i.shape) for s, i in tensors.items()))

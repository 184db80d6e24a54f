"""pack-quantized: integers of 2 to 8 bits in int32 words, with scales and optional zero points.

Layout (compressed-tensors, `pack_to_int32`): values are stored plus 2^(bits-1) to be unsigned, and fill
a row's words from the lowest bits. Zero points are packed the same way along the output dimension,
except one per tensor, which is stored plain. Up to release 0.17 a word holds `32 // bits` values and
its top bits are padding; since 0.18 values run on over words. For 3, 5, 6 and 7 bits that differs, and
the width of what is stored tells which it is; where both widths coincide, the config's `version` does.
"""

import re
from dataclasses import dataclass

import numpy as np

from scoremode.errors import CheckpointError
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors.stored import SCALES, Stored
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.packed import Packed

__all__ = ["PackQuantized", "activation_label", "build", "has_dense_words"]

_FIRST_DENSE = (0, 18)
_INTEGERS = {"I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class PackQuantized(Packed):
    """Integers of `bits`, symmetric or not.

    - `dense`: whether values run on over words.
    - `has_zero_point`, `has_g_idx`: whether the tensors are there. `weight_g_idx[i]` is the group
      of input `i` where the columns were quantized in order of their activations.
    """

    bits: int
    has_zero_point: bool = False
    has_g_idx: bool = False
    dense: bool = True

    @property
    def label(self) -> str:
        marks = (" asym" if self.has_zero_point else "") + (" g_idx" if self.has_g_idx else "")
        return f"W{self.bits}{activation_label(self.inputs)} {self.scaling.label}{marks}"

    @property
    def tensors(self) -> tuple[str, ...]:
        return (
            "weight_packed",
            "weight_scale",
            *(("weight_zero_point",) if self.has_zero_point else ()),
            *(("weight_g_idx",) if self.has_g_idx else ()),
        )

    @property
    def codes(self) -> Codes:
        limit = (1 << self.bits) - 1 if self.has_zero_point else 1 << (self.bits - 1)
        if self.has_zero_point and self.scaling.strategy == "tensor":
            # That zero point is not packed and may be any int8.
            limit = 255
        return Codes("int", limit, self.scaling.columns_of_one)

    @property
    def elements(self) -> Elements:
        return Elements(self.bits, layout="dense" if self.dense else "padded")


def activation_label(inputs: Inputs | None) -> str:
    """`A16`, `A8`, `AFP8`, `A8 tensor asym`: what follows the weights' bits in people's names."""
    if inputs is None:
        return "A16"
    f = inputs.format
    how = {False: "static", "local": "local"}.get(
        f.dynamic, "" if f.strategy == "token" else f.strategy
    )
    words = (f"A{'FP' if f.type == 'float' else ''}{f.bits}", how, "" if f.symmetric else "asym")
    return " ".join(filter(None, words))


def build(stored: Stored) -> PackQuantized:
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

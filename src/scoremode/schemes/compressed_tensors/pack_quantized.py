"""pack-quantized: integers of 2 to 8 bits in int32 words, with scales and optional zero points.

Layout (compressed-tensors, `pack_to_int32`): values are stored plus 2^(bits-1) to be unsigned, and fill
a row's words from the lowest bits. Zero points are packed the same way along the output dimension,
except one per tensor, which is stored plain. Up to release 0.17 a word holds `32 // bits` values and
its top bits are padding; since 0.18 values run on over words. For 3, 5, 6 and 7 bits that differs, and
the width of what is stored tells which it is; where both widths coincide, the config's `version` does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from scoremode.errors import CheckpointError
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors.stored import SCALES, Stored
from scoremode.schemes.decoding.by_kernel import by_kernel
from scoremode.schemes.decoding.codes import Codes
from scoremode.schemes.decoding.elements import Elements
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import look_up, row_blocks, unpack_integers

__all__ = ["PackQuantized", "build"]

_FIRST_DENSE = (0, 18)
_INTEGERS = {"I32": "<i4", "I64": "<i8"}


@dataclass(frozen=True)
class PackQuantized:
    """Integers of `bits`, symmetric or not.

    - `dense`: whether values run on over words.
    - `has_zero_point`, `has_g_idx`: whether the tensors are there. `weight_g_idx[i]` is the group
      of input `i` where the columns were quantized in order of their activations.
    """

    bits: int
    scaling: Scaling
    has_zero_point: bool = False
    has_g_idx: bool = False
    dense: bool = True
    inputs: Inputs | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

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

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        stored = tensors["weight_scale"]
        if by_kernel("decode", self, tensors, out, scale=stored, rounding=stored.dtype):
            return
        scale = self.scaling.arranged(stored)
        g_idx = tensors["weight_g_idx"].long() if self.has_g_idx else None
        zero_point = self._zero_points(tensors, scale.dtype, scratch)
        for rows in row_blocks(self.shape, out.device):
            q = self._unpack(tensors["weight_packed"][rows], scale.dtype, scratch)
            if zero_point is not None:
                self.scaling.subtract(q, zero_point, rows, g_idx)
            self.scaling.multiply(q, scale, rows, out, g_idx)

    def factor(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> torch.Tensor:
        scale = self.scaling.arranged(tensors["weight_scale"]).float()
        if by_kernel("factor", self, tensors, out):
            return scale
        zero_point = self._zero_points(tensors, torch.float32, scratch)
        for rows in row_blocks(self.shape, out.device):
            q = self._unpack(tensors["weight_packed"][rows], torch.float32, scratch)
            if zero_point is not None:
                self.scaling.subtract(q, zero_point, rows)
            out[rows].copy_(q)
        return scale

    def stored_factors(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        return None

    def _unpack(self, packed: torch.Tensor, dtype: torch.dtype, scratch: Scratch) -> torch.Tensor:
        """Values [rows, I] of words [rows, words], as `dtype`."""
        columns = self.shape[1]
        if self.bits in (2, 4):
            codes = packed.view(torch.uint8)
            return look_up(codes, _signed(self.bits), dtype, scratch)[:, :columns]
        values = scratch.get("values", (len(packed), columns), dtype, packed.device)
        if self.bits == 8:
            return values.copy_(packed.view(torch.uint8)[:, :columns]).sub_(128)
        return values.copy_(unpack_integers(packed, self.bits, columns, self.dense, scratch))

    def _zero_points(
        self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype, scratch: Scratch
    ) -> torch.Tensor | None:
        """[O or 1, groups] in `dtype`, None for symmetric weights."""
        if not self.has_zero_point:
            return None
        stored = tensors["weight_zero_point"]
        if self.scaling.strategy == "tensor":
            return stored.reshape(1, 1).to(dtype)
        # A copy: a single row of words would stay as it is, and not be viewed as bytes.
        by_group = stored.T.clone(memory_format=torch.contiguous_format)
        values = unpack_integers(by_group, self.bits, self.shape[0], self.dense, scratch)
        return values.T.to(dtype).contiguous()


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


@lru_cache(maxsize=8)
def _signed(bits: int) -> torch.Tensor:
    """[2^bits]: the value of each stored code."""
    return torch.arange(1 << bits, dtype=torch.float32) - (1 << (bits - 1))


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
    if weights.symmetric and "weight_zero_point" in stored.tensors:
        raise stored.wrong("has zero points, and the config says symmetric")
    layouts = {True, False} & _layouts(stored, "weight_packed", rows, columns, transposed=False)
    stored.expect_scale("weight_scale", SCALES, scaling)
    if not weights.symmetric and scaling.strategy == "tensor":
        stored.expect_one("weight_zero_point", ("I8",))
    elif not weights.symmetric:
        layouts &= _layouts(
            stored, "weight_zero_point", scaling.stored_shape[1], rows, transposed=True
        )
    scheme = PackQuantized(
        bits=weights.bits,
        scaling=scaling,
        has_zero_point=not weights.symmetric,
        has_g_idx=has_g_idx,
        dense=_is_dense(stored, layouts),
        inputs=inputs,
    )
    if has_g_idx:
        _check_order(stored, columns, scaling.size)
    stored.finish(scheme, "weight_shape")
    return scheme


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
    if _same_layout(stored, bits):
        return True
    release = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(a|b|rc|\.?dev)?", stored.version or "")
    if release is not None:
        major, minor, patch = (int(n or 0) for n in release.groups()[:3])
        # Development versions between the two releases (0.17.2a20260701) have either.
        between = bool(release[4]) and (
            (major, minor, patch) == (*_FIRST_DENSE, 0)
            or ((major, minor) == (_FIRST_DENSE[0], _FIRST_DENSE[1] - 1) and patch > 0)
        )
        if not between:
            return (major, minor) >= _FIRST_DENSE
    raise stored.wrong(
        f"its {bits}-bit values may be packed in either of two layouts, and the config's version "
        f"is {stored.version!r}"
    )


def _same_layout(stored: Stored, bits: int) -> bool:
    """Tells whether nothing packed reaches beyond one word, where both layouts agree."""
    packed = [stored.tensors["weight_packed"].shape[1]]
    if "weight_zero_point" in stored.tensors and stored.weights.strategy != "tensor":
        packed.append(stored.tensors["weight_zero_point"].shape[0])
    return max(packed) == 1


def _check_order(stored: Stored, columns: int, size: int | None) -> None:
    """Every group has its `size` inputs, the last one what is left."""
    assert size is not None
    info = stored.expect("weight_g_idx", ("I32", "I64"), [(columns,)])
    given = np.frombuffer(stored.read(info.name), _INTEGERS[info.dtype])
    if not np.array_equal(np.sort(given), np.arange(columns) // size):
        raise CheckpointError(
            f"{stored.module}.weight_g_idx doesn't put {columns} inputs into groups of {size}"
        )

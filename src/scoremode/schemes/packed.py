"""Formats that store codes of a few bits under scales, and zero points maybe.

On a GPU the one CUDA decoder reads all of them, if there is Triton for it; plain torch, which runs
anywhere else, gives the same bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from scoremode.lib import fallback
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Codes, Quantized, Scaling
from scoremode.schemes.decoding.unpack import (
    E4M3,
    FLOATS,
    SIGNED_BYTES,
    Elements,
    Scratch,
    Tensors,
    by_output,
    exponent_scales,
    look_up_scales,
    row_blocks,
    unpack_integers,
    unpack_rows,
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A weight [O, I]: codes of `elements`, less zero points if there are any, times scales.

    - `label`: what people call it; `codes`: what its codes are to a product with quantized inputs.
      Where they are of type `float`, scales of groups are a part of them.
    - `inputs`: how the checkpoint has the linear's input quantized; `input_factor`: the suffix of what
      the input is multiplied with before.
    - `weight`, `scale`, `zero_point`, `g_idx`, `whole`: suffixes of its tensors, or None.
      Scales are floats, e4m3, or powers of two in a byte (E8M0). Zero points are int8 as the scales are
      stored, or int32 words packed along the outputs as the weights are along the inputs;
      `zero_offset` was subtracted from them before. `g_idx` [I] is the group of each input. `whole`, a
      single value, divides e4m3 scales, or `multiplies` them.
    - `scale_dtype`: what scales are viewed as, where they are stored as bytes of another meaning.
    - `nan_scale`: whether an E8M0 byte of 255 is NaN, as the OCP has it, or infinite, as
      compressed-tensors.
    - `rounded`: the dtype that a code times its scale is rounded to; None is the scale's own, bfloat16
      for scales of a byte. `scale_as_out`: whether scales are first rounded to the dtype of the output.
    """

    scaling: Scaling
    elements: Elements
    label: str
    codes: Codes
    inputs: Inputs | None = None
    input_factor: str | None = None
    weight: str = "weight"
    scale: str = "weight_scale"
    zero_point: str | None = None
    g_idx: str | None = None
    whole: str | None = None
    multiplies: bool = False
    zero_offset: int = 0
    scale_dtype: torch.dtype | None = None
    nan_scale: bool = False
    rounded: torch.dtype | None = None
    scale_as_out: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        more = (self.whole, self.zero_point, self.g_idx)
        return (self.weight, self.scale, *(name for name in more if name is not None))

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

    def below(self, count: int) -> "Packed | None":
        """The format of `count` such weights one below the other, None where that isn't the same: with
        one scale for all, a block that two would share, or more than codes and scales."""
        scaling, rows = self.scaling, self.shape[0]
        blocks = scaling.block is None or rows % scaling.block[0] == 0
        apart = self.elements.order == "rows" and self.elements.layout != "pairs"
        if scaling.strategy == "tensor" or not (blocks and apart and len(self.tensors) == 2):
            return None
        shape = count * rows, self.shape[1]
        return replace(self, scaling=replace(scaling, shape=shape))

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        scale, whole = self._stored_scale(tensors), None
        if self.scale_as_out:
            scale = scale.to(out.dtype)
        if self.whole is not None:
            whole = tensors[self.whole].view(1)
        rounding = self.rounded or (torch.bfloat16 if scale.itemsize == 1 else scale.dtype)
        self._multiply("decode", tensors, out, scratch, scale, whole, rounding)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        if self.codes.type == "float":
            if self.whole is None:
                self.decode(tensors, out, scratch)
                return torch.ones(1, 1, device=out.device)
            scale = self._stored_scale(tensors)
            self._multiply("factor", tensors, out, scratch, scale, None, torch.float32)
            whole = tensors[self.whole].view(1, 1)
            return whole if self.multiplies else 1 / whole
        weight = tensors[self.weight]
        if self._is_plain and weight.dtype in (out.dtype, torch.int8):
            out.copy_(weight)
        elif not self.by_kernel("factor", tensors, out):
            dtype = out.dtype if out.is_floating_point() else torch.float32
            for rows, q in self.values(tensors, dtype, scratch):
                out[rows].copy_(q)
        return self.scales(tensors)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        weight = tensors[self.weight]
        # Contiguous and aligned as the device's matmuls want it.
        fits = weight.dtype == dtype and weight.is_contiguous() and weight.data_ptr() % 16 == 0
        return Quantized(weight, self.scales(tensors)) if self._is_plain and fits else None

    @property
    def _is_plain(self) -> bool:
        """True where a product can take the codes as they are stored."""
        in_bytes = self.elements in (SIGNED_BYTES, FLOATS[8])
        return in_bytes and self.codes.type != "float" and self.zero_point is None

    def scales(self, tensors: Tensors) -> torch.Tensor:
        """float32 [O or 1, groups]."""
        scale = tensors[self.scale]
        if scale.itemsize == 1:
            table = exponent_scales(torch.float32, scale.device, nan=self.nan_scale)
            scale = table[scale.view(torch.uint8).int()]
        return self._arranged(scale).float()

    def _stored_scale(self, tensors: Tensors) -> torch.Tensor:
        scale = tensors[self.scale]
        return scale if self.scale_dtype is None else scale.view(self.scale_dtype)

    def _multiply(
        self,
        verb: str,
        tensors: Tensors,
        out: torch.Tensor,
        scratch: Scratch,
        scale: torch.Tensor,
        whole: torch.Tensor | None,
        rounding: torch.dtype,
    ) -> None:
        """Fills `out` with codes times scales, rounded to `rounding` and then to its dtype."""
        if self.by_kernel(verb, tensors, out, scale=scale, whole=whole, rounding=rounding):
            return
        # A product in the dtype `rounding` has the same bits, if the scale is of that dtype.
        direct = whole is None and (scale.itemsize == 1 or scale.dtype == rounding)
        dtype = rounding if direct else torch.float32
        if scale.dtype == torch.float8_e4m3fn:
            table = E4M3.to(out.device)
            if whole is not None:
                table = table * whole if self.multiplies else table / whole
            scale = look_up_scales(scale, table.to(dtype), scratch)
        elif scale.itemsize == 1:
            table = exponent_scales(dtype, out.device, nan=self.nan_scale)
            scale = look_up_scales(scale, table, scratch)
        scale, g_idx = self._arranged(scale).to(dtype), self._tensor(tensors, self.g_idx)
        for rows, q in self.values(tensors, dtype, scratch):
            if dtype == rounding:
                self.scaling.multiply(q, scale, rows, out, g_idx, scratch)
                continue
            of_rows = scale if self.scaling.strategy == "tensor" else scale[rows]
            self.scaling.multiply(q, of_rows, slice(None), q, g_idx, scratch)
            if out.dtype != rounding:
                q = scratch.get("rounded", tuple(q.shape), rounding, q.device).copy_(q)
            out[rows].copy_(q)

    def _arranged(self, values: torch.Tensor) -> torch.Tensor:
        """Scales, or zero points that are not packed, as stored → [O or 1, groups]."""
        if self.elements.order != "rows":
            values = values.T.contiguous()
        return self.scaling.arranged(values)

    def values(
        self, tensors: Tensors, dtype: torch.dtype, scratch: Scratch
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their codes [rows, I] less zero points, as `dtype`; valid until the next ones."""
        packed, g_idx = tensors[self.weight], self._tensor(tensors, self.g_idx)
        zero_point = self._zero_points(tensors, dtype, scratch)
        for rows in row_blocks(self.shape, packed.device, self.elements.rows_together):
            q = unpack_rows(packed, self.elements, rows, self.shape[1], dtype, scratch)
            if zero_point is not None:
                self.scaling.subtract(q, zero_point, rows, g_idx, scratch)
            yield rows, q

    def _zero_points(
        self, tensors: Tensors, dtype: torch.dtype, scratch: Scratch
    ) -> torch.Tensor | None:
        """[O or 1, groups] in `dtype`, None for symmetric weights."""
        stored, order = self._tensor(tensors, self.zero_point), self.elements.order
        if stored is None:
            return None
        if stored.dtype != torch.int32:
            return self._arranged(stored).to(dtype) + self.zero_offset
        by_group = stored.T if order == "rows" else stored
        # A copy: a single row of words would stay as it is, and not be viewed as bytes.
        by_group = by_group.clone(memory_format=torch.contiguous_format)
        values = unpack_integers(by_group, self.elements, self.shape[0], scratch)
        values = by_output(values) if self.elements.shuffled else values
        return values.T.to(dtype).contiguous() + self.zero_offset

    @staticmethod
    def _tensor(tensors: Tensors, name: str | None) -> torch.Tensor | None:
        return None if name is None else tensors[name]

    def by_kernel(
        self,
        verb: str,
        tensors: Tensors,
        out: torch.Tensor,
        *,
        scale: torch.Tensor | None = None,
        whole: torch.Tensor | None = None,
        rounding: torch.dtype = torch.float32,
    ) -> bool:
        """Fills `out` [O, I] by the CUDA decoder, as `kernels.decode` says; the record names it by
        `verb` and the label.

        Returns whether it did: where not, nothing was written, and plain torch has to.
        """

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes.decoding import kernels

            kernels.decode(
                out,
                tensors[self.weight],
                self.elements,
                self.scaling,
                scale=scale,
                whole=whole,
                zero_point=self._tensor(tensors, self.zero_point),
                g_idx=self._tensor(tensors, self.g_idx),
                zero_offset=self.zero_offset,
                rounding=rounding,
                nan_scale=self.nan_scale,
                multiplies=self.multiplies and whole is not None,
            )

        return fallback.attempt(f"{verb} {self.label}", out.device, run)

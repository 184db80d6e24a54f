"""The base of formats that store codes of a few bits under scales, and zero points maybe.

On a GPU the one CUDA decoder reads all of them, if there is Triton for it; plain torch, which runs
anywhere else, gives the same bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

from scoremode.lib import fallback
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.decoding.unpack import (
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


@dataclass(frozen=True)
class Packed(ABC):
    """A weight [O, I]: codes of `elements` in the first of its `tensors`, scales in `scale_name`.

    - `weight_scale`, or what `scale_name` says: floats, or powers of two in a byte each (E8M0).
    - `weight_zero_point`: int8 as the scales are stored, or int32 words packed along the outputs as the
      weights are along the inputs; `weight_g_idx` [I]: the group of each input. Either only where
      `tensors` has it.

    With `label` and `codes` as well a format is a FactoredScheme.
    """

    scaling: Scaling
    inputs: Inputs | None = field(default=None, kw_only=True)

    @property
    @abstractmethod
    def label(self) -> str: ...
    @property
    @abstractmethod
    def tensors(self) -> tuple[str, ...]: ...
    @property
    @abstractmethod
    def elements(self) -> Elements: ...

    @property
    def scale_name(self) -> str:
        """The suffix of the scales."""
        return "weight_scale"

    @property
    def g_idx_name(self) -> str:
        """The suffix of each input's group."""
        return "weight_g_idx"

    @property
    def zero_point_name(self) -> str:
        """The suffix of the zero points."""
        return "weight_zero_point"

    @property
    def zero_offset(self) -> int:
        """The number that was subtracted from zero points before they were stored."""
        return 0

    @property
    def nan_scale(self) -> bool:
        """Whether a scale's byte 255 is NaN, as the OCP has it, or infinite, as compressed-tensors."""
        return False

    @property
    def shape(self) -> tuple[int, int]:
        return self.scaling.shape

    def below(self, count: int) -> "Packed | None":
        """The format of `count` such weights one below the other, None where that isn't the same: with
        one scale for all, a block that two would share, or more than codes and scales."""
        scaling, rows = self.scaling, self.shape[0]
        blocks = scaling.block is None or rows % scaling.block[0] == 0
        apart = self.elements.order == "rows" and self.elements.layout != "pairs"
        alone = set(self.tensors) == {self.tensors[0], self.scale_name}
        if scaling.strategy == "tensor" or not (blocks and apart and alone):
            return None
        shape = count * rows, self.shape[1]
        return replace(self, scaling=replace(scaling, shape=shape))

    def rounding(self, scale: torch.Tensor) -> torch.dtype:
        """The dtype that a code times its stored `scale` is rounded in."""
        return torch.bfloat16 if scale.itemsize == 1 else scale.dtype

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        scale = tensors[self.scale_name]
        rounding = self.rounding(scale)
        if self.by_kernel("decode", tensors, out, scale=scale, rounding=rounding):
            return
        if scale.itemsize == 1:
            table = exponent_scales(rounding, out.device, nan=self.nan_scale)
            scale = look_up_scales(scale, table, scratch)
        scale = self.arranged(scale).to(rounding)
        for rows, q in self.values(tensors, rounding, scratch):
            self.scaling.multiply(q, scale, rows, out, tensors.get(self.g_idx_name), scratch)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        if not self.by_kernel("factor", tensors, out):
            dtype = out.dtype if out.is_floating_point() else torch.float32
            for rows, q in self.values(tensors, dtype, scratch):
                out[rows].copy_(q)
        return self.scales(tensors)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        return None

    def scales(self, tensors: Tensors) -> torch.Tensor:
        """float32 [O or 1, groups]."""
        scale = tensors[self.scale_name]
        if scale.itemsize == 1:
            table = exponent_scales(torch.float32, scale.device, nan=self.nan_scale)
            scale = table[scale.view(torch.uint8).int()]
        return self.arranged(scale).float()

    def arranged(self, values: torch.Tensor) -> torch.Tensor:
        """Scales, or zero points that are not packed, as stored → [O or 1, groups]."""
        if self.elements.order != "rows":
            values = values.T.contiguous()
        return self.scaling.arranged(values)

    def values(
        self, tensors: Tensors, dtype: torch.dtype, scratch: Scratch
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their codes [rows, I] less zero points, as `dtype`; valid until the next ones."""
        packed, g_idx = tensors[self.tensors[0]], tensors.get(self.g_idx_name)
        zero_point = self._zero_points(tensors, dtype, scratch)
        whole_words = 8 if self.elements.order == "outputs" else 1
        for rows in row_blocks(self.shape, packed.device, whole_words):
            q = unpack_rows(packed, self.elements, rows, self.shape[1], dtype, scratch)
            if zero_point is not None:
                self.scaling.subtract(q, zero_point, rows, g_idx, scratch)
            yield rows, q

    def _zero_points(
        self, tensors: Tensors, dtype: torch.dtype, scratch: Scratch
    ) -> torch.Tensor | None:
        """[O or 1, groups] in `dtype`, None for symmetric weights."""
        stored, order = tensors.get(self.zero_point_name), self.elements.order
        if stored is None:
            return None
        if stored.dtype != torch.int32:
            return self.arranged(stored).to(dtype) + self.zero_offset
        by_group = stored.T if order == "rows" else stored
        # A copy: a single row of words would stay as it is, and not be viewed as bytes.
        by_group = by_group.clone(memory_format=torch.contiguous_format)
        values = unpack_integers(by_group, self.elements, self.shape[0], scratch)
        values = by_output(values) if self.elements.shuffled else values
        return values.T.to(dtype).contiguous() + self.zero_offset

    def by_kernel(
        self,
        verb: str,
        tensors: Tensors,
        out: torch.Tensor,
        *,
        scale: torch.Tensor | None = None,
        whole: torch.Tensor | None = None,
        rounding: torch.dtype = torch.float32,
        multiplies: bool = False,
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
                tensors[self.tensors[0]],
                self.elements,
                self.scaling,
                scale=scale,
                whole=whole,
                zero_point=tensors.get(self.zero_point_name),
                g_idx=tensors.get(self.g_idx_name),
                zero_offset=self.zero_offset,
                rounding=rounding,
                nan_scale=self.nan_scale,
                multiplies=multiplies,
            )

        return fallback.attempt(f"{verb} {self.label}", out.device, run)

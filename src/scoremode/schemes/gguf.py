"""GGUF: linears, embeddings and experts in blocks of one of ggml's types.

A linear or an embedding is one tensor, uint8 [O, bytes of a row], whose last name is its blocks' type:
`q_proj.Q4_K`. So are a layer's experts, stored as one, with [E, O, bytes of a row]:
`experts.gate_proj.Q4_K`; and DeepSeek's heads in `k_b_proj` and `v_b_proj`. A `scale` float32 [1]
beside it, of experts [E], is one more factor.

On a GPU one CUDA decoder reads all types, if there is Triton for it; plain torch, which runs anywhere
else, gives the same bits.

`Scaled` is what NVFP4 has: blocks under one more factor. llama.cpp multiplies the linear's output with
it. The effective weight is the blocks' value times the factor, rounded in float32. How it would scale
inputs (`input_scale`) it reads, and uses nowhere.

Where asked for, inputs are rounded as llama.cpp's CPU build rounds them. The weight's type says how
(ggml-cpu's `type_traits_cpu`, `vec_dot_type`): blocks of 256 values meet Q8_K; blocks of 32 and NVFP4's
of 64 meet Q8_0, or Q8_1 where they have a minimum; float16 and bfloat16 meet themselves, and float32
its input as it is.

`Permuted` weights lie in the file otherwise than in the library, and are put back as they are read.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from scoremode.checkpoint.gguf.header import TYPES
from scoremode.checkpoint.gguf.table import Layout
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat, UnsupportedModel
from scoremode.lib import fallback
from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.base import Dense, Scheme, Scratch, Wrapped
from scoremode.schemes.decoding.codes import Codes, Quantized
from scoremode.schemes.decoding.unpack import Tensors, row_blocks
from scoremode.schemes.fields import shown
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.gguf_i_quants import I_QUANTS
from scoremode.schemes.gguf_types import FOUR_BIT, K_QUANTS, LEGACY, TERNARY, BlockType, Scales
from scoremode.schemes.layout import Headers, Tensor
from scoremode.schemes.library import Library, TensorsDecide

# By name.
BLOCK_TYPES = {kind.name: kind for kind in (*LEGACY, *K_QUANTS, *I_QUANTS, *FOUR_BIT, *TERNARY)}


@dataclass(frozen=True)
class Blocks:
    """A weight [O, I] of a `type` by its name, stored as uint8 [O, bytes of a row].

    The effective weight is what ggml's own code makes of it in float32, rounded once to the dtype that
    is asked for.

    - `inputs`: how llama.cpp rounds the linear's input, where that is asked for.
    """

    type: str
    shape: tuple[int, int]
    inputs: GgmlInputs | None = None

    @property
    def label(self) -> str:
        return self.type

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.type,)

    @property
    def block_type(self) -> BlockType:
        return BLOCK_TYPES[self.type]

    @property
    def codes(self) -> Codes:
        return Codes("int", self.block_type.limit, self.block_type.group)

    def below(self, count: int) -> "Blocks":
        """The format of `count` such weights one below the other."""
        return self.of_rows(count * self.shape[0])

    def of_rows(self, count: int) -> "Blocks":
        return replace(self, shape=(count, self.shape[1]))

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        packed = tensors[self.type].contiguous()

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import gguf_kernels

            gguf_kernels.decode(out, packed, self.type)

        if fallback.attempt(f"decode {self.label}", out.device, run):
            return
        kind = self.block_type
        for rows, blocks in self._blocks(packed):
            codes, (scale, minimum) = kind.codes(blocks, scratch), kind.scales(blocks)
            target = out[rows]
            direct = out.dtype == torch.float32 and target.is_contiguous()
            values = (
                target
                if direct
                else scratch.get("values", tuple(target.shape), torch.float32, out.device)
            )
            groups = values.view(-1, kind.group)
            groups.copy_(codes.view(groups.shape)).mul_(scale.view(-1, 1))
            if minimum is not None:
                groups.add_(minimum.view(-1, 1))
            if not direct:
                target.copy_(values)

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        packed = tensors[self.type].contiguous()
        scale = self._by_group(packed.device)

        def run() -> None:
            from scoremode.schemes import gguf_kernels

            gguf_kernels.factor(out, scale, packed, self.type)

        if fallback.attempt(f"factor {self.label}", out.device, run):
            return scale
        for rows, blocks in self._blocks(packed):
            out[rows].copy_(self.block_type.codes(blocks, scratch).view(-1, self.shape[1]))
        return self.scales(tensors).scale

    def minimum(self, tensors: Tensors) -> torch.Tensor | None:
        return self.scales(tensors).minimum if self.block_type.has_minimum else None

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        return None

    def scales(self, tensors: Tensors) -> Scales:
        """Both float32 [O, I / group]; the minimum, added to code times scale, None for most types."""
        packed = tensors[self.type].contiguous()
        scale = self._by_group(packed.device)
        minimum = torch.empty_like(scale) if self.block_type.has_minimum else None

        def run() -> None:
            from scoremode.schemes import gguf_kernels

            gguf_kernels.scales(scale, minimum, packed, self.type)

        if fallback.attempt(f"scales {self.label}", packed.device, run):
            return Scales(scale, minimum)
        parts = [self.block_type.scales(blocks) for _, blocks in self._blocks(packed)]
        scale = torch.cat([part.scale for part in parts]).view(self.shape[0], -1)
        minimums = [part.minimum for part in parts if part.minimum is not None]
        return Scales(scale, torch.cat(minimums).view(scale.shape) if minimums else None)

    def _by_group(self, device: torch.device) -> torch.Tensor:
        """float32 [O, I / group], not filled."""
        groups = self.shape[1] // self.block_type.group
        return torch.empty(self.shape[0], groups, dtype=torch.float32, device=device)

    def _blocks(self, packed: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        """Rows, and their blocks as uint8 [n, bytes]."""
        if packed.storage_offset() % 2:
            # Halves can't be read from an odd byte on.
            packed = packed.clone()
        for rows in row_blocks(self.shape, packed.device):
            yield rows, packed[rows].view(-1, self.block_type.bytes)


SCALE = "scale"


@dataclass(frozen=True)
class Scaled(Wrapped):
    """A weight `of` blocks, and a float32 of one element beside it."""

    of: Blocks

    @property
    def tensors(self) -> tuple[str, ...]:
        return (*self.of.tensors, SCALE)

    @property
    def whole(self) -> tuple[str, ...]:
        """Tensors that are not rows of the weight."""
        return (SCALE,)

    def own(self, tensors: Tensors) -> Tensors:
        return tensors

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        (kind,), factor = self.of.tensors, tensors[SCALE].view(1)
        for rows in row_blocks(self.of.shape, out.device):
            target = out[rows]
            values = scratch.get("scaled", tuple(target.shape), torch.float32, out.device)
            self.of.of_rows(len(target)).decode({kind: tensors[kind][rows]}, values, scratch)
            target.copy_(values.mul_(factor))

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        return self.of.factor(tensors, out, scratch) * tensors[SCALE].view(1)

    def minimum(self, tensors: Tensors) -> torch.Tensor | None:
        minimum = self.of.minimum(tensors)
        return None if minimum is None else minimum * tensors[SCALE].view(1)


def permuted(scheme: Scheme, layout: Layout, name: str) -> "Permuted":
    """The scheme `scheme` of the tensor `name`, stored in this layout.

    Raises UnsupportedModel for values that are packed and need more than another order of rows,
    CheckpointError for a shape that can't lie so.
    """
    if layout.less and not isinstance(scheme, Dense):
        raise UnsupportedModel(
            f"{name} is stored in {scheme.label}, plus {layout.less:g}: not supported"
        )
    try:
        layout.shape(tuple(scheme.shape))
    except ValueError as error:
        raise CheckpointError(f"{name}: its shape {error}") from None
    return Permuted(scheme, layout)


@dataclass(frozen=True)
class Permuted(Wrapped):
    """A Scheme `of` tensors whose rows `layout` first brings into the library's order."""

    layout: Layout

    @property
    def shape(self) -> tuple[int, ...]:
        return self.layout.shape(tuple(self.of.shape))

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        own = self.own(tensors)
        if self.layout.less:
            (stored,) = own.values()
            out.copy_(stored.float() - self.layout.less)
        elif self.layout.transposed:
            rows = scratch.get("a layout's", tuple(self.of.shape), out.dtype, out.device)
            self.of.decode(own, rows, scratch)
            out.copy_(rows.T)
        elif isinstance(self.of, Dense):
            out.copy_(own[self.of.name])
        else:
            self.of.decode(own, out, scratch)

    def own(self, tensors: Tensors) -> Tensors:
        whole: tuple[str, ...] = getattr(self.of, "whole", ())
        return {s: t if s in whole else _moved(t, self.layout) for s, t in tensors.items()}


def _moved(stored: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The rows of `stored` in the library's order. Bytes are moved as words, an eighth of the elements
    for a GPU's copy, which takes them one by one."""
    if stored.dtype != torch.uint8:
        return layout.apply(stored)
    stored = stored.contiguous()
    wide = next(
        dtype
        for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if stored.shape[-1] % dtype.itemsize == 0 == stored.storage_offset() % dtype.itemsize
    )
    return layout.apply(stored.view(wide)).view(torch.uint8)


METHOD = "quantization method 'gguf'"
# Q1_0 as well, so that it is refused by name.
_TYPES = frozenset(kind.name for kind in TYPES.values() if kind.is_packed)
_STACKED = re.compile(
    rf"(.*\.(?:experts\.[^\d.][^.]*|[kv]_b_proj))\.({'|'.join(sorted({*_TYPES, SCALE}))})"
)


class Modules(Library[TensorsDecide]):
    """Linears, embeddings and experts in blocks of one of ggml's types."""

    methods = frozenset(("gguf",))
    method = METHOD
    about = (
        "`.gguf`",
        "23 block types, not Q1_0 and Q2_0 ([GGUF](gguf.md))",
        "W, or as llama.cpp's CPU build",
    )
    marks = _TYPES

    def read(self, config: Mapping[str, Any]) -> TensorsDecide:
        if unknown := set(config) - {"quant_method"}:
            names = ", ".join(map(shown, sorted(unknown)))
            raise UnsupportedFormat(f"{METHOD} with {names}: not decoded")
        return TensorsDecide()

    def check(self) -> None:
        if not any(self.split(name)[1] in self.marks for name in self.checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is in blocks: not decoded")

    @classmethod
    def split(cls, name: str) -> tuple[str, str]:
        if found := _STACKED.fullmatch(name):
            return f"{found[1]}.weight", found[2]
        return super().split(name)

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        types = sorted(set(tensors) & self.marks)
        if len(types) != 1 or "weight" in tensors:
            others = " and ".join((*types, *(["weight"] if "weight" in tensors else [])))
            raise CheckpointError(f"{module}: stored more than once, as {others}")
        (kind,) = types
        if kind not in BLOCK_TYPES:
            raise UnsupportedFormat(f"{module}: blocks of ggml's type {kind}: not decoded")
        stored.refuse_others((kind, SCALE, "bias"), METHOD)
        stacked = _STACKED.fullmatch(f"{module.removesuffix('.weight')}.{kind}") is not None
        *count, rows, width = stored.of_shape(kind, (None,) * (3 if stacked else 2), ("U8",))
        block = BLOCK_TYPES[kind]
        if width % block.bytes:
            raise stored.wrong(f"{width} bytes a row are no whole {kind} blocks of {block.bytes}")
        stored.match({SCALE: Tensor("F32", tuple(count or [1]), optional=True)})
        scaled = SCALE in tensors

        def make() -> Scheme:
            blocks = Blocks(kind, (rows, width // block.bytes * block.values))
            one = Scaled(blocks) if scaled else blocks
            names = tuple((name, name) for name in one.tensors)
            return Stacked(count[0], Expert(one, names)) if stacked else one

        return self.alike((kind, *count, rows, width, scaled), make), "gguf"


def with_inputs(scheme: Scheme) -> Scheme:
    """The format with its input's; the same where llama.cpp takes the input as it is."""
    match scheme:
        case Blocks():
            return replace(scheme, inputs=_inputs_of(scheme))
        case Stacked():
            return replace(scheme, one=with_inputs(scheme.one))
        case Scaled():
            return replace(scheme, of=replace(scheme.of, inputs=_inputs_of(scheme.of)))
        case Expert() | Permuted():
            return replace(scheme, of=with_inputs(scheme.of))
        case Dense(dtype="F16" | "BF16"):
            return RoundedDense(scheme.shape, scheme.dtype, scheme.name)
        case Dense():
            return scheme
        case _:
            raise UnsupportedModel(
                f"{scheme.label}: how llama.cpp rounds its inputs is not known; --arithmetic weights "
                "measures it without"
            )


def _inputs_of(blocks: Blocks) -> GgmlInputs:
    kind = blocks.block_type
    summed = kind.group if kind.has_minimum else None
    if kind.values == 256:
        return GgmlInputs("Q8_K", summed)
    return GgmlInputs("Q8_0") if summed is None else GgmlInputs("Q8_1", summed)


@dataclass(frozen=True)
class RoundedDense(Dense):
    """A matrix in float16 or bfloat16 whose inputs are rounded to the same."""

    @property
    def inputs(self) -> GgmlInputs:
        return GgmlInputs("F16" if self.dtype == "F16" else "BF16")

    @property
    def codes(self) -> Codes:
        return self.inputs.codes

    def factor(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> torch.Tensor:
        self.decode(tensors, out, scratch)
        return torch.ones(1, 1, device=out.device)

    def stored_factors(self, tensors: Tensors, dtype: torch.dtype) -> Quantized | None:
        stored = tensors[self.name]
        if stored.dtype != dtype:
            return None
        return Quantized(stored, torch.ones(1, 1, device=stored.device))

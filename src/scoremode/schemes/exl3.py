"""EXL3, ExLlamaV3's format: trellis codes between two rotations.

The effective weight [O, I] is suh[i] · svh[o] times what Hadamard's matrix of 128, scaled to be
orthogonal, makes of each 128 × 128 block of the inner weight from both sides. It is float32 in one
order, whatever computes it: additions and subtractions of what lies 1, 2, 4, … 64 apart, along the
inputs and then along the outputs, and one product with suh · svh / 128, which is exact. The library has
the same inner weight and no one way from there: it rotates inputs and outputs in halves, or rounds the
weight to halves after each side.

The inner weight's values are those of a procedural codebook. A tile of 16 inputs × 16 outputs is one
ring of 256 · K bits. The value at place t is the codebook's for the 16 bits that end with bit
(t + 1) · K, so that neighbours share 16 − K bits of their codes. Bits are counted from the highest of
each 32-bit word on; places are in the order in which a tensor core's fragment has them, a permutation
of the bits of t: from the lowest one they are input 0 and 3, output 3, input 1 and 2, output 0, 1
and 2.

A config's `bits` are an average over all linears; each one's tensors tell its bits and its codebook.
Heads are quantized as other linears are, and apart from an embedding that they are tied to, which stays
dense; experts are linears of their own, and so are the parts of linears that a model has as one.
Source: exllamav3 1.4.1, `conversion/compile.py`, `LinearEXL3.get_weight_tensor`,
`hadamard_inner.cuh`, `exllamav3_ext/quant/{codebook,exl3_dq}.cuh`, `reconstruct.cu`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS, Tensors
from scoremode.schemes.fields import Fields
from scoremode.schemes.layout import Headers, single
from scoremode.schemes.library import Library, TensorsDecide

METHOD = "quantization method 'exl3'"


def parse_exl3(config: Mapping[str, Any]) -> TensorsDecide:
    """Reads a `quantization_config` whose `quant_method` is `exl3`.

    Raises UnsupportedFormat for a codebook that is not decoded, CheckpointError for what can't be
    understood.
    """
    fields = Fields(config, method=METHOD)
    for name in ("bits", "head_bits"):
        value = fields.any(name)
        if value is not None and type(value) not in (int, float):
            raise fields.wrong(name, "a number")
    fields.choice("codebook", CODEBOOKS)
    return TensorsDecide()


@dataclass(frozen=True)
class Exl3:
    """A weight of `bits` a code in a `codebook`.

    - `shape`: of whole blocks as it is stored, or what of them a model has: see `fitted`.
    - `signs`: of suh and of svh whether a bit for each sign is all that is stored (`su`, `sv`), as the
      first releases did.
    """

    shape: tuple[int, int]
    bits: int
    codebook: str
    signs: tuple[bool, bool] = (False, False)

    @property
    def label(self) -> str:
        return f"EXL3 {self.bits} bits {self.codebook}"

    @property
    def tensors(self) -> tuple[str, ...]:
        of_inputs, of_outputs = self.signs
        return ("trellis", "su" if of_inputs else "suh", "sv" if of_outputs else "svh")

    @property
    def inputs(self) -> None:
        return None

    def fitted(self, shape: tuple[int, ...]) -> "Exl3":
        """The format for a model whose weight has this shape, where it is stored padded to whole
        blocks; itself for any other shape.

        What lies beyond are inputs that are always zero, and outputs that nothing reads.
        """
        padded = tuple(-(-size // BLOCK) * BLOCK for size in shape)
        return replace(self, shape=shape) if padded == self.shape else self

    def decode(self, tensors: Tensors, out: torch.Tensor, scratch: Scratch) -> None:
        trellis = tensors["trellis"]
        suh, svh = (
            _signs(tensors[name]) if packed else tensors[name]
            for name, packed in zip(self.tensors[1:], self.signs, strict=True)
        )

        def run() -> None:
            # Imports Triton, which need not be there.
            from scoremode.schemes import library_kernels

            library_kernels.exl3(out, trellis, suh, svh, self.codebook)

        if not fallback.attempt(f"decode {self.label}", out.device, run):
            self._decode(trellis, suh, svh, out, scratch)

    def _decode(
        self,
        trellis: torch.Tensor,
        suh: torch.Tensor,
        svh: torch.Tensor,
        out: torch.Tensor,
        scratch: Scratch,
    ) -> None:
        values = codebook_values(self.codebook, out.device)
        of_inputs, of_outputs = suh.float(), svh.float().div_(BLOCK)
        # Inputs that are decoded together, of one block of outputs.
        at_once = max(BLOCK_ELEMENTS[out.device.type] // BLOCK**2, 1) * BLOCK
        for begin in range(0, out.shape[0], BLOCK):
            rows = slice(begin, begin + BLOCK)
            for first in range(0, out.shape[1], at_once):
                columns = slice(first, min(first + at_once, len(of_inputs)))
                tiles = trellis[_tiles(columns), _tiles(rows)]
                by_input = inner_weight(tiles, values, scratch)
                other = scratch.get("rotated", tuple(by_input.shape), torch.float32, out.device)
                _rotate(by_input, other)
                by_output = by_input.copy_(other.permute(2, 1, 0))
                weight = _rotate(by_output, other).view(BLOCK, -1)
                factors = by_input.view(weight.shape)
                torch.mul(of_outputs[rows, None], of_inputs[columns], out=factors)
                target = out[rows, columns]
                target.copy_(weight.mul_(factors)[: target.shape[0], : target.shape[1]])


def _tiles(values: slice) -> slice:
    return slice(values.start // TILE, values.stop // TILE)


def _rotate(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Fills `other` with Hadamard's matrix times `x`, both float32 [128, …], and returns it; `x` is
    overwritten."""
    for bit in range(7):
        shape = (BLOCK >> (bit + 1), 2, x.numel() // BLOCK << bit)
        source, target = x.view(shape), other.view(shape)
        torch.add(source[:, 0], source[:, 1], out=target[:, 0])
        torch.sub(source[:, 0], source[:, 1], out=target[:, 1])
        x, other = other, x
    return x


def _signs(packed: torch.Tensor) -> torch.Tensor:
    """float16 [16 n] of int16 [n]: −1 where a bit is set, from the lowest one on."""
    bits = (packed.int().unsqueeze(1) >> torch.arange(16, device=packed.device)) & 1
    return (1 - 2 * bits).half().view(-1)


TILE = 16
# Inputs, and outputs, that are rotated together.
BLOCK = 128
# By the names that a config has; all but the first have a tensor that marks it, which holds the
# multiplier of its codes.
CODEBOOKS = ("3inst", "mcg", "mul1")
MULTIPLIERS = {"3inst": 89226354, "mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
ADDED = {"3inst": 64248484, "mcg": 0, "mul1": 0}


@lru_cache(maxsize=6)
def codebook_values(codebook: str, device: torch.device) -> torch.Tensor:
    """float32 [65536]: the values of all codes, each of them a half's."""
    codes = torch.arange(1 << 16) * MULTIPLIERS[codebook] + ADDED[codebook] & 0xFFFFFFFF
    if codebook == "mul1":
        # 1024 and the sum of four bytes, times 1774 · 2^−18, less 1329 · 2^−7: rounded once.
        total = ((codes.unsqueeze(1) >> torch.tensor((0, 8, 16, 24))) & 0xFF).sum(1) + 1024
        values = (total * 1774 - 1329 * 2048).double().mul_(2.0**-18).half()
    else:
        # Two halves whose signs and lower bits are the code's, added.
        bits = (codes & 0x8FFF8FFF) ^ 0x3B603B60
        high, low = (part.to(torch.uint16).view(torch.half) for part in (bits >> 16, bits & 0xFFFF))
        values = (high.float() + low.float()).half()
    return values.float().to(device)


def inner_weight(trellis: torch.Tensor, values: torch.Tensor, scratch: Scratch) -> torch.Tensor:
    """float32 [128, I / 128, O] of int16 `trellis` [I / 16, O / 16, 16 · K]: by an input's place in its
    block, by the block, and by output. Valid until the next call.

    I is a multiple of 128; `values` [65536] are the codebook's.
    """
    rows, columns, width = trellis.shape
    bits, device = width // TILE, trellis.device
    # A copy: what is stored need not begin at a whole word.
    words = trellis.clone(memory_format=torch.contiguous_format).view(torch.int32)
    # Each half of a word, behind the half before it.
    pairs = scratch.get("pairs", (*words.shape, 2), torch.int32, device)
    before = words.roll(1, 2).bitwise_left_shift_(16)
    pairs[..., 0] = before.bitwise_or_((words >> 16).bitwise_and_(0xFFFF))
    pairs[..., 1] = words
    # [block, tile in it, tile of outputs, output 0-2, input 2, word of 16 places]
    source = pairs.view(rows // 8, 8, columns, 8, 2, bits).permute(1, 4, 0, 2, 3, 5)
    shape = (BLOCK, rows // 8, columns * TILE)
    index = scratch.get("index", shape, torch.int32, device)
    # [tile in the block, input 3, 2, 1, 0, block, tile of outputs, output 3, output 0-2]
    target = index.view(8, 2, 2, 2, 2, rows // 8, columns, 2, 8)
    for place in range(TILE):
        input_0, input_3, output_3, input_1 = ((place >> bit) & 1 for bit in range(4))
        last = (place + 1) * bits
        word = (last - 1) // 16
        torch.bitwise_right_shift(
            source[..., word],
            16 * (word + 1) - last,
            out=target[:, input_3, :, input_1, input_0, :, :, output_3],
        )
    index.bitwise_and_(0xFFFF)
    out = scratch.get("inner", shape, torch.float32, device)
    torch.index_select(values, 0, index.view(-1), out=out.view(-1))
    return out


# Tensors that say no more than that a module has this codebook.
_MARKERS = CODEBOOKS[1:]
# Models of whose routed experts the library stores `up_proj` divided by 128, lest halves overflow, and
# makes up for it in the routing (`interm_div`): another model to whoever else reads it.
_DIVIDED = {"laguna", "mistral4"}
_READ = {"trellis", "suh", "svh", "su", "sv", "bias", *_MARKERS}


class Modules(Library[TensorsDecide]):
    """Linears with a `trellis`."""

    methods = frozenset(("exl3",))
    parse = staticmethod(parse_exl3)
    method = METHOD
    about = ("`exl3`", "yes", "W")
    looks, looks_by = "EXL3", ("trellis",)
    required = "trellis"
    marks = frozenset(("trellis", "suh", "svh"))
    records = frozenset(_MARKERS)
    # Phi-3's and GLM-4's.
    splits: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }

    def check(self) -> None:
        super().check()
        model = self.checkpoint.config
        for described in (model, model.get("text_config")):
            kind = described.get("model_type") if isinstance(described, Mapping) else None
            if isinstance(kind, str) and kind in _DIVIDED:
                raise UnsupportedFormat(
                    f"{METHOD} of a model of type {kind!r}, whose experts it stores divided by 128: "
                    "not decoded"
                )

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Exl3, str]:
        stored = Headers(module, tensors)
        stored.refuse_others(_READ, METHOD)
        inputs, outputs, width = stored.of_shape("trellis", (None, None, None), ("I16",))
        bits = width // TILE
        if width % TILE or not 1 <= bits <= 8:
            raise stored.wrong(f"{width} words a tile are not 1 to 8 bits in each of 256 codes")
        shape = (outputs * TILE, inputs * TILE)
        if any(size % BLOCK for size in shape):
            raise stored.wrong(
                f"{shape[0]} outputs and {shape[1]} inputs are no whole blocks of {BLOCK}"
            )
        signs = tuple(
            self._has_signs(stored, kind, size) for kind, size in (("u", shape[1]), ("v", shape[0]))
        )
        scheme = Exl3(shape, bits, self._codebook(stored), (signs[0], signs[1]))
        return self.alike(scheme, lambda: scheme), "exl3"

    @staticmethod
    def _has_signs(stored: Headers, kind: str, size: int) -> bool:
        """Tells whether a side's factors are packed signs; `kind`: `u` of inputs, `v` of outputs."""
        signs, factors = f"s{kind}", f"s{kind}h"
        if signs not in stored.tensors:
            stored.expect(factors, ("F16",), [(size,)])
            return False
        if factors in stored.tensors:
            raise stored.wrong(f"it has both {signs} and {factors}")
        stored.expect(signs, ("I16",), [(size // 16,)])
        return True

    def _codebook(self, stored: Headers) -> str:
        """Raises UnsupportedFormat for multipliers that releases before 0.0.9 could be given, and that
        none since has read."""
        marked = [name for name in _MARKERS if name in stored.tensors]
        if not marked:
            return CODEBOOKS[0]
        if len(marked) > 1:
            raise stored.wrong(f"it is marked as of codebook {' and '.join(marked)}")
        stored.match({marked[0]: single("I32", dtypes=("I32", "U32"))})
        content = bytes(self.checkpoint.read_bytes(stored.tensors[marked[0]].name))
        multiplier = int.from_bytes(content, "little")
        if multiplier != MULTIPLIERS[marked[0]]:
            raise UnsupportedFormat(
                f"{stored.module}: {METHOD} with a codebook {marked[0]} of multiplier "
                f"{multiplier:#x}: not decoded"
            )
        return marked[0]

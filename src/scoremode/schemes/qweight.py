"""Integers in words that lie by output, as AWQ, GPTQ and AutoRound store them: `qweight`, `qzeros` and
`scales`.

Scales [groups, O] and zero points [groups, O · bits / 32] give the number of bits, whatever the config
says; `qweight` gives the inputs, and whether its words hold codes of inputs (GPTQ) or of outputs (AWQ).
The config must name what is found.

The effective weight [O, I] is (q - z) · s, the difference and the product each rounded in the dtype of
the scales, float16 as these libraries write them.
Sources: AutoAWQ's `WQLinear_GEMM`; GPTQModel 7.7, `dequantize_weight`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.base import Scheme
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import Elements
from scoremode.schemes.layout import SCALES, Headers, Layout, Linear, Tensor
from scoremode.schemes.library import looks_like
from scoremode.schemes.packed import Packed


@dataclass(frozen=True)
class Qweight(Packed):
    """Integers of `bits` under a scale and a zero point for each group of inputs.

    - `qweight` int32: [words of inputs, O] in the order `columns`, [I, words of outputs] in `outputs`.
    - `qzeros` int32 [groups, words of outputs]; `scales` [groups, O].
    - `g_idx` [I]: the group of each input, read only where `has_g_idx`.
    - `library`: whose format it is.
    - `asymmetric`: whether zero points are read; all are half of the codes' range where not.
    - `less_one`: zero points are stored less one (GPTQ's first format).
    """

    @classmethod
    def of(
        cls,
        scaling: Scaling,
        bits: int,
        library: str,
        order: Literal["columns", "outputs"],
        asymmetric: bool,
        has_g_idx: bool = False,
        less_one: bool = False,
    ) -> "Qweight":
        marks = " asym" * asymmetric + " g_idx" * has_g_idx
        return cls(
            scaling=scaling,
            elements=Elements(bits, order=order, shuffled=order == "outputs"),
            label=f"{library} W{bits}A16 {scaling.label}{marks}",
            codes=Codes("int", 1 << bits, scaling.columns_of_one),
            weight="qweight",
            scale="scales",
            zero_point="qzeros" if asymmetric else None,
            g_idx="g_idx" if has_g_idx else None,
            zero_offset=int(less_one),
        )


BITS = (2, 3, 4, 8)
MARKS = frozenset(("qweight", "qzeros", "g_idx"))
_GATE = re.compile(r".*\.experts\.\d+\.gate_proj\.qweight")
_Scheme = TypeVar("_Scheme", bound=Scheme)


def check_gates(checkpoint: Checkpoint) -> None:
    """Raises UnsupportedFormat for gpt-oss with experts whose `gate_proj` may be one of two things.

    Its gates and ups take turns in the library's parameter. AutoRound takes them apart; what GPTQModel
    calls so since 5.8 (Defuser 0.0.8 to 0.0.28) is the first half of the rows, of both kinds.
    """
    if checkpoint.text_config.get("model_type") != "gpt_oss":
        return
    name = next((n for n in checkpoint.tensors if _GATE.fullmatch(n)), None)
    if name is not None and (checkpoint.quantization or {}).get("provider") != "auto-round":
        raise UnsupportedFormat(
            f"{name}: of GPTQModel since 5.8 half of an expert's gates and ups, of others its gates; "
            "which is known only where the config's provider is auto-round: not decoded"
        )


@dataclass(frozen=True)
class Declared:
    """A module's settings by a config: `group_size` is -1 for all inputs together."""

    bits: int
    group_size: int
    symmetric: bool

    def size(self, columns: int) -> int:
        """Inputs of a group, of a linear with so many."""
        return columns if self.group_size == -1 else self.group_size

    def __str__(self) -> str:
        return f"{self.bits} bits in groups of {self.group_size}"


@dataclass(frozen=True)
class Stored(Headers):
    """A module's tensors by suffix, and the `checkpoint` that small ones are read from."""

    checkpoint: Checkpoint

    def words(self) -> tuple[Literal["columns", "outputs"], int, tuple[int, int], int]:
        """Order of the words, bits, O × I, and the number of groups.

        Raises CheckpointError where tensors are missing or don't fit each other.
        """
        if "qweight" not in self.tensors and (other := looks_like(self.tensors)):
            # Such as attention left in float8, which an engine may know of.
            raise self.wrong(f"stored as {other}, and the config says no such format of it")
        groups, rows = self.matrix("scales", SCALES)
        of_zeros = self.matrix("qzeros", ("I32",))
        height, width = self.matrix("qweight", ("I32",))
        bits, rest = divmod(32 * of_zeros[1], rows)
        if rest or bits not in BITS or of_zeros[0] != groups:
            raise self.wrong(
                f"qzeros {list(of_zeros)} are not those of scales {[groups, rows]} at "
                f"{', '.join(map(str, BITS[:-1]))} or {BITS[-1]} bits"
            )
        if width == rows and 32 * height % bits == 0:
            order, columns = "columns", 32 * height // bits
        elif (bits, width * 8) == (4, rows):
            order, columns = "outputs", height
        else:
            raise self.wrong(
                f"qweight {[height, width]} is not one of {rows} outputs at {bits} bits"
            )
        self.match(qweight_layout((rows, columns), bits, groups, order))
        return order, bits, (rows, columns), groups

    def declared(
        self, bits: int, columns: int, groups: int, first: Declared, others: Iterable[Declared]
    ) -> Declared:
        """The config's settings that match the stored tensors; `first` are those for this module.

        Raises CheckpointError where none is, and where two of `others` are that mean different weights.
        """
        found: dict[tuple[int, bool], Declared] = {}
        for declared in (first, *others):
            size = min(declared.size(columns), columns)
            if declared.bits == bits and -(-columns // size) == groups:
                # One group of all inputs is the same by whatever size.
                found.setdefault((size, declared.symmetric), declared)
                if declared is first:
                    return first
        stored = f"stored in {bits} bits and {groups} groups of {columns} inputs"
        if len(found) > 1:
            both = " and ".join(f"{d}, sym {d.symmetric}" for d in list(found.values())[:2])
            raise self.wrong(
                f"{stored}, and the config says {first}; of others it says {both}, and nothing tells "
                "which of these it is"
            )
        if not found:
            raise self.wrong(f"{stored}, and the config says {first}")
        return next(iter(found.values()))

    def scaling(self, shape: tuple[int, int], declared: Declared) -> Scaling:
        """The Scaling of a weight of O × I `shape`."""
        if declared.group_size == -1:
            return Scaling(shape, "channel")
        return Scaling(shape, "group", declared.group_size)

    def in_activation_order(self, scaling: Scaling, *, declared: bool) -> bool:
        """Tells whether inputs belong to other groups than their places say.

        Raises CheckpointError for groups of another size, and for an order that is not `declared`.
        """
        columns = scaling.shape[1]
        if "g_idx" not in self.tensors:
            if declared and scaling.size is not None:
                raise self.wrong("desc_act is true, and its tensor g_idx is missing")
            return False
        info = self.header("g_idx")
        given = np.frombuffer(self.checkpoint.read_bytes(info.name), "<i4")
        usual = np.arange(columns) // (scaling.size or columns)
        if np.array_equal(given, usual):
            return False
        if not np.array_equal(np.sort(given), usual):
            raise self.wrong(f"its g_idx doesn't put {columns} inputs into {scaling.label}")
        if not declared:
            raise self.wrong("its g_idx is in activation order, and desc_act is not true")
        return True

    def zeros_are(self, code: int, bits: int) -> bool:
        """Tells whether all zero points are stored as this code."""
        words = self._zeros
        # Codes of 32 outputs fill as many words as each has bits.
        stream = sum(code << (bits * n) for n in range(32))
        of_32 = np.frombuffer(stream.to_bytes(4 * bits, "little"), "<u4")
        return np.array_equal(words, np.broadcast_to(np.resize(of_32, words.shape[1]), words.shape))

    def has_zero(self, code: int, bits: int) -> bool:
        """Tells whether a zero point is stored as this code."""
        words = self._zeros
        if 32 % bits == 0:
            # By words: those of a large model are a billion codes.
            lowest = sum(1 << at for at in range(0, 32, bits))
            same = ~(words ^ np.uint32(code * lowest))
            whole = np.bitwise_and.reduce([same >> np.uint32(k) for k in range(bits)])
            return bool((whole & np.uint32(lowest)).any())
        stream = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        by_code = stream.reshape(len(stream), -1, bits)
        return bool((by_code @ (1 << np.arange(bits)) == code).any())

    @cached_property
    def _zeros(self) -> np.ndarray:
        """The words of zero points, uint32 [groups, words]."""
        info = self.tensors["qzeros"]
        return np.frombuffer(self.checkpoint.read_bytes(info.name), "<u4").reshape(info.shape)

    def used_by(self, scheme: _Scheme, *others: str) -> _Scheme:
        """The `scheme`. Raises CheckpointError for tensors that neither it nor anything else uses."""
        if unknown := set(self.tensors) - {*scheme.tensors, *others, "bias"}:
            raise self.wrong(f"{scheme.label} has no {', '.join(sorted(unknown))}")
        return scheme


def qweight_layout(
    shape: tuple[int, int], bits: int, groups: int, order: Literal["columns", "outputs"]
) -> dict[str, Tensor]:
    """The tensors of a linear whose words hold codes of inputs (`columns`) or of outputs."""
    rows, columns = shape
    words = (columns * bits // 32, rows) if order == "columns" else (columns, rows // 8)
    layout = {
        "scales": Tensor("F16", (groups, rows), SCALES),
        "qzeros": Tensor("I32", (groups, rows * bits // 32)),
        "qweight": Tensor("I32", words),
    }
    if order == "columns":
        layout["g_idx"] = Tensor("I32", (columns,), optional=True)
    return layout


def promised_qweight(
    linear: Linear,
    declared: Declared,
    order: Literal["columns", "outputs"],
    zero: int,
    *,
    ordered: bool | None = None,
) -> Layout | None:
    """The tensors of a linear that a config declares, with all zero points stored as `zero`; None where
    its outputs or inputs fill no whole words.

    `ordered`: whether inputs are in activation order, None for a library that stores no plain order.
    """
    (rows, columns), bits = linear.shape, declared.bits
    size = declared.size(columns)
    if rows * bits % 32 or (order == "columns" and columns * bits % 32):
        return None
    layout = qweight_layout(linear.shape, bits, -(-columns // size), order)
    stream = sum(zero << (bits * n) for n in range(32)).to_bytes(4 * bits, "little")
    layout["qzeros"] = layout["qzeros"]._replace(content=stream)
    of_inputs = layout.pop("g_idx", None)
    if ordered is not None and of_inputs is not None:
        inputs = np.arange(columns)[::-1] if ordered else np.arange(columns)
        places = (inputs // size).astype("<i4")
        layout["g_idx"] = of_inputs._replace(content=places.tobytes())
    return layout

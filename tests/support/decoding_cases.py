"""Weights in every stored form, of random bits, for decoders to be held against each other."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from scoremode.schemes import compressed_tensors_weights as ct
from scoremode.schemes import modelopt
from scoremode.schemes.awq import Gemv, zero_words
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import TensorFormat
from scoremode.schemes.fp8 import block_float8
from scoremode.schemes.quark import weight
from scoremode.schemes.qweight import Qweight

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A scheme and its tensors by suffix, on the CPU; `factors`: dtypes that hold its codes."""

    name: str
    scheme: FactoredScheme
    tensors: Tensors
    factors: tuple[torch.dtype, ...]


class Random:
    """Stored values; of scales half are any bits at all: NaN, infinities, subnormals, both zeros."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def bits(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
        low = 0 if wide == torch.uint8 else -(1 << (8 * wide.itemsize - 1))
        high = low + (1 << 8 * wide.itemsize)
        drawn = torch.randint(low, high, shape, generator=self.generator)
        return drawn.to(wide).view(dtype)

    def scales(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        usual = torch.randn(shape, generator=self.generator).mul(0.01).to(dtype)
        chosen = torch.rand(shape, generator=self.generator) < 0.5
        return torch.where(chosen, usual, self.bits(shape, dtype))

    def order(self, columns: int, size: int) -> torch.Tensor:
        drawn = torch.randperm(columns, generator=self.generator)
        return (drawn // size).int()


def scalings(shape: tuple[int, int], *, block: bool = False) -> Iterator[Scaling]:
    """Groups of 32, of which a unit of 8 columns has one, and of 12, of which it has two."""
    yield Scaling(shape, "tensor")
    yield Scaling(shape, "channel")
    yield Scaling(shape, "group", 32)
    yield Scaling(shape, "group", 12)
    if block:
        yield Scaling(shape, "block", block=(3, 16))


def packed(
    scaling: Scaling, bits: int, dense: bool, asymmetric: bool, scale: torch.dtype, seed: int,
    **others: Any,
) -> Case:  # fmt: skip
    (rows, columns), random = scaling.shape, Random(seed)
    groups = scaling.stored_shape[1]
    ordered = others.get("has_g_idx", False)

    def words(values: int) -> int:
        return -(-values * bits // 32) if dense else -(-values // (32 // bits))

    scheme = ct.pack_quantized(scaling, bits, asymmetric, dense=dense, **others)
    tensors = {
        "weight_packed": random.bits((rows, words(columns)), torch.int32),
        "weight_scale": random.scales(scaling.stored_shape, scale),
    }
    if asymmetric and scaling.strategy == "tensor":
        tensors["weight_zero_point"] = random.bits((1,), torch.int8)
    elif asymmetric:
        tensors["weight_zero_point"] = random.bits((words(rows), groups), torch.int32)
    if ordered:
        assert scaling.size is not None
        tensors["weight_g_idx"] = random.order(columns, scaling.size)
    factors: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)
    assert scheme.codes.limit is not None
    if scheme.codes.limit <= 128:
        factors += (torch.int8,)
    layout = "dense" if dense else "padded"
    return Case(_name(scheme, layout, scale), scheme, tensors, () if ordered else factors)


def integers(scaling: Scaling, asymmetric: bool, scale: torch.dtype, seed: int) -> Case:
    random = Random(seed)
    scheme = ct.int_quantized(scaling, 8, asymmetric)
    tensors = {
        "weight": random.bits(scaling.shape, torch.int8),
        "weight_scale": random.scales(scaling.stored_shape, scale),
    }
    if asymmetric:
        tensors["weight_zero_point"] = random.bits(scaling.stored_shape, torch.int8)
    return Case(_name(scheme, scale), scheme, tensors, (torch.bfloat16, torch.float32))


def floats(scaling: Scaling, scale: torch.dtype, seed: int) -> Case:
    random = Random(seed)
    scheme = ct.float_quantized(scaling)
    tensors = {
        "weight": random.bits(scaling.shape, torch.float8_e4m3fn),
        "weight_scale": random.scales(scaling.stored_shape, scale),
    }
    return Case(_name(scheme, scale), scheme, tensors, (torch.bfloat16, torch.float32))


def float8_blocks(shape: tuple[int, int], scale: torch.dtype, seed: int) -> Case:
    """Rounded in float32, whatever the scales are."""
    random, scaling = Random(seed), Scaling(shape, "block", block=(3, 16))
    scheme = block_float8(scaling)
    of_one_byte = scale.itemsize == 1
    make = random.bits if of_one_byte else random.scales
    tensors = {
        "weight": random.bits(shape, torch.float8_e4m3fn),
        "weight_scale_inv": make(scaling.stored_shape, scale),
    }
    return Case(_name(scheme, scale), scheme, tensors, (torch.bfloat16, torch.float32))


def qweight(
    scaling: Scaling, bits: int, order: str, less_one: bool, scale: torch.dtype, seed: int,
    *, ordered: bool = False, asymmetric: bool = True,
) -> Case:  # fmt: skip
    """GPTQ's words of inputs (`columns`) or AWQ's of outputs; any bits at all."""
    (rows, columns), random, groups = scaling.shape, Random(seed), scaling.stored_shape[1]
    words = (-(-columns * bits // 32), rows) if order == "columns" else (columns, rows // 8)
    scheme = Qweight.of(scaling, bits, "GPTQ", order, asymmetric, ordered, less_one)  # type: ignore[arg-type]
    tensors = {
        "qweight": random.bits(words, torch.int32),
        "scales": random.scales((groups, rows), scale),
    }
    if asymmetric:
        tensors["qzeros"] = random.bits((groups, -(-rows * bits // 32)), torch.int32)
    if ordered:
        assert scaling.size is not None
        tensors["g_idx"] = random.order(columns, scaling.size)
    return Case(_name(scheme, order, scale), scheme, tensors, (torch.float32,))


def gemv(shape: tuple[int, int], size: int, seed: int) -> Case:
    """AWQ's rows, with more places of scales and zero points than there are groups."""
    (rows, columns), random, words = shape, Random(seed), zero_words(shape[1], size)
    tensors = {
        "qweight": random.bits((rows, columns // 8), torch.int32),
        "qzeros": random.bits((rows, words), torch.int32),
        "scales": random.scales((rows, 8 * words), torch.float16),
    }
    scheme = Gemv.of(Scaling(shape, "group", size))
    return Case(_name(scheme, "gemv"), scheme, tensors, (torch.bfloat16, torch.float32, torch.int8))


def quark(scaling: Scaling, signed: bool, shuffled: bool, scale: torch.dtype, seed: int) -> Case:
    """Words of eight outputs, shuffled or not, two's complement or not."""
    (rows, columns), random, groups = scaling.shape, Random(seed), scaling.stored_shape[1]
    form = TensorFormat(4, "int" if signed else "uint", "group", scaling.size, symmetric=False)
    scheme = weight(scaling, form, shuffled=shuffled)
    tensors = {
        "weight": random.bits((columns, rows // 8), torch.int32),
        "weight_scale": random.scales((groups, rows), scale),
        "weight_zero_point": random.bits((groups, rows // 8), torch.int32),
    }
    name = _name(scheme, "Quark", f"signed={signed}", f"shuffled={shuffled}")
    return Case(name, scheme, tensors, (torch.bfloat16, torch.float32, torch.int8))


def nvfp4(shape: tuple[int, int], whole: float, seed: int) -> Case:
    random, scaling = Random(seed), Scaling(shape, "group", 16)
    scheme = ct.nvfp4(scaling)
    tensors = {
        "weight_packed": random.bits((shape[0], shape[1] // 2), torch.uint8),
        "weight_scale": random.bits(scaling.stored_shape, torch.float8_e4m3fn),
        "weight_global_scale": torch.tensor([whole]),
    }
    return Case(_name(scheme, whole), scheme, tensors, (torch.bfloat16, torch.float32))


def mx(shape: tuple[int, int], bits: int, seed: int) -> Case:
    random, scaling = Random(seed), Scaling(shape, "group", 32)
    scheme = ct.mx(scaling, bits)
    name, _ = scheme.tensors
    dtype = torch.float8_e4m3fn if bits == 8 else torch.uint8
    tensors = {
        name: random.bits((shape[0], shape[1] * bits // 8), dtype),
        "weight_scale": random.bits(scaling.stored_shape, torch.uint8),
    }
    return Case(_name(scheme), scheme, tensors, (torch.bfloat16, torch.float32))


def modelopt_nvfp4(shape: tuple[int, int], whole: float, seed: int) -> Case:
    """Its global scale multiplies."""
    random, scaling = Random(seed), Scaling(shape, "group", 16)
    tensors = {
        "weight": random.bits((shape[0], shape[1] // 2), torch.uint8),
        "weight_scale": random.bits(scaling.stored_shape, torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(whole),
    }
    scheme = modelopt.nvfp4(scaling)
    name = _name(scheme, "ModelOpt", whole)
    return Case(name, scheme, tensors, (torch.bfloat16, torch.float32))


def modelopt_floats(scaling: Scaling, seed: int) -> Case:
    """Under scales that are rounded themselves."""
    random, scheme = Random(seed), modelopt.float8(scaling)
    tensors = {
        "weight": random.bits(scaling.shape, torch.float8_e4m3fn),
        "weight_scale": random.scales(scaling.stored_shape, torch.float32),
    }
    name = _name(scheme, "ModelOpt")
    return Case(name, scheme, tensors, (torch.bfloat16, torch.float32))


def modelopt_mxfp8(shape: tuple[int, int], seed: int) -> Case:
    random, scaling = Random(seed), Scaling(shape, "group", 32)
    tensors = {
        "weight": random.bits(shape, torch.float8_e4m3fn),
        "weight_scale": random.bits(scaling.stored_shape, torch.uint8),
    }
    scheme = modelopt.mxfp8(scaling)
    name = _name(scheme, "ModelOpt")
    return Case(name, scheme, tensors, (torch.bfloat16, torch.float32))


def modelopt_int4(shape: tuple[int, int], size: int, seed: int) -> Case:
    """Two rows a byte."""
    random, scaling = Random(seed), Scaling(shape, "group", size)
    tensors = {
        "weight": random.bits((shape[0] // 2, shape[1]), torch.uint8),
        "weight_scale": random.scales(scaling.stored_shape, torch.float32),
    }
    scheme = modelopt.int4_awq(scaling)
    factors = (torch.bfloat16, torch.float32, torch.int8)
    return Case(_name(scheme), scheme, tensors, factors)


def every_form(shape: tuple[int, int]) -> Iterator[Case]:
    """All formats, widths, layouts, strategies, with and without zero points and activation order;
    dtypes of scales in turn. `shape`: columns a multiple of four."""
    count = 0

    def next_dtype() -> torch.dtype:
        nonlocal count
        count += 1
        return DTYPES[count % 3]

    for bits in range(2, 9):
        for dense in (True, False) if 32 % bits else (True,):
            for asymmetric in (False, True):
                for scaling in scalings(shape):
                    yield packed(scaling, bits, dense, asymmetric, next_dtype(), count)
                ordered = Scaling(shape, "group", 32)
                yield packed(ordered, bits, dense, asymmetric, next_dtype(), count, has_g_idx=True)
    for bits in (2, 3, 4, 8):
        for less_one in (False, True):
            for scaling in (Scaling(shape, "channel"), Scaling(shape, "group", 32)):
                for asymmetric in (False, True):
                    scale = next_dtype()
                    yield qweight(
                        scaling, bits, "columns", less_one, scale, count, asymmetric=asymmetric
                    )
        ordered = Scaling(shape, "group", 12)
        yield qweight(ordered, bits, "columns", True, next_dtype(), count, ordered=True)
    for size in (12, 32):
        by_eight = Scaling((-(-shape[0] // 8) * 8, shape[1] + 1), "group", size)
        yield qweight(by_eight, 4, "outputs", False, next_dtype(), count)
        for signed in (False, True):
            for shuffled in (False, True):
                yield quark(by_eight, signed, shuffled, next_dtype(), count)
    for size in (32, 128):
        yield gemv((shape[0], 256), size, 16)
    for scaling in scalings(shape):
        for asymmetric in (False, True):
            yield integers(scaling, asymmetric, next_dtype(), count)
    for scaling in scalings(shape, block=True):
        for scale in DTYPES:
            yield floats(scaling, scale, 7)
    for scale in (*DTYPES, torch.uint8, torch.float8_e8m0fnu):
        yield float8_blocks(shape, scale, 10)
    # The last two have quotients halfway between two bfloat16: none may be off by a bit.
    for whole in (1.0, 0.1, 2688.0, 1e-30, 1e30, -5.0, 9 / 347, 15 / 297):
        yield nvfp4(shape, whole, 8)
        yield modelopt_nvfp4(shape, whole, 11)
    for bits in (4, 6, 8):
        yield mx(shape, bits, 9)
    yield modelopt_mxfp8(shape, 12)
    for scaling in (Scaling(shape, "tensor"), Scaling(shape, "channel")):
        yield modelopt_floats(scaling, 13)
    yield modelopt_floats(Scaling(shape, "block", block=(16, 16)), 14)
    for size in (12, 32, 128):
        yield modelopt_int4((shape[0] // 2 * 2, shape[1]), size, 15)


def _name(scheme: FactoredScheme, *more: object) -> str:
    words = (str(word).removeprefix("torch.") for word in more)
    return " ".join((scheme.label, *words, "x".join(map(str, scheme.shape))))


def differing(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """How many values differ in a bit, but for which NaN it is."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[actual.itemsize]
    other = actual.contiguous().view(wide) != expected.contiguous().view(wide)
    if actual.is_floating_point():
        other &= ~(actual.isnan() & expected.isnan())
    return int(other.sum())

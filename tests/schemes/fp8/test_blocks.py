"""Blocks of float8 against transformers' and compressed-tensors' dequantizers, to the bit."""

from typing import Any, cast

import pytest
import torch
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import (
    FP8BlockDequantizer,
)
from support.families.float8_blocks import E4M3, config, quantize, spread, transformers_weight
from support.schemes import DTYPES, decode, dtype_name, factor, random_weight, same

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fp8 import block_float8, parse_fp8
from scoremode.schemes.packed import Packed

BYTES = [torch.uint8, torch.float8_e8m0fnu]
WHOLE = [((128, 128), (128, 256)), ((256, 128), (128, 128)), ((12, 24), (4, 8)), ((3, 21), (1, 7))]
# Either side short, both, or narrower than a block.
SHORT = [
    ((576, 192), (128, 128)),
    ((130, 129), (128, 128)),
    ((5, 7), (128, 128)),
    ((13, 45), (4, 8)),
]


def build(shape: tuple[int, int], block: tuple[int, int], **others: Any) -> Packed:
    inputs = Inputs(parse_fp8(config(block, **others)).inputs, ())
    return block_float8(Scaling(shape, "block", block=block), inputs=inputs)


def compressed_tensors_weight(
    stored: dict[str, torch.Tensor], block: tuple[int, int], dtype: torch.dtype
) -> torch.Tensor:
    converter = FP8BlockDequantizer(weight_block_size=cast(Any, block), dtype=dtype)
    scale = stored["weight_scale_inv"]
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    return converter._create_dequantized_weight(stored["weight"], scale.float())


@pytest.mark.parametrize("scale", [*DTYPES, *BYTES], ids=dtype_name)
@pytest.mark.parametrize(("shape", "block"), WHOLE)
def test_whole_blocks_equal_both_libraries(shape, block, scale):
    stored = quantize(random_weight(*shape, torch.bfloat16), block, scale)
    assert stored["weight_scale_inv"].dtype == scale
    scheme = build(shape, block)
    for dtype in DTYPES:
        ours = decode(scheme, stored, dtype)
        same(ours, transformers_weight(stored, dtype))
        same(ours, compressed_tensors_weight(stored, block, dtype))


@pytest.mark.parametrize("scale", [*DTYPES, *BYTES], ids=dtype_name)
@pytest.mark.parametrize(("shape", "block"), SHORT)
def test_short_last_blocks_equal_compressed_tensors(shape, block, scale):
    """transformers refuses them, or takes rows over scale rows for the height of a block."""
    stored = quantize(random_weight(*shape, torch.bfloat16), block, scale)
    for dtype in DTYPES:
        ours = decode(build(shape, block), stored, dtype)
        same(ours, compressed_tensors_weight(stored, block, dtype))


@pytest.mark.parametrize(("shape", "block"), [*WHOLE, *SHORT])
@pytest.mark.parametrize("scale", [*DTYPES, *BYTES], ids=dtype_name)
def test_codes_times_scales_are_the_weight(shape, block, scale):
    stored = quantize(random_weight(*shape, torch.bfloat16), block, scale)
    scheme = build(shape, block)
    for dtype in (E4M3, torch.bfloat16, torch.float32):
        codes, scales = factor(scheme, stored, dtype)
        same((codes.float() * scales.float()), decode(scheme, stored, torch.float32))
    found = scheme.stored_factors(stored, E4M3)
    if found is not None:
        assert found.codes is stored["weight"]
        same(found.dense(block[1]), decode(scheme, stored, torch.float32))


@pytest.mark.parametrize("scale", BYTES, ids=dtype_name)
def test_every_power_of_two(scale):
    """255 is NaN, as torch's float8_e8m0fnu has it."""
    codes = torch.arange(256).to(torch.uint8)
    stored = {
        "weight": codes.view(E4M3).repeat(256, 1),
        "weight_scale_inv": codes.view(-1, 1).contiguous().view(scale),
    }
    scheme = build((256, 256), (1, 256))
    ours, theirs = decode(scheme, stored, torch.float32), transformers_weight(stored, torch.float32)
    same(ours[:255], theirs[:255])
    # In a byte of no type transformers takes it for 2^128, which is infinite.
    assert ours[255].isnan().all() and not theirs[255].isfinite().any()
    assert scheme.scales(stored)[255].isnan().all()


def test_a_scale_in_bfloat16_does_not_round_the_product():
    """As transformers has it, and not as compressed-tensors' own float-quantized."""
    stored = quantize(random_weight(16, 16, torch.bfloat16), (16, 16), torch.bfloat16)
    exact = stored["weight"].float() * stored["weight_scale_inv"].float()
    same(decode(build((16, 16), (16, 16)), stored, torch.float32), exact)
    assert (exact != exact.bfloat16().float()).any()


def test_a_block_of_more_rows_than_there_is_memory_for():
    stored = quantize(random_weight(3, 5, torch.bfloat16), (128, 128))
    huge = (1 << 30, 1 << 30)
    same(decode(build((3, 5), huge), stored, torch.float32),
         decode(build((3, 5), (128, 128)), stored, torch.float32))  # fmt: skip


@pytest.mark.parametrize("ue8m0", [False, True])
def test_inputs_are_quantized_as_deepseek_does(ue8m0):
    """A token's scale a group is its largest magnitude over 448, rounded up with ue8m0; codes are
    quotients by it, half to even. The library's own Triton kernel does the first."""
    scheme = build((4, 448), (128, 128), **({"scale_fmt": "ue8m0"} if ue8m0 else {}))
    x = random_weight(40, 448, torch.bfloat16)
    x[3, 128:256] = 0
    assert scheme.inputs is not None
    q = scheme.inputs.quantize(x, {}, E4M3)
    assert q.scale.shape == (40, 4)
    for group in range(4):
        part = x[:, 128 * group : 128 * (group + 1)].float()
        scale = part.abs().amax(1, keepdim=True) / 448
        if ue8m0:
            scale = torch.exp2(scale.log2().ceil())
        there = scale[:, 0] > 0
        assert torch.equal(q.scale[there, group], scale[there, 0])
        codes = (part / scale)[there].to(E4M3)
        same(q.codes[there, 128 * group : 128 * (group + 1)], codes)
    assert not q.codes[3, 128:256].float().any()


def test_labels():
    assert build((4, 4), (128, 128)).label == "FP8 block 128x128"
    assert build((4, 4), (128, 128), scale_fmt="ue8m0").label == "FP8 block 128x128 ue8m0"
    ours = build((4, 4), (128, 128), scale_fmt="ue8m0")
    assert ours.inputs and ours.inputs.label == "float8 group 128 ue8m0"
    assert ours.tensors == ("weight", "weight_scale_inv")


def test_spread_is_what_it_says():
    scale = torch.arange(4.0).view(2, 2)
    assert spread(scale, (2, 3), torch.Size((3, 4))).tolist() == [
        [0, 0, 0, 1], [0, 0, 0, 1], [2, 2, 2, 3],
    ]  # fmt: skip

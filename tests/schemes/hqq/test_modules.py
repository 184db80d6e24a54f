"""Schemes of HQQ's checkpoints by their headers and parameters, and each way they can be wrong."""

import pytest
import torch
from support.families.hqq import config, quantize, text
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

WEIGHT = random_weight(16, 96, torch.bfloat16)


def stored(of: int = 4, along: int = 1, **changes) -> dict[str, torch.Tensor]:
    tensors = quantize(WEIGHT, of, 32, along) | changes
    return {f"m.{k}": t for k, t in tensors.items() if k != "dense" and t is not None}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, quantization=None):
        path = write_checkpoint(tmp_path, tensors, quantization or config())
        return resolve(open_checkpoint(path))

    return build


def test_bits_per_weight(tmp_path):
    path = write_checkpoint(tmp_path, stored() | {"m.bias": torch.zeros(16)}, config())
    summary = summarize(open_checkpoint(path))
    assert summary.body_bits == 4 + 2 * 16 / 32
    assert (summary.parameters, summary.quantized) == (16 * 96 + 16, 16 * 96)


def number(value: int) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.int32)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (stored(scale=None), "m: quantized, and its tensor scale is missing"),
        (stored(packing=None), "m: quantized, and its tensor packing is missing"),
        (stored(scale=torch.ones(48, 1)), "m.scale has dtype F32, expected BF16"),
        (stored(zero=torch.ones(47, 1).bfloat16()), "m.zero has shape [47, 1], expected [48, 1]"),
        (stored(scale=torch.ones(1, 48).bfloat16()), "m.scale has shape [1, 48], expected [48, 1]"),
        (stored(W_q=torch.zeros(24, 31).byte()), "m.W_q has shape [24, 31], expected [24, 32]"),
        (stored(W_q=torch.zeros(24, 32)), "m.W_q has dtype F32, expected U8"),
        (stored(3, W_q=torch.zeros(5, 32).byte()), "m.W_q has dtype U8, expected I32"),
        (stored(shape=torch.tensor([16, 96, 1])), "m: its shape is I64 [3], not 2 numbers"),
        (stored(shape=torch.tensor([15, 97])), "m: 15 x 97 elements are no whole number of groups"),
        (stored(shape=torch.tensor([-16, -96])), "m: shape [-16, -96] in groups of 32"),
        (stored(group_size=number(0)), "m: shape [16, 96] in groups of 0"),
        (stored(group_size=number(512)), "m: 3 rows of codes are not packed 2 in a byte"),
        (stored(axis=torch.ones(2)), "m: its axis is F32 [2], not 1 numbers"),
        (stored(optimize=torch.ones(1).half()), "m: its optimize has dtype F16"),
        (stored(packing=torch.zeros(3)), "m: its packing is F32 [3], not a short text"),
        (stored(2), "m: its nbits is 2, and the config says 4"),
        (stored(axis=number(0), scale=torch.ones(1, 48).bfloat16()), "m.W_q has shape [24, 32]"),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (stored(nbits=number(7)), "m: quantization method 'hqq' with nbits 7: not"),
        (stored(packing=text("2bit_u8")), "with nbits 4 and packing '2bit_u8': not"),
        (stored(axis=number(2)), "with axis 2: not decoded"),
        (stored(compute_dtype=text("torch.float64")), "with compute_dtype 'torch.float64': not"),
        (stored(quant_scale=number(1)), "with quant_scale True: not decoded"),
        (stored(channel_wise=number(0)), "with channel_wise False: not decoded"),
        (stored(scale_q=torch.ones(1)), "m: quantization method 'hqq' with scale_q is not supp"),
        ({"m.weight": torch.zeros(2, 2)}, "'hqq', and no tensor is a W_q: a dense checkpoint"),
    ],
)
def test_what_is_not_decoded_is_named(refusal, tensors, words):
    assert words in refusal(tensors, error=UnsupportedFormat)


def test_a_module_that_the_list_names(refusal):
    words = "m: stored quantized, and skip_modules names it"
    assert refusal(stored(), config() | {"skip_modules": ["m"]}) == words

"""Schemes of MLX's checkpoints by their headers, and each way they can be wrong."""

import json

import pytest
import torch
from support.families.mlx import quantize
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.mlx import Affine
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

WEIGHT = random_weight(6, 96, torch.bfloat16)
CONFIG = {"group_size": 32, "bits": 4}


def stored(width: int = 4, **changes) -> dict[str, torch.Tensor]:
    tensors = quantize(WEIGHT, width, 32) | changes
    return {f"m.{k}": t for k, t in tensors.items() if k != "dense" and t is not None}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, config=CONFIG, key="quantization", **others):
        path = write_checkpoint(tmp_path, tensors)
        (tmp_path / "config.json").write_text(json.dumps({key: config} | others))
        return resolve(open_checkpoint(path))

    return build


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_integers(resolved, bits, key):
    tensors = stored(bits) | {"m.bias": torch.zeros(6), "norm.weight": torch.zeros(5)}
    schemes = resolved(tensors, CONFIG | {"bits": bits}, key)
    assert list(schemes.quantized) == ["m"]
    scheme = schemes.quantized["m"]
    assert isinstance(scheme, Affine) and (scheme.shape, scheme.bits) == ((6, 96), bits)


def test_a_config_that_is_there_twice_says_the_same(resolved):
    assert "m" in resolved(stored(), CONFIG, quantization_config=CONFIG).quantized
    for other in ({"bits": 8}, {"m": False}, {"mode": "mxfp4"}):
        with pytest.raises(
            CheckpointError, match=r"quantization.* and its quantization.* differ in"
        ):
            resolved(stored(), CONFIG, quantization_config=CONFIG | other)


def test_bits_per_weight(tmp_path):
    path = write_checkpoint(tmp_path, stored(), CONFIG)
    assert summarize(open_checkpoint(path)).body_bits == 4 + 2 * 16 / 32


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (stored(weight=None), "m: quantized, and its tensor weight is missing"),
        (stored(biases=None), "m: quantized, and its tensor biases is missing"),
        (
            stored(scales=None) | {k.replace("m.", "n."): t for k, t in stored().items()},
            "m: quantized, and its tensor scales is missing",
        ),
        (stored(weight=torch.zeros(6, 12).int()), "m.weight has dtype I32, expected U32"),
        (stored(weight=torch.zeros(12).to(torch.uint32)), "shape [12], not [n, n]"),
        (stored(scales=torch.ones(5, 3).bfloat16()), "m.scales has shape [5, 3], expected [6, 3]"),
        (stored(scales=torch.ones(6, 3).byte()), "m.scales has dtype U8, expected BF16"),
        (stored(biases=torch.ones(6, 3)), "m.biases has dtype F32, expected BF16"),
        (stored(6), "m: 18 words a row are not 3 groups of 32 in 4 bits"),
        (stored(scales=torch.ones(6, 4).bfloat16()), "m: 12 words a row are not 4 groups of 32"),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


def test_what_is_not_decoded_is_named(refusal):
    tensors = stored(global_scale=torch.ones(1))
    words = "m: quantization method 'mlx' in mode affine with global_scale is not supported"
    assert refusal(tensors, error=UnsupportedFormat) == words
    tensors = stored(weight=torch.zeros(2, 6, 12).to(torch.uint32))
    words = "m: a weight of 3 dimensions ([2, 6, 12]), and no experts' by its name: not decoded"
    assert refusal(tensors, error=UnsupportedFormat) == words
    words = "m: quantization method 'mlx' in mode mxfp4 with biases is not supported"
    assert refusal(stored(), CONFIG | {"mode": "mxfp4"}, error=UnsupportedFormat) == words
    words = "quantization method 'mlx', and no tensor is a scales: not decoded"
    assert refusal({"m.weight": torch.zeros(2, 2)}, error=UnsupportedFormat) == words


def test_a_module_that_the_config_says_is_dense(refusal):
    words = "m: stored quantized, and the config says that it is not"
    assert refusal(stored(), CONFIG | {"m": False}) == words

"""Tensors that a config alone promises, against those that the library writes."""

import pytest
import torch
from support.promises import NAMES, promises_of
from support.quantized import LibraryLinear, preset

from scoremode.schemes.compressed_tensors import Modules
from scoremode.schemes.layout import Linear

promise = promises_of(Modules)

LINEAR = Linear("model.layers.0.mlp.up_proj", (128, 256), "BF16")
PRESETS = (
    *("W4A16", "W4A16_ASYM", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP6A16", "MXFP8"),
    *("FP8", "FP8_DYNAMIC", "INT8", "FP8_BLOCK"),
)


@pytest.mark.parametrize("name", PRESETS)
def test_tensors_of_the_library(name):
    torch.manual_seed(0)
    linear = LibraryLinear(torch.randn(128, 256).bfloat16(), preset(name), torch.randn(4, 256))
    tensors = promise(linear.config())(LINEAR)
    assert tensors is not None
    found = {
        suffix: (NAMES[tensor.dtype], tuple(tensor.shape) or (1,))
        for suffix, tensor in linear.stored().items()
    }
    expected = {suffix: (t.dtype, t.shape) for suffix, t in tensors.items()}
    # Older releases store zero points of symmetric inputs; scales of inputs have any float's dtype.
    for suffix in [s for s in found if s.startswith("input_")]:
        assert suffix == "input_zero_point" or expected.pop(suffix)[1] == found[suffix][1]
        del found[suffix]
    assert expected == found


def test_the_shape_is_what_is_read():
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 64}}
    promised = promise({"format": "pack-quantized", "config_groups": {"g": group}})(LINEAR)
    assert promised is not None
    shape = promised["weight_shape"].content
    assert [int.from_bytes(shape[i : i + 8], "little") for i in (0, 8)] == [128, 256]


@pytest.mark.parametrize(("version", "words"), [("0.17.1", 26), ("0.18.0", 24), (None, 24)])
def test_three_bits_by_release(version, words):
    weights = {"num_bits": 3, "type": "int", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights}
    config = {"format": "pack-quantized", "config_groups": {"g": group}, "version": version}
    promised = promise(config)(LINEAR)
    assert promised is not None and promised["weight_packed"].shape == (128, words)


def test_what_no_group_claims_stays_dense():
    group = {"targets": ["Linear"], "weights": {"num_bits": 4}}
    config = {"format": "pack-quantized", "config_groups": {"g": group}, "ignore": ["re:.*up_proj"]}
    assert promise(config)(LINEAR) is None

from dataclasses import replace

import pytest

from scoremode.schemes.fields import TensorFormat

MXFP4 = TensorFormat(4, "float", "group", 32)


@pytest.mark.parametrize(
    ("change", "is_mx"),
    [
        ({}, True),
        ({"scale_dtype": "uint8"}, True),
        ({"scale_dtype": "float8_e4m3fn"}, False),
        # Floats of 8 bits in groups of 32 have had scales of other kinds.
        ({"bits": 8}, False),
        ({"bits": 8, "scale_dtype": "uint8"}, True),
        ({"group_size": 16}, False),
        ({"strategy": "tensor_group"}, False),
        ({"type": "int"}, False),
    ],
)
def test_microscaling_is_told_by_its_scales(change, is_mx):
    assert replace(MXFP4, **change).is_mx == is_mx


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (TensorFormat(8, "float", "tensor"), "float8 tensor static"),
        (TensorFormat(8, "int", "token", dynamic=True), "int8 token dynamic"),
        (TensorFormat(4, "int", "group", 128, symmetric=False), "int4 group 128 asymmetric static"),
        (TensorFormat(8, "float", "block", block=(128, 64)), "float8 block 128x64 static"),
        (TensorFormat(4, "float", "tensor_group", 16, dynamic="local"), "float4 group 16 dynamic"),
    ],
)
def test_words(form, words):
    assert form.described == words and words.startswith(str(form))

"""MLX's integers against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.golden_libraries import golden
from support.schemes import decode, same

from scoremode.schemes.decoding import unpack
from scoremode.schemes.mlx import Affine

CASES = {name: case for name, case in golden("mlx").items() if "biases" in case}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name, monkeypatch):
    case, (bits, size, _) = CASES[name], name.split("-")
    scheme = Affine(tuple(case["dense"].shape), int(bits), int(size))
    for dtype in (case["dense"].dtype, torch.float32):
        same(decode(scheme, case, dtype), case["dense"])
    # A few rows at a time.
    monkeypatch.setitem(unpack.BLOCK_ELEMENTS, "cpu", 200)
    same(decode(scheme, case, torch.float32), case["dense"])


def test_product_and_sum_are_rounded_apart():
    """Else these would be others, in every dtype."""
    for name in ("8-128-bf16", "6-64-f32", "5-32-f16"):
        case = next(c for n, c in CASES.items() if n.split("-")[2] == name.split("-")[2])
        dtype = case["dense"].dtype
        exact = case["scales"].double().unsqueeze(2) * 3 + case["biases"].double().unsqueeze(2)
        apart = case["scales"].unsqueeze(2) * 3 + case["biases"].unsqueeze(2)
        assert (exact.to(dtype) != apart).any()


def test_labels():
    scheme = Affine((4, 64), 4, 64)
    assert scheme.label == "MLX 4-bit g64" and scheme.inputs is None
    assert scheme.tensors == ("weight", "scales", "biases")

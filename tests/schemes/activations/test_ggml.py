"""Inputs in ggml's blocks, against what llama.cpp's CPU build makes of the same rows."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from scoremode.schemes.activations.ggml import GgmlInputs, Kind, gelu
from scoremode.schemes.base import Quantizer
from scoremode.schemes.decoding import unpack

ROWS = Path(__file__).parents[2] / "golden" / "gguf_arithmetic" / "rows.npz"


@pytest.fixture(scope="module")
def rows() -> dict[str, np.ndarray]:
    with np.load(ROWS) as found:
        return dict(found)


def blocks_of(kind: str, stored: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes, scales and sums of a row's blocks, by ggml's own structs."""
    rows = len(stored)
    if kind == "Q8_0":
        blocks = stored.reshape(rows, -1, 34)
        scale, codes, sums = blocks[..., :2].copy().view("<f2"), blocks[..., 2:], None
    elif kind == "Q8_1":
        blocks = stored.reshape(rows, -1, 36)
        scale, codes = blocks[..., :2].copy().view("<f2"), blocks[..., 4:]
        sums = blocks[..., 2:4].copy().view("<f2").astype(np.float32).reshape(rows, -1)
    else:
        blocks = stored.reshape(rows, -1, 292)
        scale, codes = blocks[..., :4].copy().view("<f4"), blocks[..., 4:260]
        sums = blocks[..., 260:].copy().view("<i2").astype(np.float32)
        sums = (sums * scale).reshape(rows, -1)
    scale = scale.astype(np.float32).reshape(rows, -1)
    return codes.copy().view(np.int8).reshape(rows, -1), scale, sums


@pytest.mark.parametrize("elements", [1, 600, 1 << 19])
@pytest.mark.parametrize(("kind", "summed"), [("Q8_0", None), ("Q8_1", 32), ("Q8_K", 16)])
def test_blocks_are_llama_cpps_to_the_bit(rows, kind: Kind, summed, elements, monkeypatch):
    monkeypatch.setattr(unpack, "BLOCK_ELEMENTS", {"cpu": elements})
    x = torch.from_numpy(rows["x"])
    codes, scale, sums = blocks_of(kind, rows[kind])
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        found = GgmlInputs(kind, summed).quantize(x.view(1, *x.shape), {}, dtype)
        assert found.codes.dtype == dtype and found.minimum is None
        assert (found.codes.float().numpy() == codes).all()
        assert (found.scale.numpy() == scale).all()
        if sums is not None:
            assert found.sums is not None and (found.sums.numpy() == sums).all()


def test_sums_of_wider_groups(rows):
    """Two of 16 columns are one of 32, but for the rounding of their sum."""
    x = torch.from_numpy(rows["x"])
    narrow, wide = (GgmlInputs("Q8_K", n).quantize(x, {}).sums for n in (16, 32))
    assert narrow is not None and wide is not None
    torch.testing.assert_close(narrow.unflatten(1, (-1, 2)).sum(2), wide, rtol=1e-6, atol=1e-5)
    assert GgmlInputs("Q8_K").quantize(x, {}).sums is None


@pytest.mark.parametrize(("kind", "dtype"), [("F16", torch.float16), ("BF16", torch.bfloat16)])
def test_floats_are_rounded_to_the_weights_dtype(kind: Kind, dtype):
    x = torch.randn(3, 5, 64) * torch.tensor([1.0, 1e-6, 1e5]).view(3, 1, 1)
    found = GgmlInputs(kind).quantize(x, {})
    assert torch.equal(found.codes, x.to(dtype).float().view(15, 64))
    assert found.scale.shape == (1, 1) and found.scale.item() == 1


@pytest.mark.parametrize("kind", ["Q8_0", "Q8_1", "Q8_K"])
def test_nothing_is_left_of_the_smallest(kind: Kind):
    """127 over them is infinite: not a NaN where llama.cpp has zero under a scale of zero."""
    x = torch.full((2, 256), 1e-38)
    x[1] = 0
    found = GgmlInputs(kind, 32).quantize(x, {})
    assert not found.codes.any()
    assert found.scale.isfinite().all() and found.sums is not None and not found.sums.any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["Q8_0", "Q8_1", "Q8_K"])
def test_what_is_not_finite_shows_in_the_scale(kind: Kind, value):
    x = torch.randn(2, 512)
    x[0, 300] = value
    found = GgmlInputs(kind).quantize(x, {}, torch.int8)
    lost = ~found.scale.isfinite()
    assert lost.sum() == 1 and lost[0, 300 * lost.shape[1] // 512]


def test_what_it_says_of_itself():
    inputs: Quantizer = GgmlInputs("Q8_K", 16)
    assert inputs.label == "Q8_K" and inputs.codes.group == 256 and inputs.codes.limit == 127
    assert not inputs.declared and not inputs.tensors and not inputs.spans_window
    assert GgmlInputs("F16").codes.type == "float16" and GgmlInputs("BF16").codes.type == "float"


def test_a_gelu_is_a_table_of_float16():
    """Every float16 number by the formula of ggml's table, `ggml_gelu_f32`: float32, an exact tanh."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    x = halves.astype(np.float32)
    root, cubic = np.float32(0.79788456080286535588), np.float32(0.044715)
    with np.errstate(over="ignore"):
        inner = root * x * (1 + cubic * x * x)
    tanh = np.array([math.tanh(value) for value in inner.tolist()], dtype=np.float32)
    exact = np.float32(0.5) * x * (1 + tanh)
    expected = np.where(x <= -10, 0, np.where(x >= 10, x, exact.astype(np.float16)))
    found = gelu(torch.from_numpy(x)).numpy()
    assert np.array_equal(found, expected)
    # Between two of them the input counts as the nearer one; outside the table nothing is rounded.
    assert gelu(torch.tensor([1.0001])) == gelu(torch.tensor([1.0]))
    assert gelu(torch.tensor([10.0001, -11])).tolist() == [torch.tensor(10.0001).item(), 0]

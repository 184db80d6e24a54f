"""LLM.int8's inputs against bitsandbytes' own quantizer, and by plain numpy."""

import numpy as np
import pytest
import torch
from support.families.llm_int8 import one_window
from support.golden_libraries import golden

from scoremode.schemes.activations.inputs import quantize_apart
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS

CASES = golden("llm_int8")
DTYPES = [torch.int8, torch.float32, torch.bfloat16]


def windows(count: int, tokens: int, width: int, seed: int = 0) -> torch.Tensor:
    """Of every third column at most one window has outliers; a token of zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, tokens, width, generator=generator)
    for window in range(count):
        x[window, tokens // 2, 3 * window] = -20
    x[0, -1] = 0
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_the_golden_file(name, dtype):
    case, threshold = CASES[name], CASES[name]["threshold"].item()
    found = quantize_apart(case["x"], threshold, dtype)
    assert found.codes.dtype == dtype
    assert torch.equal(found.codes.to(torch.int8), case["codes"])
    assert torch.equal(found.scale.view(-1), case["largest"] * (1 / 127))
    if threshold:
        (columns,) = found.apart
        assert torch.equal(columns, case["columns"]) and len(columns)
    else:
        assert found.apart == ()


@pytest.mark.parametrize("threshold", [0.0, 0.7, 2.3, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_each_window_by_numpy(dtype, threshold):
    x = (windows(3, 50, 40) * 3).to(dtype)
    weight, largest = torch.ones(1, 40, dtype=torch.int8), torch.ones(1)
    found = quantize_apart(x, threshold, torch.int8)
    expected = [one_window(part, weight, largest, None, threshold) for part in x]
    assert np.array_equal(found.codes.numpy(), np.concatenate([e.codes for e in expected]))
    tops = np.concatenate([e.largest for e in expected])
    assert np.array_equal(found.scale.numpy()[:, 0], tops * np.float32(1 / 127))
    if threshold:
        pairs = zip(found.apart, expected, strict=True)
        assert all(np.array_equal(ours.numpy(), e.columns) for ours, e in pairs)


@pytest.mark.parametrize("block", [1, 24 * 7, 24 * 65, 24 * 1000])
def test_blocks_of_tokens_and_of_windows_change_nothing(block, monkeypatch):
    x = windows(4, 30, 24)
    whole = quantize_apart(x, 6.0, torch.int8)
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", block)
    found = quantize_apart(x, 6.0, torch.int8)
    assert torch.equal(found.codes, whole.codes) and torch.equal(found.scale, whole.scale)
    assert all(map(torch.equal, found.apart, whole.apart))


def test_windows_do_not_meet():
    x = windows(4, 30, 24)
    found = quantize_apart(x, 6.0, torch.int8)
    assert [columns.tolist() for columns in found.apart] == [[0], [3], [6], [9]]
    for window in range(4):
        alone = quantize_apart(x[window : window + 1], 6.0, torch.int8)
        own = slice(30 * window, 30 * (window + 1))
        assert torch.equal(alone.codes, found.codes[own])
        assert torch.equal(alone.scale, found.scale[own])


def test_a_tokens_scale_is_of_all_columns_below_the_threshold():
    """A value below it counts though its column is apart, and an outlier does not."""
    x = torch.zeros(1, 2, 3)
    x[0] = torch.tensor([[8.0, 1.0, 2.0], [5.0, 1.0, -2.5]])
    found = quantize_apart(x, 6.0, torch.int8)
    assert found.codes.tolist() == [[0, 64, 127], [0, 25, -64]]
    assert (found.scale.view(-1) * 127).tolist() == pytest.approx([2.0, 5.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_no_number_is_no_code(dtype):
    """NaN and, without a threshold, what float16 can't hold make a token's scale no number of it."""
    x = torch.ones(1, 3, 4)
    x[0, 0, 1], x[0, 1, 2] = torch.nan, 70_000
    apart, plain = (quantize_apart(x, t, dtype) for t in (6.0, 0.0))
    assert apart.scale.isnan().view(-1).tolist() == [True, False, False]
    assert apart.apart[0].tolist() == [2]
    assert plain.scale.isfinite().view(-1).tolist() == [False, False, True]


def test_a_threshold_beyond_float16_takes_what_is_infinite_there():
    x = torch.ones(1, 2, 3)
    assert quantize_apart(x, 1e6, torch.int8).apart[0].tolist() == []
    x[0, 1, 2] = 1e5
    assert quantize_apart(x, 1e6, torch.int8).apart[0].tolist() == [2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_gpu_gives_the_same_bits(dtype):
    x = windows(4, 700, 256).to(dtype)
    ours, expected = quantize_apart(x.cuda(), 6.0, torch.int8), quantize_apart(x, 6.0, torch.int8)
    assert torch.equal(ours.codes.cpu(), expected.codes)
    assert torch.equal(ours.scale.cpu(), expected.scale)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(ours.apart, expected.apart, strict=True))

import pytest
import torch

from scoremode.schemes.decoding.codes import FLOAT_MAX, round_float
from scoremode.schemes.decoding.unpack import E2M1, E2M3, E4M3


@pytest.mark.parametrize(("bits", "values"), [(4, E2M1), (6, E2M3), (8, E4M3)])
def test_round_float_against_brute_force(bits, values):
    """The nearest of all values; of two as near, the one with an even code."""
    values = values[values.isfinite()].double()
    codes = torch.arange(len(values))
    positive = values[(values >= 0) & ~values.signbit()]
    even = (codes[(values >= 0) & ~values.signbit()] % 2 == 0).double()
    x = torch.cat(
        (
            positive,
            (positive[1:] + positive[:-1]) / 2,
            torch.randn(2000, generator=torch.Generator().manual_seed(0)).double().abs() * 3,
        )
    )
    x = torch.cat((x, x.nextafter(torch.tensor(0.0).double()), x * 2)).float()
    distance = (x.double().clamp(max=positive.max()).unsqueeze(1) - positive).abs()
    # Half a step of preference for even codes, far below any real difference of distances.
    nearest = positive[(distance - even * 1e-12).argmin(1)].float()
    assert torch.equal(round_float(x.clone(), bits), nearest)
    assert torch.equal(round_float(-x, bits), -nearest)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_round_float_keeps_zeros_and_what_is_no_number(bits):
    x = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-30, -1e-30])
    rounded = round_float(x, bits)
    assert rounded is x
    limit = FLOAT_MAX[bits]
    expected = torch.tensor([0.0, -0.0, float("nan"), limit, -limit, 0.0, -0.0])
    assert torch.equal(rounded.nan_to_num(-1), expected.nan_to_num(-1))
    assert torch.equal(rounded.signbit()[[0, 1, 5, 6]], torch.tensor([False, True, False, True]))

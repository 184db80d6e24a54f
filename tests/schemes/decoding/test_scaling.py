import pytest
import torch

from scoremode.schemes.decoding.codes import Scaling

ROWS, COLUMNS = 13, 45


@pytest.mark.parametrize("rows", [slice(0, 13), slice(0, 1), slice(5, 12), slice(12, 13)], ids=str)
@pytest.mark.parametrize(
    ("settings", "label", "stored", "place"),
    [
        (("tensor",), "tensor", (1, 1), lambda o, i: (0, 0)),
        (("channel",), "channel", (13, 1), lambda o, i: (o, 0)),
        (("group", 9), "g9", (13, 5), lambda o, i: (o, i // 9)),
        (("group", 32), "g32", (13, 2), lambda o, i: (o, i // 32)),
        (("group", 45), "g45", (13, 1), lambda o, i: (o, 0)),
        (("group", 64), "g64", (13, 1), lambda o, i: (o, 0)),
        (("block", None, (4, 8)), "block 4x8", (4, 6), lambda o, i: (o // 4, i // 8)),
        (("block", None, (13, 45)), "block 13x45", (1, 1), lambda o, i: (0, 0)),
        (("block", None, (128, 128)), "block 128x128", (1, 1), lambda o, i: (0, 0)),
        (("block", None, (1, 5)), "block 1x5", (13, 9), lambda o, i: (o, i // 5)),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_each_element_gets_its_own_value(settings, label, stored, place, rows):
    scaling = Scaling((ROWS, COLUMNS), *settings)
    assert (scaling.label, scaling.stored_shape) == (label, stored)
    values = torch.arange(float(stored[0] * stored[1])).view(stored)
    expected = [[values[place(o, i)] for i in range(COLUMNS)] for o in range(ROWS)]
    spread = torch.tensor(expected)[rows]
    arranged = scaling.arranged(values)
    q = torch.full((ROWS, COLUMNS), 3.0)[rows]
    scaling.subtract(q, arranged, rows)
    assert torch.equal(q, 3 - spread)
    for dtype in (torch.float32, torch.float64):
        out = torch.full((ROWS, COLUMNS), -1.0, dtype=dtype)
        scaling.multiply(torch.full_like(spread, 2.0), arranged, rows, out)
        assert torch.equal(out[rows], 2 * spread.to(dtype))
        assert (out == -1).sum() == out.numel() - spread.numel()


def test_columns_in_another_order():
    scaling = Scaling((ROWS, COLUMNS), "group", 9)
    values = torch.randn(13, 5, generator=torch.Generator().manual_seed(0))
    g_idx = torch.arange(COLUMNS).flip(0) // 9
    out = torch.ones(ROWS, COLUMNS)
    rows = slice(2, 9)
    scaling.multiply(torch.ones(7, COLUMNS), scaling.arranged(values), rows, out, g_idx)
    assert torch.equal(out[rows], values[rows][:, g_idx])
    q = torch.ones(7, COLUMNS)
    scaling.subtract(q, scaling.arranged(values), rows, g_idx)
    assert torch.equal(q, 1 - values[rows][:, g_idx])


@pytest.mark.parametrize(
    "dtypes", [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)]
)
def test_products_of_one_half_are_rounded_once_more_to_the_other(dtypes):
    scaling, generator = Scaling((ROWS, COLUMNS), "channel"), torch.Generator().manual_seed(0)
    q, values = (
        torch.randn(n, generator=generator).mul(9).to(dtypes[0]) for n in ((13, 45), (13, 1))
    )
    out = torch.empty(ROWS, COLUMNS, dtype=dtypes[1])
    expected = (q * values).to(dtypes[1])
    scaling.multiply(q, values, slice(0, 13), out)
    assert torch.equal(out, expected)

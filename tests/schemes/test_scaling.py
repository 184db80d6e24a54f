import pytest
import torch

from scoremode.schemes.scaling import Scaling

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
    q = torch.zeros(ROWS, COLUMNS)[rows]
    scaling.apply(q, scaling.arranged(values), rows, None, torch.Tensor.add_)
    expected = [[values[place(o, i)] for i in range(COLUMNS)] for o in range(ROWS)]
    assert torch.equal(q, torch.tensor(expected)[rows])


def test_columns_in_another_order():
    scaling = Scaling((ROWS, COLUMNS), "group", 9)
    values = torch.randn(13, 5, generator=torch.Generator().manual_seed(0))
    g_idx = torch.arange(COLUMNS).flip(0) // 9
    q = torch.ones(7, COLUMNS)
    scaling.apply(q, scaling.arranged(values), slice(2, 9), g_idx, torch.Tensor.mul_)
    assert torch.equal(q, values[2:9, g_idx])

"""Layouts, against the moves that llama.cpp's converter makes, written out row by row."""

import pytest
import torch

from scoremode.checkpoint.gguf.table import Layout


def test_halves_that_take_turns():
    # Two heads of four rows: a rotation pairs a head's rows 0 with 2 and 1 with 3, stored side by side.
    library = torch.arange(8)
    stored = library[torch.tensor([0, 2, 1, 3, 4, 6, 5, 7])]
    assert Layout(turns=2).apply(stored).tolist() == library.tolist()
    rows = torch.stack((stored, stored + 100), dim=1)
    assert Layout(turns=2).apply(rows)[:, 0].tolist() == library.tolist()
    assert Layout(turns=2).apply(rows)[:, 1].tolist() == (library + 100).tolist()


def test_queries_keys_and_values_one_after_the_other():
    # Two groups of two queries, a key and a value, heads of two rows each.
    library = [f"{kind}{group}{row}" for group in "01" for kind in "abkv" for row in "xy"]
    stored = [f"{kind}{group}{row}" for group in "01" for kind in "ab" for row in "xy"]
    stored += [f"{kind}{group}{row}" for kind in "kv" for group in "01" for row in "xy"]
    order = torch.tensor([library.index(row) for row in stored])
    found = Layout(groups=2, head_dim=2).apply(order.view(-1, 1).repeat(1, 3))
    assert found.tolist() == [[row] * 3 for row in range(16)]


def test_a_row_that_is_kept_without_its_axis_of_one():
    row = torch.arange(5.0)
    for stored in (row, row[None]):
        assert Layout(row=True).shape(tuple(stored.shape)) == (1, 5)
        assert torch.equal(Layout(row=True).apply(stored), row[None])


def test_shapes():
    assert Layout(turns=2).shape((8, 5)) == (8, 5)
    assert Layout(transposed=True).shape((8, 5)) == (5, 8)
    with pytest.raises(ValueError, match=r"\[6, 5\] has no pairs of halves for 2 heads"):
        Layout(turns=2).shape((6, 5))
    with pytest.raises(ValueError, match=r"\[12, 5\] is not 2 groups of heads of 4"):
        Layout(groups=2, head_dim=4).shape((12, 5))

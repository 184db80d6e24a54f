"""ggml's codebooks against the gguf package's, and its signs."""

import pytest
import torch
from gguf import quants

from scoremode.schemes.gguf_i_quants import grid, signs

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_points_are_in_order(name):
    kind = getattr(quants, name)
    kind.init_grid()
    expected = torch.from_numpy(kind.grid).view(kind.grid_shape)
    assert grid(name, CPU).view(torch.int8).view(kind.grid_shape).float().equal(expected)


def test_iq1s_points_are_eighths():
    quants.IQ1_S.init_grid()
    points = torch.from_numpy(quants.IQ1_S.grid).view(2048, 8)
    found = grid("IQ1_S", CPU).view(torch.int8).view(2, 2048, 8).float()
    assert (found[0] / 8).equal(points + float(quants.IQ1_S.delta))
    assert (found[1] / 8).equal(points - float(quants.IQ1_S.delta))


def test_signs_are_bytes_of_ones():
    found = signs(CPU).view(torch.int8).view(256, 8)
    assert found[0b1000_0101].tolist() == [-1, 0, -1, 0, 0, 0, 0, -1]
    assert found.eq(-1).sum() == found.ne(0).sum() == 4 * 256
    assert (-found.int() << torch.arange(8)).sum(1).equal(torch.arange(256))

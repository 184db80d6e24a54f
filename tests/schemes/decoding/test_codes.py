import pytest
import torch

from scoremode.schemes.decoding.codes import Quantized


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("group", [None, 2, 5, 9, 1 << 40])
def test_dense_is_each_code_times_the_scale_of_its_group(group, rows):
    """The last group may be short, and one row of scales may be all rows'."""
    codes = torch.arange(10).view(2, 5).to(torch.int8)
    groups = -(-5 // group) if group else 1
    scale = torch.arange(1, rows * groups + 1).view(rows, groups) / 8
    dense = Quantized(codes, scale).dense(group)
    assert dense.dtype == torch.float32
    for i in range(2):
        for j in range(5):
            assert dense[i, j] == codes[i, j] * scale[i % rows, j // group if group else 0]

"""MLX's small floats against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.golden_libraries import golden
from support.schemes import decode, same

from scoremode.schemes.mlx import Mode, floats

MODES = [Mode("mxfp4", 32, 4), Mode("mxfp8", 32, 8), Mode("nvfp4", 16, 4)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_equals_the_golden_file(mode):
    """All codes under all scales that are numbers."""
    case = golden("mlx")[mode.name]
    scheme = floats(tuple(case["dense"].shape), mode)
    assert scheme.label == f"MLX {mode.name.upper()}" and scheme.tensors == ("weight", "scales")
    for dtype in (torch.bfloat16, torch.float32):
        same(decode(scheme, case, dtype), case["dense"])

"""MLX's small floats against what the library dequantizes to, to the bit."""

import pytest
import torch
from support.golden_libraries import golden
from support.schemes import decode, same

from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.mlx import MlxFloats

SIZES = {"mxfp4": 32, "mxfp8": 32, "nvfp4": 16}


@pytest.mark.parametrize("mode", SIZES)
def test_equals_the_golden_file(mode):
    """All codes under all scales that are numbers."""
    case = golden("mlx")[mode]
    scheme = MlxFloats(Scaling(tuple(case["dense"].shape), "group", SIZES[mode]), mode)
    assert scheme.label == f"MLX {mode.upper()}" and scheme.tensors == ("weight", "scales")
    for dtype in (torch.bfloat16, torch.float32):
        same(decode(scheme, case, dtype), case["dense"])

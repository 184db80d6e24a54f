"""Whole models of HQQ against dense ones of the same weights."""

import pytest
import torch
from support.engine import make_engine
from support.families.hqq import make_pair
from support.models import edit_tensors

from scoremode.errors import UnsupportedFormat


def test_a_tensor_that_nothing_uses(tmp_path):
    packed, _ = make_pair(tmp_path, "llama", 4, 16, 1)
    name = "model.layers.0.mlp.up_proj.meta_scale"
    edit_tensors(packed, lambda t: t.update({name: torch.ones(1)}))
    with pytest.raises(UnsupportedFormat, match=r"up_proj: .* with meta_scale is not supported"):
        make_engine(packed)

"""Whole models of torchao against dense ones of the same weights."""

import numpy as np
import pytest
from support.engine import check_equal, make_engine, score
from support.families.torchao import make_pair
from support.models import random_plan


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("llama", "Int8"), ("qwen3_moe", "Float8")])
def test_equals_the_dense_one_to_the_bit(name, kind, dynamic, tmp_path):
    packed, dense = make_pair(tmp_path, name, kind, dynamic)
    theirs = check_equal(packed, dense, "float32", "bfloat16")
    engine = make_engine(packed, dtype="float32")
    declared = "weights+activations" if dynamic else "weights"
    assert engine.describe()["arithmetic"] == declared
    if dynamic:
        assert 0 < np.abs(score(engine, random_plan()).logprob - theirs.logprob).mean() < 3

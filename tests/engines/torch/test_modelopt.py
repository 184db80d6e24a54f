"""Whole models that ModelOpt would export, against dense ones of the same weights."""

import numpy as np
import pytest
from engine_helpers import make_engine, score
from modelopt_checkpoints import FORMATS, make_pair
from models import random_plan

MODELS = ["llama", "qwen3_moe", "deepseek_v3"]


@pytest.mark.parametrize("algorithm", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_dense_one_to_the_bit(name, algorithm, tmp_path):
    packed, dense = make_pair(tmp_path, name, algorithm)
    plan = random_plan()
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan)
    theirs = score(make_engine(dense, dtype="bfloat16"), plan)
    assert np.array_equal(ours.logprob, theirs.logprob)
    assert theirs.logprob.std() > 0.5


@pytest.mark.parametrize("algorithm", ["NVFP4", "FP8"])
def test_its_own_file_alone_says_the_same(algorithm, tmp_path):
    packed, dense = make_pair(tmp_path, "llama", algorithm, alone=True)
    plan = random_plan()
    ours = score(make_engine(packed, dtype="bfloat16", arithmetic="weights"), plan)
    assert np.array_equal(ours.logprob, score(make_engine(dense, dtype="bfloat16"), plan).logprob)

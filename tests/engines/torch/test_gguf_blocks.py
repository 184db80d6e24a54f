"""Whole models in ggml's blocks, embeddings, heads and experts included, against dense ones of the same
weights."""

import numpy as np
import pytest
from engine_helpers import make_engine, score
from gguf_packed import make_pair
from models import random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.gguf.block_types import BLOCK_TYPES
from scoremode.schemes.summary import summarize

OF_32 = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"]


@pytest.mark.parametrize(
    ("name", "kinds", "width"),
    [
        ("llama", list(BLOCK_TYPES), 256),
        ("llama-tied", ["Q6_K", "Q4_K"], 256),
        ("qwen2", OF_32, 32),
        ("qwen3_moe", [*OF_32, "NVFP4"], 64),
        ("mixtral", ["IQ3_S", "Q4_K", "IQ2_XXS"], 256),
    ],
)
def test_equals_the_dense_one_to_the_bit(name, kinds, width, tmp_path):
    packed, dense = make_pair(tmp_path, name, kinds, width)
    assert set(summarize(open_checkpoint(str(packed))).formats) >= set(kinds)
    plan = random_plan()
    for dtype in ("float32", "bfloat16"):
        ours = score(make_engine(packed, dtype=dtype), plan)
        theirs = score(make_engine(dense, dtype=dtype), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
        assert theirs.logprob.std() > 0.3

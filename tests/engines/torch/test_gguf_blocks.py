"""Whole models in ggml's blocks, embeddings, heads and experts included, against dense ones of the same
weights."""

import numpy as np
import pytest
from support.engine import check_equal, make_engine, score
from support.gguf.packed_models import make_pair
from support.models import random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.schemes.gguf import BLOCK_TYPES, Blocks
from scoremode.schemes.summary import summarize

OF_32 = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"]


@pytest.mark.parametrize(
    ("name", "kinds", "width"),
    [
        ("llama", list(BLOCK_TYPES), 256),
        ("llama-tied", ["Q6_K", "Q4_K"], 256),
        ("qwen2", OF_32, 32),
        ("qwen3_moe", [*OF_32, "NVFP4"], 64),
        ("qwen3_moe", ["NVFP4", "Q8_0"], 64),
        ("mixtral", ["IQ3_S", "Q4_K", "IQ2_XXS"], 256),
    ],
)
def test_equals_the_dense_one_to_the_bit(name, kinds, width, tmp_path):
    packed, dense = make_pair(tmp_path, name, kinds, width)
    assert set(summarize(open_checkpoint(str(packed))).formats) >= set(kinds)
    check_equal(packed, dense, "float32", "bfloat16")


def test_a_layers_experts_are_decoded_at_once_where_there_is_room(tmp_path, monkeypatch):
    packed, _ = make_pair(tmp_path, "qwen3_moe", ["Q8_0"], 64)
    decoded, decode = [], Blocks.decode

    def noted(self, *args):
        decoded.append(self.shape)
        decode(self, *args)

    monkeypatch.setattr(Blocks, "decode", noted)
    plan, schedule = random_plan(), Schedule(pass_windows=4, batch_windows=2)
    roomy = score(make_engine(packed, dtype="float32"), plan, schedule)
    # Three linears, each time a layer is decoded; (64, 64) are queries' as well.
    assert (6 * 64, 64) in decoded and decoded.count((6 * 64, 64)) % 3 == 0
    alone = decoded.count((64, 64))
    decoded.clear()
    engine = make_engine(packed, dtype="float32", max_memory=450 * 2**10)
    assert engine.describe()["experts"] == "2 at a time"
    assert np.array_equal(score(engine, plan, schedule).logprob, roomy.logprob)
    assert (6 * 64, 64) not in decoded and decoded.count((64, 64)) > 5 * alone

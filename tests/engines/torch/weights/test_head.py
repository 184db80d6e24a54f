"""A model's head, and the checkpoint's tensors that it is made of."""

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import (
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)

from scoremode.engines.torch.weights.head import head_names


def test_head_stored_beside_a_tied_config_is_used_as_the_library_does(tmp_path):
    folder = make_checkpoint(tmp_path, "llama-tied")

    def add_head(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()

    edit_tensors(folder, add_head)
    plan = random_plan()
    theirs = library_logprobs(library_model(folder, torch.float32), plan)
    assert np.abs(score(make_engine(folder), plan).logprob - theirs).max() < 1e-5


def test_float32_weights_computed_in_bfloat16_are_rounded_in_the_head_too(tmp_path):
    one = make_checkpoint(tmp_path / "one", "llama")
    other = make_checkpoint(tmp_path / "other", "llama", dtype=torch.bfloat16)
    plan = random_plan()
    a = score(make_engine(one, dtype="bfloat16"), plan)
    b = score(make_engine(other, dtype="bfloat16"), plan)
    assert np.array_equal(a.logprob, b.logprob)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("llama", ("lm_head.weight", None)),
        ("llama-tied", ("model.embed_tokens.weight", None)),
        ("phi", ("lm_head.weight", "lm_head.bias")),
    ],
)
def test_its_tensors_are_those_of_the_checkpoint(name, names, tmp_path):
    parts = make_engine(make_checkpoint(tmp_path, name)).parts
    assert head_names(parts.skeleton, parts.weights) == names
    weight = parts.checkpoint.read(names[0])
    assert torch.equal(parts.head.weight, weight) and parts.head.vocabulary == len(weight)


def test_fewer_entries_are_its_first_ones(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    assert make_engine(folder, 50).parts.head.vocabulary == 50
    assert make_engine(folder, 5000).parts.head.vocabulary == 101

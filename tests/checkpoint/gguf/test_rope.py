"""Rotary positions: keys, and factors that are tensors, against the library's own frequencies."""

import numpy as np
import pytest
import torch
from support.gguf.headers import facts
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from scoremode.checkpoint.gguf.facts import rope_parameters
from scoremode.errors import CheckpointError, UnsupportedModel

_LLAMA3 = [
    (8.0, 1.0, 4.0, 8192),
    (32.0, 1.0, 4.0, 8192),
    (4.0, 1.0, 4.0, 32),
    (16.0, 2.0, 8.0, 4096),
]


def of(metadata=None, values=None, head_dim=128, *, partial=False):
    return rope_parameters(facts(metadata, values), head_dim, partial=partial)


def library(parameters, head_dim=128):
    """The library's frequencies [head_dim / 2] for these parameters."""
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(parameters)
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))[0]


def test_what_files_say_that_scale_nothing():
    assert of() == {"rope_type": "default", "rope_theta": 10000.0}
    plain = {"rope_type": "default", "rope_theta": 5e5}
    assert of({"rope.freq_base": 5e5, "rope.dimension_count": 128}) == plain
    for scaling in ({"type": "none", "factor": 4.0}, {"factor": 0.0}, {"type": "linear"}):
        said = {f"rope.scaling.{key}": value for key, value in scaling.items()}
        assert of(said | {"rope.freq_base": 5e5}) == plain


def test_a_part_of_each_head():
    said = {"rope.dimension_count": 32}
    assert of(said, partial=True)["partial_rotary_factor"] == 0.25
    # Where the library would take a part by itself, that it is all is said, too.
    assert of(partial=True)["partial_rotary_factor"] == 1.0
    with pytest.raises(UnsupportedModel, match="rotates 32 of a head's 128 values"):
        of(said)


@pytest.mark.parametrize(("rotated", "head_dim"), [(30, 44), (60, 88), (2, 49), (32, 80)])
def test_the_part_is_the_librarys_again(rotated, head_dim):
    found = of({"rope.dimension_count": rotated}, head_dim=head_dim, partial=True)
    assert int(head_dim * found["partial_rotary_factor"]) == rotated


def test_linear_and_yarn():
    assert of({"rope.scaling.factor": 4.0})["factor"] == 4.0
    assert of({"rope.scale_linear": 2.0})["rope_type"] == "linear"
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    found = of(yarn | {"rope.scaling.original_context_length": 32})
    assert found == {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    # As llama.cpp has it, over 1 + 0.1 ln 4.
    scaled = of(yarn | {"rope.scaling.attn_factor": 0.5})
    assert scaled["attention_factor"] == pytest.approx(0.5 * 1.1386294)
    of(yarn | {"rope.scaling.yarn_attn_factor": 1.1386294})
    with pytest.raises(
        UnsupportedModel, match=r"yarn_attn_factor is 1, where yarn by 4 has 1\.13863"
    ):
        of(yarn | {"rope.scaling.yarn_attn_factor": 1.0})


@pytest.mark.parametrize(("factor", "low", "high", "original"), _LLAMA3)
@pytest.mark.parametrize(("head_dim", "theta"), [(128, 5e5), (64, 5e5), (16, 1e4)])
def test_llama_3s_factors_give_its_parameters(factor, low, high, original, head_dim, theta):
    given = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    plain = library({"rope_type": "linear", "rope_theta": theta, "factor": 1.0}, head_dim)
    wanted = library(given, head_dim)
    tensor = (plain / wanted).numpy()
    found = of({"rope.freq_base": theta}, {"rope_freqs.weight": tensor}, head_dim)
    torch.testing.assert_close(library(found, head_dim), wanted, rtol=3e-6, atol=0)
    if low == 1 and head_dim > 16:
        assert found == given, "the very parameters, and so the same bits"


def test_factors_that_are_not_llama_3s():
    tensor = np.linspace(1, 8, 64)
    with pytest.raises(UnsupportedModel, match=r"rope_freqs.weight holds factors up to 8"):
        of({}, {"rope_freqs.weight": tensor})
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight is not 64 factors"):
        of({}, {"rope_freqs.weight": tensor[:8]})
    assert of({}, {"rope_freqs.weight": np.ones(64)})["rope_type"] == "default"


def test_longrope():
    short, long = np.linspace(1, 2, 64, dtype=np.float32), np.linspace(1, 30, 64, dtype=np.float32)
    values = {"rope_factors_short.weight": short, "rope_factors_long.weight": long}
    said = {"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": 1.19}
    found = of(said, values)
    assert np.array_equal(np.float32(found["long_factor"]), long)
    assert np.array_equal(np.float32(found["short_factor"]), short)
    assert (found["rope_type"], found["attention_factor"]) == ("longrope", 1.19)
    assert found["original_max_position_embeddings"] == 4096
    with pytest.raises(CheckpointError, match=r"no tensor rope_factors_long\.weight"):
        of(said, {"rope_factors_short.weight": short})
    with pytest.raises(CheckpointError, match="not 64 positive factors"):
        of(said, values | {"rope_factors_long.weight": long[:5]})
    with pytest.raises(CheckpointError, match="original_context_length"):
        of({}, values)


def test_what_is_refused():
    for said, words in (
        ({"rope.scaling.type": "su"}, "rope.scaling.type is 'su'"),
        ({"rope.scaling.attn_factor": 2.0}, "attn_factor is 2, and no yarn"),
    ):
        with pytest.raises(UnsupportedModel, match=words):
            of(said)
    for said, words in (
        ({"rope.dimension_count": 130}, "rotates 130 of a head's 128"),
        ({"rope.dimension_count": 7}, "rotates 7 of"),
        ({"rope.freq_base": 0.0}, "base 0"),
        ({"rope.scaling.type": "longrope"}, "there is no tensor rope_factors_long"),
    ):
        with pytest.raises(CheckpointError, match=words):
            of(said)
    both = {"rope_freqs.weight": np.linspace(1, 8, 64)}
    with pytest.raises(UnsupportedModel, match="both rope_freqs"):
        of({"rope.scaling.factor": 2.0}, both)

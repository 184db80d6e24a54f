"""What a sampler is asked for."""

import itertools

import pytest

from scoremode.engines.sampling import Reply, Sampling, reply_of, seed_of
from scoremode.errors import UsageError


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("max_new_tokens", 0, "--max-new-tokens 0: must be at least 1"),
        ("temperature", -0.1, "--temperature -0.1: must be at least 0"),
        ("top_p", 0.0, "--top-p 0.0: must be above 0"),
        ("top_p", 1.1, "--top-p 1.1: must be above 0 and at most 1"),
        ("top_k", -1, "--top-k -1: must be at least 0"),
    ],
)
def test_bounds(field, value, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        Sampling(**{field: value})


def test_the_default_is_the_models_own_distribution():
    assert Sampling(7).to_json() == {
        "max_new_tokens": 7,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
    }
    assert Sampling(temperature=0).is_greedy and not Sampling().is_greedy


def test_each_reply_has_a_seed_of_its_own_which_stays():
    seeds = [seed_of(*each) for each in itertools.product(range(5), range(20), range(20))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # Files that were written must come out again: sha256 of "0 0 0", without its last bit of 64.
    assert seed_of(0, 0, 0) == int("4a31f3538925bbcb", 16) >> 1


def test_a_reply_goes_to_the_first_token_that_ends_a_turn():
    ends = frozenset({2, 9})
    assert reply_of([5, 9, 2, 0], ends) == Reply((5, 9), ended=True)
    assert reply_of([5, 6], ends) == Reply((5, 6), ended=False)
    assert reply_of([2], ends) == Reply((2,), ended=True)

"""Requests on their way to the workers. Needs no vLLM."""

from dataclasses import MISSING, fields

import numpy as np
import pytest

from scoremode.engines.vllm.prompts import COMPARED, FULL, KEY, Kind, ScoreRequest
from scoremode.head.full import FullScores
from scoremode.results.scores import Comparison


def test_a_request_arrives_as_it_was_sent():
    targets = np.array([5, 0, 2**23], np.int64)
    kind = Kind(700, entropy=False, compared=True, extra=("one", "other"), full=True, kept=True)
    sent = ScoreRequest(targets, 2, 30, 5, kind).to_extra()
    assert sent[KEY]["targets"] == b"\5\0\0\0\0\0\0\0\0\0\x80\0"
    # As MessagePack leaves them.
    sent[KEY]["extra"] = list(sent[KEY]["extra"])
    got = ScoreRequest.from_extra(sent)
    assert got.targets is not None and np.array_equal(got.targets, targets)
    assert (got.first, got.row, got.place, got.kind) == (2, 30, 5, kind)


@pytest.mark.parametrize("extra", [None, {}, {"other": 1}, ScoreRequest().to_extra()])
def test_a_request_without_wishes_scores_all_of_the_prompt(extra):
    got = ScoreRequest.from_extra(extra)
    assert (got.targets, got.first, got.row, got.place, got.kind) == (None, 0, 0, 0, Kind())


def test_chosen_tokens_arrive_as_they_were_sent():
    sent = ScoreRequest(None, chosen=np.array([2, 5], np.int64)).to_extra()
    got = ScoreRequest.from_extra(sent).chosen
    assert got is not None and got.tolist() == [2, 5] and got.dtype == np.dtype("<i4")


def test_a_plain_request_is_small():
    """It travels with every prompt."""
    assert ScoreRequest().to_extra() == {KEY: {}}


def test_a_request_can_not_name_files():
    """Whoever may ask a server could name any: paths reach the workers by another way."""
    for field in ("reference", "path", "keep"):
        with pytest.raises(TypeError, match=field):
            ScoreRequest.from_extra({KEY: {field: "/etc/passwd"}})


def test_the_columns_of_a_comparison_are_those_of_the_scores():
    """One that is missing here would be missing from a run through vLLM, and nowhere else."""
    assert tuple(f.name for f in fields(FullScores)) == FULL
    assert tuple(f.name for f in fields(Comparison) if f.default is MISSING) == COMPARED

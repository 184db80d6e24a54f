"""The sections that follow from Scores: their metrics, and what they refuse."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.chats.blocks import ends_by_hand
from support.comparisons import interval_by_hand, made, overlapping

from scoremode.errors import InvalidMeasurement
from scoremode.results.record.sections import sections

LENGTH = 40


@pytest.mark.parametrize("weighted", [False, True])
def test_bits_per_byte_are_a_ratio_of_sums(weighted):
    scores = made(**overlapping(900, LENGTH, 20))
    n = len(scores)
    token_bytes = np.random.default_rng(5).integers(0, 9, n).astype(np.uint16)
    extras, w = {"token_bytes": token_bytes}, np.ones(n)
    if weighted:
        w = extras["weight"] = np.random.default_rng(8).choice([0.0, 0.5, 2.0], n)
    found = sections(scores, LENGTH, extras, block_length=LENGTH)["metrics"]
    assert scores.against is not None
    per = token_bytes.astype(np.float64) * w
    for name, logprob in (
        ("bits_per_byte", scores.logprob),
        ("bits_per_byte_base", scores.against.base_logprob),
    ):
        bits = -logprob * w / math.log(2)
        wanted = math.fsum(bits) / math.fsum(per)
        assert found[name]["value"] == pytest.approx(wanted, rel=1e-12)
        low_high = interval_by_hand(bits, per, scores.index, LENGTH)
        assert found[name]["ci95"] == pytest.approx(low_high, rel=1e-9)
    plain = sections(replace(scores, against=None), LENGTH, extras, block_length=LENGTH)
    assert list(plain) == ["metrics"]
    assert set(plain["metrics"]) == {"ppl", "nll", "bits_per_byte"}
    assert plain["metrics"]["bits_per_byte"] == found["bits_per_byte"]


def test_targets_without_bytes_have_no_bits_per_byte():
    scores = made(np.arange(500))
    extras = {"token_bytes": np.zeros(500, np.uint16)}
    assert "bits_per_byte" not in sections(scores, LENGTH, extras, block_length=LENGTH)["metrics"]
    # A block without bytes keeps its bits; where one could be drawn alone there is no interval.
    extras["token_bytes"][:490] = 1
    whole = sections(scores, 50, extras, block_length=50)["metrics"]["bits_per_byte"]
    assert whole["ci95"] is not None
    extras["token_bytes"][:] = 0
    extras["token_bytes"][7] = 1
    one = sections(scores, 50, extras, block_length=50)["metrics"]["bits_per_byte"]
    assert one["value"] == pytest.approx(scores.nll.sum() / math.log(2))
    assert one["ci95"] is None and "no finite ratio" in one["note"]


def test_a_ratio_beyond_floats_is_refused():
    scores = made(np.arange(400))
    hopeless = replace(scores, logprob=scores.logprob - 800)
    with pytest.raises(InvalidMeasurement, match="ppl is inf"):
        sections(hopeless, LENGTH, {}, block_length=LENGTH)
    assert scores.against is not None
    worse = scores.logprob.copy()
    worse[3] -= 2000
    once = replace(scores, logprob=worse)
    with pytest.raises(InvalidMeasurement, match=r"ppl_ratio of .* is inf: the mean is too large"):
        sections(
            once, LENGTH, {"token_class": np.eye(1, 400, 3, dtype=np.uint8)[0]}, block_length=LENGTH
        )


def test_the_record_has_the_length_and_all_metrics_have_it():
    scores = made(np.arange(30_000), noise=0.3)
    found = sections(scores, 64, {})
    length = found["intervals"]["block_length"]
    assert set(found["intervals"]["autocorrelation"]) == {"nll", "ppl_ratio", "kld"}
    by_hand = sections(scores, 64, {}, block_length=length)
    assert "intervals" not in by_hand
    assert by_hand["metrics"] == found["metrics"] and by_hand["breakdown"] == found["breakdown"]
    assert length >= max(x or 0 for x in found["intervals"]["autocorrelation"].values())


def test_groups_have_blocks_of_their_own_dependence():
    """Two halves of the text that are far apart depend on nothing but which half it is."""
    scores = made(np.arange(40_000), noise=0.3)
    is_late = scores.index >= 20_000
    apart = replace(scores, logprob=scores.logprob - 3 * is_late)
    assert apart.against is not None
    apart = replace(apart, against=replace(apart.against, kld=apart.against.kld + 3 * is_late))
    label = np.where(is_late, "late", "early").astype(object)
    found = sections(apart, 64, {"label": label})
    whole, groups = found["intervals"], found["intervals"]["groups"]
    assert whole["rule"] == "eighth" and groups["block_length"] < whole["block_length"] / 2
    # As if there were no difference between them.
    same = sections(scores, 64, {"label": label})["intervals"]["groups"]
    assert groups["block_length"] == same["block_length"]
    assert groups["blocks"] == -(-40_000 // groups["block_length"])
    late = next(g for g in found["breakdown"]["label"] if g["group"] == "late")
    rows, length = np.flatnonzero(is_late), groups["block_length"]
    ends = interval_by_hand(apart.against.kld[rows], np.ones(len(rows)), rows, length)
    assert late["kld"]["ci95"] == pytest.approx(ends, rel=1e-7)


def test_labels_within_conversations_have_their_blocks():
    scores = made(np.arange(4_000), noise=0.3)
    conversation = (scores.index // 100).astype(np.int32)
    label = np.where(conversation % 2 == 0, "even", "odd").astype(object)
    found = sections(scores, 64, {"label": label, "conversation": conversation})
    assert found["intervals"] == {
        "blocks": 40, "block_length": 1, "rule": "conversation", "covers": 0.91
    }  # fmt: skip
    assert scores.against is not None
    even = next(g for g in found["breakdown"]["label"] if g["group"] == "even")
    rows = np.flatnonzero(label == "even")
    kld = scores.against.kld[rows]
    assert even["kld"]["ci95"] == pytest.approx(ends_by_hand(kld, conversation[rows]), rel=1e-7)

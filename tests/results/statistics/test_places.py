"""Blocks of texts and of conversations, decided in one place."""

import numpy as np
import pytest
from support.chat_blocks import NUMBERS, chat_scores, ends_by_hand
from support.comparisons import made, overlapping

from scoremode.results.record.sections import sections
from scoremode.results.statistics.block_length import block_length
from scoremode.results.statistics.places import CONVERSATIONS, Places
from scoremode.results.statistics.tail import percentile_intervals


def test_a_text_has_blocks_of_its_stream():
    scores = made(**overlapping(12_000, 64, 48), full=False)
    places = Places.of(scores, {})
    chosen = places.chosen({"nll": scores.nll}, 64)
    assert chosen == block_length(scores.index, {"nll": scores.nll}, 64)
    blocks = places.blocks(chosen.tokens)
    assert blocks.filled == len(np.unique(scores.index // chosen.tokens))
    assert places.shortest(64) == 64


def test_conversations_are_blocks_whatever_their_scores_say():
    scores, conversation = chat_scores(0.3)
    places = Places.of(scores, {"conversation": conversation})
    assert places.chosen({"nll": scores.nll}, 64) is CONVERSATIONS and places.shortest(64) == 1
    blocks = places.blocks(1)
    assert blocks.filled == len(NUMBERS)
    mean = blocks.mean(scores.nll)
    assert mean is not None
    sums = [scores.nll[conversation == n].sum() for n in NUMBERS]
    assert mean.sums == pytest.approx(sums, rel=1e-12)


def test_intervals_of_a_record_are_those_of_whole_conversations_drawn_again():
    scores, conversation = chat_scores(0.3)
    found = sections(scores, 64, {"conversation": conversation})
    assert found["intervals"] == {
        "blocks": len(NUMBERS), "block_length": 1, "rule": "conversation", "covers": 0.89
    }  # fmt: skip
    assert scores.against is not None
    by_hand = ends_by_hand(scores.against.kld, conversation)
    assert found["metrics"]["kld"]["ci95"] == pytest.approx(by_hand, rel=1e-9)
    ends = np.exp(ends_by_hand(scores.nll, conversation))
    assert found["metrics"]["ppl"]["ci95"] == pytest.approx(ends.tolist(), rel=1e-9)
    # Not those of places in the stream, which would cut conversations.
    other = sections(scores, 64, {})["metrics"]["kld"]["ci95"]
    assert other != pytest.approx(found["metrics"]["kld"]["ci95"], rel=1e-2)


def test_too_few_conversations_are_called_so():
    scores, conversation = chat_scores(0.3)
    few = np.minimum(conversation, 6)
    found = sections(scores, 64, {"conversation": few})["metrics"]["kld"]
    assert found["ci95"] is None
    assert found["note"] == (
        "6 blocks (whole conversations, pages or questions): an interval needs at least 8"
    )


def test_a_percentile_of_few_conversations_has_no_interval():
    scores, conversation = chat_scores(0.3)
    kld = np.where(conversation == 21, 9.0, 0.1)
    blocks = Places(scores.index, conversation).blocks(1)
    found = percentile_intervals(kld, {50.0: 0.1}, blocks)[50.0]
    assert found.note == "1 conversation with a target beyond it: too few to tell"

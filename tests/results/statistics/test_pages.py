"""Perplexities a word and a byte of whole pages."""

import math

import numpy as np
import pytest

from scoremode.errors import InvalidMeasurement
from scoremode.results.statistics.pages import pages_section

WORDS = np.array([3, 5, 2, 9, 4, 4, 7, 6], np.int64)
BYTES = WORDS * 5 + 1
LOGPROB = -np.array([12.0, 17.5, 11.0, 30.0, 21.0, 8.0, 33.0, 25.5])


def test_they_are_the_harness_formulas():
    found = pages_section(WORDS, BYTES, LOGPROB, LOGPROB / 2)
    nats, metrics = 158.0, found["metrics"]
    assert (found["pages"], found["words"], found["bytes"]) == (8, 40, 208)
    assert metrics["word_perplexity"]["value"] == pytest.approx(math.exp(nats / 40), rel=1e-12)
    assert metrics["byte_perplexity"]["value"] == pytest.approx(math.exp(nats / 208), rel=1e-12)
    bits = metrics["bits_per_byte"]
    assert bits["value"] == pytest.approx(nats / 208 / math.log(2), rel=1e-12)
    assert bits["ci95"][0] < bits["value"] < bits["ci95"][1] and bits["n"] == 208
    low, high = metrics["word_perplexity"]["ci95"]
    assert low < metrics["word_perplexity"]["value"] < high
    half = metrics["word_perplexity_base"]["value"]
    assert half == pytest.approx(math.exp(nats / 80), rel=1e-12)


def test_few_pages_have_no_interval():
    found = pages_section(WORDS[:1], BYTES[:1], LOGPROB[:1])["metrics"]["word_perplexity"]
    assert found["ci95"] is None and found["note"] == "1 page: an interval needs at least 8"


def test_a_perplexity_that_is_no_number_is_refused():
    with pytest.raises(InvalidMeasurement, match="nats a word"):
        pages_section(WORDS, BYTES, LOGPROB * 1000)

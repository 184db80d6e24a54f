"""Numbers as people read them."""

import pytest

from scoremode.report.page import wording


@pytest.mark.parametrize(
    ("words", "value", "shown"),
    [
        (wording.kld_words, 0.0, "0"),
        (wording.kld_words, 0.023243, "0.0232"),
        (wording.kld_words, 0.00002431, "2.43e-05"),
        (wording.ratio_words, 1.01724, "+1.72 %"),
        (wording.ratio_words, 0.9996, "−0.04 %"),
        (wording.ratio_words, 12.345, "×12.35"),
        (wording.ppl_words, 6.12345, "6.123"),
        (wording.ppl_words, 1901355.4786, "1,901,355.5"),
        (wording.percent, 0.98451, "98.45 %"),
        (wording.rate_words, 0.00123456, "12.3"),
        (wording.bits_words, 4.5, "4.500"),
        (wording.size_words, 4_661_211_808, "4.34 GiB"),
        (wording.size_words, 1_067_352, "1.02 MiB"),
    ],
)
def test_numbers_are_rounded_for_a_reader(words, value, shown):
    assert words(value) == shown
    assert words(None) == "–"


def test_an_interval_has_its_values_rule_and_no_second_unit():
    metric = {"value": 0.98, "lower": 0.97, "upper": 0.991, "n": 9, "note": None}
    assert wording.interval_words(metric, wording.percent) == "[97.00, 99.10]"
    assert wording.interval_words(metric | {"lower": None, "upper": None}, wording.percent) == ""


def test_sizes_have_one_unit():
    assert wording.size_unit([2**20, 2**25])[1] == "MiB"
    assert wording.size_unit([2**20, 2**31])[1] == "GiB"

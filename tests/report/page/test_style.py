"""Colours have contrast on both papers, and those of series differ for all kinds of colour vision."""

import itertools
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.report.page import style as wording
from scoremode.report.page.style import (
    COLOURS,
    SHAPES,
    TINTS,
    page_config,
    plot_config,
    script_json,
    visible,
)

# Machado, Oliveira, Fernandes (2009), severity 1: linear RGB as people without one cone see it.
VISION = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}  # fmt: skip


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Oklab, in which distances are about what is seen."""
    lms = np.cbrt(np.clip(rgb, 0, 1) @ np.array(
        [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
         [0.0883024619, 0.2817188376, 0.6299787005]]).T)  # fmt: skip
    return lms @ np.array(
        [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
         [0.0259040371, 0.7827717662, -0.8086757660]]).T  # fmt: skip


def contrast(one: str, other: str) -> float:
    weights = [0.2126, 0.7152, 0.0722]
    light, dark = sorted((float(linear(c) @ weights) + 0.05 for c in (one, other)), reverse=True)
    return light / dark


@pytest.mark.parametrize("theme", [0, 1])
def test_contrast_is_what_wcag_asks_for(theme):
    paper = COLOURS["paper"][theme]
    assert contrast(COLOURS["ink"][theme], paper) > 12
    for name in ("soft", "link"):
        assert contrast(COLOURS[name][theme], paper) > 4.5
    for name in TINTS[:-1]:
        assert contrast(COLOURS[name][theme], paper) > 2.9, name
    for name in ("better", "worse", "h0", "h1", "h2", "h3"):
        assert contrast(COLOURS["ink"][theme], COLOURS[name][theme]) > 4.5, name


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("vision", VISION)
def test_the_first_six_hues_are_told_apart(theme, vision):
    seen = {n: lab(np.array(VISION[vision]) @ linear(COLOURS[n][theme])) for n in TINTS[:6]}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 0.035, (one, other)


def test_each_tint_has_a_shape_of_its_own():
    assert len(SHAPES) == len(TINTS) and len(set(SHAPES[:-1])) == len(TINTS) - 1


def test_a_page_has_variables_and_a_plot_has_colours():
    assert page_config()["range"]["category"][0] == "var(--c0)"
    assert plot_config()["range"]["category"][0] == COLOURS["c0"][0]


@pytest.mark.parametrize(
    ("words", "value", "shown"),
    [
        (wording.kld_words, 0.0, "0"),
        (wording.kld_words, 0.023243, "0.0232"),
        (wording.kld_words, 0.00002431, "2.43e-05"),
        (wording.ratio_words, 1.01724, "×1.0172"),
        (wording.ratio_words, 0.9996, "×0.9996"),
        (wording.ratio_words, 12.345, "×12.35"),
        (wording.ppl_words, 6.12345, "6.123"),
        (wording.ppl_words, 1901355.4786, "1,901,355.5"),
        (wording.percent, 0.98451, "98.45 %"),
        (wording.rate_words, 0.00123456, "12.3"),
        (wording.rate_words, 0.000004, "0.04"),
        (wording.rate_words, 0.0, "0"),
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
    assert wording.interval_words(metric, wording.ratio_words) == "[0.9700, 0.9910]"
    assert wording.interval_words(metric | {"lower": None, "upper": None}, wording.percent) == ""


def test_sizes_have_one_unit():
    assert wording.size_unit([2**20, 2**25])[1] == "MiB"
    assert wording.size_unit([2**20, 2**31])[1] == "GiB"


# Any code point, lone surrogates included.
ANY = st.text(alphabet=st.characters(exclude_categories=()), max_size=40)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\u202eevil", "\\u202eevil"),
        ("a\u2028b\x00\ud800", "a\\u2028b\\x00\\ud800"),
        ("\u200b\ufeff\u2066", "\\u200b\\ufeff\\u2066"),
        ("tab\tnew\n", "tab\\tnew\\n"),
        ("שלום né 漢", "שלום né 漢"),
    ],
)
def test_what_has_no_sign_of_its_own_is_written_out(raw, shown):
    assert visible({"a": [raw, 1, None, {"b": (raw,)}]}) == {"a": [shown, 1, None, {"b": [shown]}]}


@given(
    st.recursive(ANY | st.integers() | st.none(), lambda v: st.lists(v) | st.dictionaries(ANY, v))
)
def test_json_in_a_script_element_cannot_end_it_and_comes_back(value):
    made = script_json(value)
    assert made.isascii() and not re.search("[<>&]", made)
    assert json.loads(made) == json.loads(json.dumps(value))


def test_a_number_that_json_lacks_is_refused():
    with pytest.raises(ValueError):
        script_json([float("nan")])

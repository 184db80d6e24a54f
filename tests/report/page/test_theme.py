"""Colours have contrast on both papers, and those of series differ for all kinds of colour vision."""

import itertools

import numpy as np
import pytest

from scoremode.report.page.theme import COLOURS, SHAPES, TINTS, page_config, plot_config

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

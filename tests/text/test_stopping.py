"""The rule of --stop-when: written in one way, looked at after fixed numbers of windows."""

import hashlib

import numpy as np
import pytest

from scoremode.errors import ProtocolError
from scoremode.text.stopping import FIRST_LOOK, drawn_order, looks_of, stop_rule


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("ppl ±0.5 %", "ppl±0.5%"),
        ("PPL +-0.50%", "ppl±0.5%"),
        ("kld +/- 2%", "kld±2%"),
        ("kld±.001", "kld±0.001"),
        ("ppl ±5e-2", "ppl±0.05"),
        ("ppl±10%", "ppl±10%"),
    ],
)
def test_a_rule_is_written_in_one_way(typed, written):
    assert str(stop_rule(typed)) == written == str(stop_rule(written))


@pytest.mark.parametrize(
    "typed", ["", "ppl", "ppl 0.5", "top1 ±1%", "ppl ±0", "ppl ±100%", "kld ±-1", "kld ±1000", "ppl ±x",
              "ppl ±1% or so", "ppl ±nan", "kld ±1e999"]
)  # fmt: skip
def test_what_is_no_rule_is_refused_and_shown(typed):
    with pytest.raises(ProtocolError, match=r"^'"):
        stop_rule(typed)


def test_an_interval_is_narrow_enough_at_both_ends():
    relative, absolute = stop_rule("ppl ±1 %"), stop_rule("kld ±0.002")
    assert relative.allows(50.0, 49.5, 50.5) and not relative.allows(50.0, 49.6, 50.51)
    assert not relative.allows(50.0, 49.4, 50.1)
    assert absolute.allows(0.5, 0.499, 0.501) and not absolute.allows(0.5, 0.497, 0.5)
    # A KLD of 0 is known only exactly.
    assert stop_rule("kld ±1%").allows(0.0, 0.0, 0.0)
    assert not stop_rule("kld ±1%").allows(0.0, -1e-9, 1e-9)


def test_looks_come_after_fixed_numbers_of_windows():
    assert looks_of(200) == [32, 40, 56, 72, 96, 120, 152, 192, 200]
    for windows in (1, 31, FIRST_LOOK, 33, 1000, 77_777):
        looks = np.array(looks_of(windows))
        assert looks[-1] == windows and (np.diff(looks) > 0).all()
        assert (looks[:-1] % 8 == 0).all() and (looks[:-1] >= FIRST_LOOK).all()
        # Those of a longer text begin alike, so that a run that a look ended has the same passes.
        assert all(looks_of(n)[: i + 1] == looks_of(windows)[: i + 1] for i, n in enumerate(looks))
    # Few, however long the text.
    assert len(looks_of(1_000_000)) < 60


def test_the_order_is_of_the_seed_alone():
    order = drawn_order(500, 7)
    assert sorted(order) == list(range(500)) and order != drawn_order(500, 8)
    again = sorted(range(500), key=lambda w: hashlib.sha256(b"7:%d" % w).hexdigest())
    assert order == again
    # A text that is longer is drawn in an order that agrees with it.
    assert [w for w in drawn_order(600, 7) if w < 500] == order


def test_windows_drawn_first_stand_for_all():
    """Their mean place over many seeds is the middle, as far as chance allows."""
    means = [np.mean(drawn_order(400, seed)[:32]) for seed in range(200)]
    spread = 400 / 12**0.5 / 32**0.5 * (1 - 32 / 400) ** 0.5
    assert abs(np.mean(means) - 199.5) < 4 * spread / 200**0.5
    assert 0.8 * spread < np.std(means) < 1.2 * spread

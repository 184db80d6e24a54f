"""Rows of `_logits_` files, against the tool's own and against its rules one entry at a time."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llama_cpp.files import decode, kld_llama_cpp

from scoremode.llama_cpp.rows import codes_of, decode_each, encode, floors, row_words, spans, sums

GOLDEN = Path(__file__).parents[1] / "golden" / "llama_cpp"
FIRST_ROW = 20 + 4 * 8 * 64
F = np.float32


def random_logits(rows: int, entries: int, seed: int, spread: float = 4.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(0, spread, (rows, entries)) + rng.normal(0, 10, (rows, 1))).astype(F)


def encoded_by_hand(z: np.ndarray, nats: int) -> bytes:
    """One row, by float32 scalars and a rounding written otherwise."""
    high = max(z)
    low = max(min(z), F(high - F(nats)))
    log_sum = F(math.log(math.fsum(F(math.exp(F(x - high))) for x in z)))
    scale = F(F(high - low) / F(65535))
    codes = []
    for x in z:
        step = F(F(F(1) / scale) * F(x - low)) if scale > 0 and x > low else F(0)
        below = math.floor(step)
        rest = float(step) - below
        codes.append(below + (rest > 0.5 or (rest == 0.5 and below % 2)))
    codes += [0] * (len(z) % 2)
    return struct.pack(f"<ff{len(codes)}H", scale, F(F(low - high) - log_sum), *codes)


@pytest.fixture(scope="module")
def logits() -> np.ndarray:
    with np.load(GOLDEN / "rows.npz") as rows:
        return rows["logits"]


def test_the_tools_logits_become_the_tools_bytes(logits):
    ours = encode(logits).tobytes()
    assert (GOLDEN / "base.kld").read_bytes()[FIRST_ROW:].startswith(ours)


def test_what_it_decodes_to_is_within_half_a_step_of_the_tools_logits(logits):
    rows = encode(logits)
    exact = logits.astype(np.float64)
    exact -= exact.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    scale, low = spans(rows)
    cut = np.maximum(exact, exact.max(1, keepdims=True) - 16)
    assert np.abs(decode(rows, 0, 1024) - cut).max() < 0.51 * scale.max()
    assert (decode(rows, 0, 1024).min(1) == low).all()


@given(
    st.integers(1, 30), st.sampled_from([16, 24]), st.floats(0.01, 12), st.integers(0, 2**32 - 1)
)
def test_encoding_by_hand(entries, nats, spread, seed):
    z = random_logits(3, entries, seed, spread)
    ours = encode(z, nats)
    assert ours.shape == (3, row_words(entries)) and ours.dtype == np.dtype("<u2")
    assert ours.tobytes() == b"".join(encoded_by_hand(row, nats) for row in z)


def test_halves_go_to_the_even_code():
    """A row 65535 · 2⁻¹³ wide has steps of exactly 2⁻¹³, so a half can be hit."""
    halves = np.arange(0.5, 40, 1)
    steps = np.concatenate([[0, 65535], halves, halves + 30000])
    z = (steps * 2**-13).astype(F)[None]
    codes = encode(z)[0, 4:]
    assert spans(encode(z))[0] == 2**-13
    assert codes.tolist() == [round(x) for x in steps]  # Python's round takes the even one, too


@pytest.mark.parametrize("nats", [16, 24])
def test_what_lies_deeper_is_cut_to_the_border(nats):
    z = np.array([[0, -nats + 0.25, -nats, -nats - 0.25, -100, -np.inf]], F)
    rows = encode(z, nats)
    assert rows[0, 4:].tolist() == [65535, round(65535 * 0.25 / nats), 0, 0, 0, 0]
    assert decode(rows, 0, 6)[0, 0] == pytest.approx(0, abs=1e-5)
    assert (decode(rows, 2, 6) == spans(rows)[1]).all()


@pytest.mark.parametrize("entries", [1, 2, 5])
def test_a_row_of_equal_entries_has_no_steps(entries):
    rows = encode(np.full((2, entries), 3.5, F))
    assert not rows[:, 4:].any()
    assert decode(rows, 0, entries) == pytest.approx(-math.log(entries))


def test_many_rows_are_encoded_as_one_is(monkeypatch):
    z = random_logits(50, 33, 4)
    whole = encode(z)
    monkeypatch.setattr("scoremode.llama_cpp.rows._BLOCK", 100)
    assert np.array_equal(encode(z), whole)
    assert np.array_equal(np.concatenate([encode(row[None]) for row in z]), whole)


@given(st.integers(2, 40), st.sampled_from([16, 24]), st.integers(0, 2**32 - 1))
def test_encoded_decoded_and_encoded_again(entries, nats, seed):
    """The same codes; the scale to its last places, and the rest to the sum of probabilities."""
    z = random_logits(4, entries, seed)
    z[:, 0] = z[:, 1] + 1  # steps that float32 log-probabilities can tell apart
    first = encode(z, nats)
    again = encode(decode(first, 0, entries), nats)
    assert np.array_equal(again[:, 4:], first[:, 4:])
    (scale, low), (scale_again, low_again) = spans(first), spans(again)
    assert scale_again == pytest.approx(scale, rel=2e-5)
    mass = np.log(np.exp(decode(first, 0, entries).astype(np.float64)).sum(1))
    assert low_again == pytest.approx(low - mass, abs=1e-5)


def test_tiles_and_single_entries():
    rng = np.random.default_rng(5)
    rows = encode(random_logits(20, 31, 6))
    whole = decode(rows, 0, 31)
    by_hand = [
        [F(F(scale * F(q)) + low) for q in row[4:35]]
        for row, scale, low in zip(rows, *spans(rows), strict=True)
    ]
    assert np.array_equal(whole, np.array(by_hand))
    assert np.array_equal(decode(rows[3:9], 10, 31), whole[3:9, 10:])
    numbers, entries = rng.integers(20, size=99), rng.integers(31, size=99)
    assert np.array_equal(decode_each(rows, numbers, entries), whole[numbers, entries])


def kld_by_hand(lp: np.ndarray, z: np.ndarray) -> float:
    log_sum = math.log(math.fsum(math.exp(float(x)) for x in z))
    return math.fsum(
        math.exp(b) * (float(b) - float(x) + log_sum) for b, x in zip(lp, z, strict=True) if b > -16
    )


@given(st.integers(1, 30), st.sampled_from([16, 24]), st.integers(0, 2**32 - 1))
def test_the_tools_kld(entries, nats, seed):
    base = decode(encode(random_logits(3, entries, seed, 12), nats), 0, entries)
    z = random_logits(3, entries, seed + 1)
    expected = [kld_by_hand(*pair) for pair in zip(base, z, strict=True)]
    assert kld_llama_cpp(base, z) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_the_border_itself_is_left_out():
    lp = np.array([[-16, np.nextafter(F(-16), F(0)), -0.5, -20]], F)
    z = np.array([[-100, -200, 0, -300]], F)
    p = np.exp(lp[0].astype(np.float64))
    assert kld_llama_cpp(lp, z)[0] == pytest.approx(p[1] * (200 - 16) + p[2] * -0.5, rel=1e-6)


def test_a_probability_of_zero_where_the_base_has_one_is_infinitely_far():
    lp, z = np.log(np.array([[0.5, 0.5]], F)), np.array([[0, -np.inf]], F)
    assert kld_llama_cpp(lp, z)[0] == np.inf
    deep = np.array([[-1e-7, -17]], F)
    assert kld_llama_cpp(deep, z)[0] == pytest.approx(0, abs=1e-6)


def test_the_tools_kld_of_the_base_against_its_own_file(logits):
    """The tool's float32 terms and our float64 ones differ by its rounding of the logits alone."""
    base = decode(encode(logits), 0, 1024)
    with np.load(GOLDEN / "rows.npz") as rows:
        printed = rows["base-self.kld"][: len(logits)]
    assert kld_llama_cpp(base, logits) == pytest.approx(printed, abs=2e-6)


@pytest.mark.parametrize("nats", [16, 24])
@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("entries", [1, 2, 5, 1024, 50_001])
def test_every_encoded_distribution_adds_up_within_its_bounds(entries, offset, nats):
    for spread in (0, 1e-3, 1, 3, 8, 40):
        z = random_logits(20, entries, entries, spread) + F(offset)
        found = sums(encode(z, nats), entries)
        assert found.has_ends.all()
        assert ((found.least <= found.total) & (found.total <= found.most)).all()


def test_the_bounds_are_as_close_as_half_a_step():
    """One entry at the top and all others rounded up, or down, by nearly half of a step."""
    step = 10 / 65535
    for sign, within in ((1, "most"), (-1, "least")):
        steps = 60_000 - sign * 0.499
        z = np.array([[0.0, -10.0, *[(steps - 65535) * step] * 900]], F)
        rows = encode(z)
        assert set(rows[0, 6:].tolist()) == {60_000}
        found = sums(rows, 902)
        off, allowed = found.total[0] - 1, getattr(found, within)[0] - 1
        assert 0.8 < off / allowed < 1
        # One more step on all of them is too many.
        rows[:, 6:] += np.uint16(65536 + sign & 0xFFFF)
        found = sums(rows, 902)
        assert not found.least[0] <= found.total[0] <= found.most[0]


def test_what_is_damaged_unseen_moves_no_probability_by_more_than_the_bounds(logits):
    rows = encode(logits)
    kept = sums(rows, 1024)
    random = np.random.default_rng(0)
    number, entry, bit = (random.integers(n, size=4000) for n in (len(rows), 1024, 16))
    other = rows[number]
    other[np.arange(4000), 4 + entry] ^= np.uint16(1) << bit.astype(np.uint16)
    found = sums(other, 1024)
    is_seen = ~(found.has_ends & (found.least <= found.total) & (found.total <= found.most))
    before, after = (
        np.exp(decode(r, 0, 1024)[np.arange(4000), entry].astype(np.float64))
        for r in (rows[number], other)
    )
    moved = np.abs(after - before)
    room = (kept.most - kept.least)[number]
    assert (moved[~is_seen] <= room[~is_seen] * 1.001).all()
    # Each that moves one by more is seen, and of all flips, most of which move less, one in six.
    assert is_seen[moved > room * 1.001].all() and 0.1 < is_seen.mean() < 0.3


def restored(rows: np.ndarray, entries: int) -> np.ndarray:
    """float64 [R, V]: the log-probabilities of rows whose raised entries are lowered."""
    codes = codes_of(rows, 0, entries)
    found = decode(rows, 0, entries).astype(np.float64)
    return np.where(codes == 0, floors(rows, entries)[:, None].astype(np.float64), found)


@pytest.mark.parametrize("nats", [16, 24])
def test_raised_entries_share_what_the_others_leave(nats):
    """Of 50,000 entries most lie deeper than the border: raised to it they would add up to percents."""
    entries = 50_000
    z = random_logits(6, entries, 7, spread=3)
    z[:, 0] = z.max(1) + np.array([0, 2, 6, 8, 12, 30], F)
    rows = encode(z, nats)
    exact = z.astype(np.float64) - z.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    is_raised = codes_of(rows, 0, entries) == 0
    found = restored(rows, entries)
    assert (found[~is_raised] == decode(rows, 0, entries)[~is_raised]).all()
    tails = [(np.exp(each) * is_raised).sum(1) for each in (exact, found, decode(rows, 0, entries))]
    scale, _ = spans(rows)
    # Known within what the others' steps leave, and no further from it than the border was.
    steps = (1 - np.exp(exact.max(1))) * scale / 2 + 1e-6
    assert (np.abs(tails[1] - tails[0]) <= 2 * steps + np.minimum(tails[2], 1e-5)).all()
    assert tails[2].max() > (5e-3 if nats == 16 else 0) and is_raised.sum(1).max() > 10_000
    assert np.abs(np.exp(found).sum(1) - 1).max() < 1e-4
    raised = decode(rows, 0, entries)
    raised = raised - np.log(np.exp(raised.astype(np.float64)).sum(1, keepdims=True))
    lost, before = ((np.exp(exact) * (exact - each)).sum(1) for each in (found, raised))
    # What is left is that the tail has a shape.
    assert np.abs(lost).max() < 1e-3 and np.abs(lost).max() < max(np.abs(before).max() / 10, 1e-4)


@pytest.mark.parametrize("entries", [1, 2, 7])
def test_a_row_that_ends_before_the_border_stays_as_it_is(entries):
    for spread in (0, 1e-3, 0.5):
        rows = encode(random_logits(9, entries, entries, spread))
        assert (floors(rows, entries) == spans(rows)[1]).all()

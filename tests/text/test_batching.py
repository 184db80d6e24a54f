"""Windows of many lengths in micro-batches and passes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scoremode.text.batching import FEW, SHARE, batches_of, padded, parts_of, passes_of

LENGTHS = st.lists(st.integers(2, 3000), min_size=1, max_size=80).map(np.array)


@given(LENGTHS, st.integers(2, 9000), st.integers(1, 30), st.booleans())
def test_micro_batches_are_neighbours_with_little_to_fill(lengths, tokens, most, pads):
    windows = range(len(lengths))
    batches = batches_of(lengths, windows, tokens=tokens, most=most, pads=pads)
    assert [w for batch in batches for w in batch] == list(windows)
    for batch in batches:
        own = lengths[batch.start : batch.stop]
        whole = len(own) * int(own.max())
        assert whole == padded(lengths, batch) and len(batch) <= most
        if len(batch) > 1:
            filled = whole - own.sum()
            assert whole <= tokens and filled <= (max(own.sum() // SHARE, FEW) if pads else 0)
    # Begun at any of them, they are the same: a pass may end before it.
    for batch in batches:
        rest = range(batch.start, len(lengths))
        again = batches_of(lengths, rest, tokens=tokens, most=most, pads=pads)
        assert again == batches[batches.index(batch) :]


@given(LENGTHS, st.integers(2, 9000), st.integers(1, 4))
def test_passes_are_whole_micro_batches_however_long_they_are(lengths, tokens, times):
    batches = batches_of(lengths, range(len(lengths)), tokens=3000, most=8, pads=True)
    sizes = [padded(lengths, batch) for batch in batches]
    passes = passes_of(batches, sizes, tokens=tokens * times, most=100)
    assert [w for each in passes for w in each] == list(range(len(lengths)))
    edges = {batch.start for batch in batches}
    for each in passes:
        assert each.start in edges
        held = sum(padded(lengths, b) for b in batches if each.start <= b.start < each.stop)
        assert held <= tokens * times or each in batches


@given(st.integers(0, 50), st.integers(1, 40), st.integers(1, 9))
def test_parts_are_about_alike_and_all_of_it(start, n, many):
    parts = parts_of(range(start, start + n), many)
    assert [w for part in parts for w in part] == list(range(start, start + n))
    sizes = {len(part) for part in parts}
    assert len(parts) == min(many, n) and max(sizes) - min(sizes) <= 1

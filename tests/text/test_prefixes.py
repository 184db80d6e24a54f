"""Windows that share their beginnings against a trie: each distinct beginning once in a row, and every
token before what follows on it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.text.batching import batches_in_rows, lay, rows_of, tokens_in_rows
from scoremode.text.plan import shared_inputs

# A small alphabet: duplicates, windows that others begin with, and single tokens come by themselves.
WINDOWS = st.lists(
    st.lists(st.integers(5, 7), min_size=1, max_size=9), min_size=1, max_size=25
).map(lambda windows: [np.array(w, np.int32) for w in windows])
SORTED = WINDOWS.map(lambda windows: sorted(windows, key=lambda w: w.tolist()))


def seen(forest, row: int, i: int) -> list[int]:
    """The places that the one at `i` sees, by the relation alone."""
    return [j for j in range(forest.ids.shape[1]) if j <= i < forest.end[row, j]]


@given(WINDOWS, st.integers(1, 40))
def test_every_place_sees_the_inputs_before_it_and_no_others(windows, row):
    """In any order of the windows, for every place of every row."""
    forest = lay(windows, row)
    known = {tuple(w[:n].tolist()) for w in windows for n in range(1, len(w) + 1)}
    real = np.zeros(forest.ids.shape, bool)
    for w, ids in enumerate(windows):
        places, r = forest.places(w), forest.row[w]
        assert forest.ids[r, places].tolist() == ids.tolist()
        assert forest.depth[r, places].tolist() == list(range(len(ids)))
        assert places[-1] == forest.last[w]
        for n, place in enumerate(places):
            assert seen(forest, r, place) == places[: n + 1].tolist()
        real[r, places] = True
    for r, i in np.ndindex(*forest.ids.shape):
        path = seen(forest, r, i)
        if real[r, i]:
            assert tuple(forest.ids[r, path].tolist()) in known
        else:
            assert path == [i] and forest.depth[r, i] == 0
            assert forest.ids[r, i] == forest.ids[r, i - 1]
            assert not real[r, i:].any()


@given(SORTED, st.integers(1, 40))
def test_of_sorted_windows_no_beginning_is_in_a_row_twice(windows, row):
    forest = lay(windows, row)
    inputs = np.array(list(map(len, windows)))
    rows = rows_of(inputs, shared_inputs(windows), range(len(windows)), row)
    assert forest.row.tolist() == [r for r, each in enumerate(rows) for _ in each]
    sizes = []
    for each in rows:
        trie = {tuple(windows[w][:n].tolist()) for w in each for n in range(1, inputs[w] + 1)}
        assert len(trie) <= max(row, inputs[each.start])
        sizes.append(len(trie))
    for r, size in enumerate(sizes):
        paths = {tuple(forest.ids[r, seen(forest, r, i)].tolist()) for i in range(size)}
        assert len(paths) == size
    assert forest.ids.shape == (len(rows), max(sizes))
    counted = tokens_in_rows(inputs, shared_inputs(windows), range(len(windows)), row)
    assert counted == forest.ids.size


@given(SORTED, st.integers(1, 30), st.integers(1, 4), st.integers(1, 20), st.data())
def test_micro_batches_hold_no_more_than_they_may(windows, row, times, most, data):
    inputs, shared = np.array(list(map(len, windows))), shared_inputs(windows)
    targets = np.array([data.draw(st.integers(1, n)) for n in inputs])
    every, tokens = range(len(windows)), row * times

    def cut(some: range) -> list[range]:
        return batches_in_rows(inputs, shared, targets, some, row=row, tokens=tokens, most=most)

    batches = cut(every)
    assert [w for batch in batches for w in batch] == list(every)
    for batch in batches:
        laid = lay(windows[batch.start : batch.stop], row)
        assert laid.ids.size == tokens_in_rows(inputs, shared, batch, row)
        if len(batch) > 1:
            assert len(batch) <= most and laid.ids.size <= tokens
            assert targets[batch.start : batch.stop].sum() <= tokens
    # Begun at any of them, they are the same: a pass may end before it.
    for i, batch in enumerate(batches):
        assert cut(range(batch.start, len(windows))) == batches[i:]


def test_neighbours_share_what_they_begin_with():
    windows = [np.array(w, np.int32) for w in ([1], [1, 2], [1, 2], [1, 2, 3], [1, 3], [2])]
    assert shared_inputs(windows).tolist() == [0, 1, 2, 2, 1, 0]
    assert shared_inputs([]).tolist() == []


def test_a_tree_that_is_cut_over_rows_repeats_what_it_has_in_common():
    windows = [np.array([1, 2, 3, i], np.int32) for i in (4, 5, 6, 7)]
    forest = lay(windows, 5)
    assert forest.ids.tolist() == [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]]
    assert forest.depth.tolist() == [[0, 1, 2, 3, 3]] * 2
    assert forest.end.tolist() == [[5, 5, 5, 4, 5]] * 2


@pytest.mark.parametrize("row", [1, 100])
def test_windows_of_the_same_inputs_cost_one(row):
    windows = [np.arange(50, dtype=np.int32)] * 400
    forest = lay(windows, row)
    assert forest.ids.shape == (1, 50)
    assert forest.places(399).tolist() == list(range(50))


def test_a_huge_share():
    common = np.arange(3000, dtype=np.int32)
    windows = [np.append(common, i).astype(np.int32) for i in range(1000)]
    forest = lay(windows, 4000)
    assert forest.ids.shape == (1, 4000)
    assert forest.places(700).tolist() == [*range(3000), 3700]

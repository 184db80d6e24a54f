"""Windows of conversations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import CorpusError
from scoremode.text.conversations.tokens import Cut, Tokens, cut, places


def text(turns: str, begin: int = 0) -> Tokens:
    """A text whose tokens are numbers from `begin` on: targets of a first turn at an x, of a second at
    a y."""
    ids = np.arange(begin, begin + len(turns), dtype=np.int32)
    return Tokens(ids, np.array([".xy".index(c) - 1 for c in turns], np.int32))


def scored(found: Cut) -> list[tuple[int, ...]]:
    """The ids that each window scores."""
    windows = zip(found.start, found.stop, found.first, strict=True)
    return [tuple(found.tokens[a + f : b][found.counts[a + f : b]].tolist()) for a, b, f in windows]


def test_a_text_that_fits_is_one_window():
    found = cut([[text(".xx.x")], [text("..x", 10)]], 5, "split")
    assert found.start.tolist() == [0, 5] and found.stop.tolist() == [5, 8]
    assert found.conversation.tolist() == [0, 1] and (found.long, found.lost) == (0, 0)
    assert scored(found) == [(1, 2, 4), (12,)]


def test_texts_of_one_conversation_are_windows_of_it():
    found = cut([[text(".x"), text("...x", 10)]], 8, "truncate")
    assert found.conversation.tolist() == [0, 0] and scored(found) == [(1,), (13,)]


def test_a_long_text_is_truncated():
    found = cut([[text(".x.x.xxx")]], 6, "truncate")
    assert scored(found) == [(1, 3, 5)] and (found.long, found.lost) == (1, 0)
    assert found.stop.tolist() == [6] and len(found.tokens) == 8


def test_a_long_text_is_skipped():
    found = cut([[text(".x.x.xxx")], [text(".x", 10)]], 6, "skip")
    assert scored(found) == [(11,)] and (found.long, found.lost) == (1, 1)
    assert found.conversation.tolist() == [1]


def test_a_long_text_is_split_with_half_a_context_before_what_is_new():
    found = cut([[text("." + "x" * 10)]], 4, "split")
    assert found.start.tolist() == [0, 2, 4, 6, 7] and found.stop.tolist() == [4, 6, 8, 10, 11]
    assert scored(found) == [(1, 2, 3), (4, 5), (6, 7), (8, 9), (10,)]


def test_a_window_without_a_target_is_not_one():
    found = cut([[text("........x")]], 4, "split")
    assert scored(found) == [(8,)] and found.stop.tolist() == [9] and found.start.tolist() == [5]


def test_nothing_left_is_refused():
    with pytest.raises(CorpusError, match="no target is left of 1 conversations in windows of 4"):
        cut([[text("......x")]], 4, "truncate")


@given(
    st.lists(st.lists(st.text(".x", min_size=2, max_size=30), min_size=1, max_size=3), min_size=1),
    st.integers(2, 12),
    st.sampled_from(["truncate", "split", "skip"]),
)
def test_every_target_is_scored_at_most_once_and_split_scores_all(chats, length, rule):
    begin, conversations, wanted, begins = 0, [], [], set()
    for texts in chats:
        made = []
        for counts in texts:
            counts = "." + counts[1:]
            made.append(text(counts, begin))
            begins.add(begin)
            fits = len(counts) if rule == "split" else length
            if not (rule == "skip" and len(counts) > length):
                wanted += [begin + i for i, c in enumerate(counts[:fits]) if c == "x"]
            begin += len(counts)
        conversations.append(made)
    if not wanted:
        with pytest.raises(CorpusError):
            cut(conversations, length, rule)
        return
    found = cut(conversations, length, rule)
    assert [i for window in scored(found) for i in window] == wanted
    assert (found.stop - found.start <= length).all() and (found.first >= 1).all()
    # A target has all of its text before it, or at least half a context.
    for start, first in zip(found.start, found.first, strict=True):
        assert found.tokens[start] in begins or first >= length // 2


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=12))
def test_places_count_the_targets_of_the_same_turn_before(runs):
    """Whatever stands between them: a mark may end and another begin, a turn follow on another."""
    turn, number = list[int](), 0
    for gap, length in runs:
        # What has no gap before it is another turn, what has one the same.
        number += gap == 0
        turn += [-1] * gap + [number] * length
    wanted = [0 if t < 0 else turn[:i].count(t) for i, t in enumerate(turn)]
    assert places(np.array(turn, np.int32)).tolist() == wanted


def test_places_begin_anew_in_each_turn_and_not_in_each_window():
    found = cut([[text(".xx"), text("yyyy")], [text(".xxxxyxx".replace("yxx", "yyy"))]], 4, "split")
    assert found.place.tolist() == [0, 0, 1, 0, 1, 2, 3, 0, 0, 1, 2, 3, 0, 1, 2]
    assert len(found.start) > 3
    # No two conversations share a turn.
    assert found.turn.tolist() == [-1, 0, 0, 1, 1, 1, 1, -1, 2, 2, 2, 2, 3, 3, 3]
    assert found.targets == 13 and np.bincount(found.scored).tolist() == [2, 3, 4, 3]


def test_targets_beyond_the_windows_are_none_that_are_scored():
    found = cut([[text(".xxyyy")], [text(".xxxxxxx")], [text(".x")]], 4, "truncate")
    assert found.targets == 13 and np.bincount(found.scored).tolist() == [2, 1, 3, 1]
    assert len(cut([[text(".xxyyy")], [text(".x")]], 4, "skip").scored) == 1

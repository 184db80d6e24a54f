"""Windows of conversations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import CorpusError
from scoremode.text.conversations.tokens import Tokens
from scoremode.text.conversations.windows import Cut, cut, places


def text(counts: str, begin: int = 0) -> Tokens:
    """A text whose tokens are numbers from `begin` on, those at an x count."""
    ids = np.arange(begin, begin + len(counts), dtype=np.int32)
    return Tokens(ids, np.array([c == "x" for c in counts]))


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


@given(st.lists(st.booleans(), max_size=30))
def test_places_count_the_targets_of_the_same_turn_before(counts):
    wanted = []
    for i, counted in enumerate(counts):
        before = 0
        while counted and i - before > 0 and counts[i - before - 1]:
            before += 1
        wanted.append(before)
    assert places(np.array(counts, bool)).tolist() == wanted


def test_places_begin_anew_in_each_text_and_not_in_each_window():
    found = cut([[text(".xx"), text("xxxx")], [text(".xxxxxxx")]], 4, "split")
    assert found.place.tolist() == [0, 0, 1, 0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6]
    assert len(found.start) > 3

"""N-grams of a scored text that another text has, against Python's own sets of tuples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoremode.errors import UsageError
from scoremode.text import calibration
from scoremode.text.calibration import Ngrams
from scoremode.text.plan import make_plan
from scoremode.text.protocol import Protocol


def plan_of(ids, length=16, stride=None, window_bos=None, scored="all"):
    how = {"scored": scored, "min_contexts": 0, "short_text": "one-window", "tail": "keep"}
    protocol = Protocol("test", context_length=length, stride=stride or length, **how)
    return make_plan(np.array(ids, np.int32), protocol.resolve(None), window_bos=window_bos)


def by_sets(plan, documents, n):
    """The same by definition, one n-gram after the other."""
    has = {tuple(d[i : i + n]) for d in documents for i in range(len(d) - n + 1)}
    found = []
    for w in range(len(plan)):
        window = plan[w]
        ids = [int(window.inputs[0]), *map(int, window.targets)]
        if plan.window_bos is not None:
            ids[0] = -5
        hit = {t for i in range(len(ids) - n + 1) if tuple(ids[i : i + n]) in has
               for t in range(i, i + n)}  # fmt: skip
        found += [int(t) in hit for t in window.scored]
    return found


def overlapping(plan, documents, n):
    ngrams = Ngrams(plan.tokens, n)
    ngrams.find(np.array(d, np.int32) for d in documents)
    return ngrams.overlapping(plan).tolist()


ids = st.lists(st.integers(0, 2), max_size=40)


@settings(max_examples=300)
@given(
    text=st.lists(st.integers(0, 2), min_size=2, max_size=60),
    documents=st.lists(ids, max_size=4),
    n=st.integers(1, 14),
    shape=st.sampled_from([(16, 16), (7, 7), (8, 3), (60, 60)]),
    bos=st.sampled_from([None, 1]),
    chunk=st.sampled_from([1, 3, 1000]),
)
def test_targets_are_those_that_sets_find(text, documents, n, shape, bos, chunk):
    plan = plan_of(text, *shape, window_bos=bos, scored="new" if shape[1] < shape[0] else "all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_CHUNK", chunk)
        assert overlapping(plan, documents, n) == by_sets(plan, documents, n)


def test_ends_of_an_ngram():
    text = list(range(100, 140))
    plan = plan_of(text, 40)
    found = overlapping(plan, [[1, *text[10:23], 2]], 13)
    # Targets are positions 1 to 39: those of the 13 tokens from position 10 on, and no other.
    assert [i + 1 for i, hit in enumerate(found) if hit] == list(range(10, 23))
    # One token less is no n-gram, and two documents don't make one.
    assert not any(overlapping(plan, [text[10:22]], 13))
    assert not any(overlapping(plan, [text[10:16], text[16:23]], 13))


def test_no_ngram_crosses_a_window():
    text = list(range(40))
    assert not any(overlapping(plan_of(text, 10), [text], 13))
    assert all(overlapping(plan_of(text, 10), [text], 10))


def test_ids_that_the_text_lacks_and_texts_shorter_than_an_ngram():
    plan = plan_of([5, 6, 7], 16)
    assert overlapping(plan, [[5, 6, 7]], 13) == [False, False]
    assert overlapping(plan, [[5, 6, 7]], 3) == [True, True]
    assert overlapping(plan, [[-1, 2**31 - 1, 5]], 1) == [False, False]
    assert overlapping(plan, [[6, 2**31 - 1]], 1) == [True, False]
    assert overlapping(plan, [], 3) == [False, False]


def test_ngrams_of_no_tokens_are_refused():
    with pytest.raises(UsageError, match="n-grams of 0 tokens"):
        Ngrams(np.array([1, 2, 3], np.int32), 0)

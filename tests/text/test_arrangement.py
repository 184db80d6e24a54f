"""The order in which conversations are scored."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scoremode.text.plan import GROUP_TOKENS, arrangement, drawn_arrangement
from scoremode.text.stopping import drawn_order, looks_of

LENGTHS = st.lists(st.integers(2, 20_000), min_size=1, max_size=200).map(np.array)


@given(LENGTHS)
def test_every_window_comes_once_and_alike_lengths_together(lengths):
    order = arrangement(lengths)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    # By length the groups are what sorted windows were cut into, none too large to be padded.
    ordered = lengths[order]
    cuts = np.flatnonzero(np.diff(ordered, prepend=ordered[0]) < 0)
    for group in np.split(ordered, cuts):
        assert (np.diff(group) >= 0).all()
    assert arrangement(lengths).tolist() == order.tolist()


def test_groups_fill_a_micro_batch_and_are_mixed():
    lengths = np.random.default_rng(0).integers(60, 2000, 1000)
    ordered, begin, padded = lengths[arrangement(lengths)], 0, 0
    for end in range(1, len(ordered) + 1):
        if end == len(ordered) or ordered[end] < ordered[end - 1] or (
            (end + 1 - begin) * ordered[end] > GROUP_TOKENS
        ):  # fmt: skip
            padded += (end - begin) * ordered[end - 1]
            begin = end
    assert padded / lengths.sum() < 1.05
    halves = ordered[:500].mean(), ordered[500:].mean()
    assert 0.7 < halves[0] / halves[1] < 1.4


def test_drawn_conversations_stay_together_and_every_look_has_those_that_were_drawn():
    rng = np.random.default_rng(1)
    conversation = np.repeat(rng.permutation(150)[:100], rng.integers(1, 4, 100))
    lengths = rng.integers(10, 500, len(conversation))
    order = drawn_arrangement(conversation, lengths, np.arange(len(lengths)), 3)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    chats = conversation[order]
    _, begin = np.unique(chats, return_index=True)
    names = chats[np.sort(begin)]
    runs = 1 + int((np.diff(chats) != 0).sum())
    assert runs == len(names) == 100
    drawn = np.unique(conversation)[drawn_order(100, 3)]
    for look in looks_of(100):
        assert set(names[:look]) == set(drawn[:look])
    longest = [lengths[conversation == n].max() for n in names[:32]]
    assert longest == sorted(longest)

"""Masks of trees: what each place sees, by the functions that the library makes its masks of."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    causal_mask_function,
    sliding_window_causal_mask_function,
)

from scoremode.engines.torch.model.prefix_tree import ATTENTIONS, ForestIds, masks_of
from scoremode.text.batching import lay

# Two trees, one of them with a window that others begin with, in a row of 11 places and one of 5.
WINDOWS = [[1, 2], [1, 2, 3, 4], [1, 2, 3, 5, 6], [7, 8, 9, 10, 11], [7, 8, 9, 10, 12]]


@pytest.fixture
def forest():
    return lay([np.array(w, np.int32) for w in WINDOWS], 11)


def ids_of(forest) -> ForestIds:
    return ForestIds(
        *(torch.from_numpy(c.astype(np.int64)) for c in (forest.ids, forest.depth, forest.end))
    )


def made(ids: ForestIds, attention: str, function=causal_mask_function, **more):
    rows, length = ids.shape
    return ALL_MASK_ATTENTION_FUNCTIONS[attention](
        **{"batch_size": rows, "q_length": length, "kv_length": length, "q_offset": 0, "kv_offset": 0,
           "mask_function": function, "dtype": torch.float32, "device": torch.device("cpu"),
           "attention_mask": None, "allow_is_causal_skip": True} | more
    )  # fmt: skip


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("window", [None, 1, 2, 3, 99])
def test_a_place_sees_its_own_window_by_depth(forest, attention, window):
    """Of a sliding window the last few of its own tokens, however far away they lie in the row."""
    ids = ids_of(forest)
    function = causal_mask_function
    if window is not None:
        function = sliding_window_causal_mask_function(window)
    with masks_of(ids):
        mask = made(ids, attention, function)
    assert mask.shape == (*ids.shape[:1], 1, ids.shape[1], ids.shape[1])
    seen = mask if attention == "sdpa" else mask == 0
    if attention == "eager":
        assert set(mask.unique().tolist()) == {0.0, torch.finfo(torch.float32).min}
    for w, ids_ in enumerate(WINDOWS):
        places, row = forest.places(w), forest.row[w]
        for n, place in enumerate(places):
            first = 0 if window is None else max(0, n + 1 - window)
            wanted = places[first : n + 1].tolist()
            assert seen[row, 0, place].nonzero()[:, 0].tolist() == wanted, (ids_, n)
    # A mask that lets nothing be seen gives no numbers.
    assert seen.any(-1).all()


def test_masks_of_other_rows_are_refused(forest):
    ids = ids_of(forest)
    with masks_of(ids):
        for other in ({"batch_size": 1}, {"kv_length": 3}, {"q_offset": 2}):
            with pytest.raises(ValueError, match=r"a mask of .* is asked for, of rows"):
                made(ids, "sdpa", **other)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_other_masks_are_the_librarys(forest, attention):
    ids = ids_of(forest)
    before = made(ids, attention, allow_is_causal_skip=False)
    with masks_of(ids), ThreadPoolExecutor(1) as other:
        meanwhile = other.submit(made, ids, attention, allow_is_causal_skip=False).result()
        own = made(ids, attention)
    after = made(ids, attention, allow_is_causal_skip=False)
    assert torch.equal(before, after) and torch.equal(before, meanwhile)
    assert before.shape != own.shape or not torch.equal(before, own)
    causal = before if attention == "sdpa" else before == 0
    assert torch.equal(
        causal[0, 0], torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    )

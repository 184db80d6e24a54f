"""What tables share, and which layers have a window."""

import numpy as np
import pytest
from support.gguf.headers import facts

from scoremode.checkpoint.gguf.open import ARCHITECTURES
from scoremode.checkpoint.gguf.table import layer_types, window
from scoremode.errors import CheckpointError


def test_no_two_tensors_are_one_of_the_librarys():
    for name, table in ARCHITECTURES.items():
        if callable(table.names):
            continue
        assert len(set(table.names.values())) == len(table.names), name
        assert {key.removesuffix(".weight") for key in table.layouts} <= set(table.names), name


def windows(metadata, period):
    types = layer_types(facts({"block_count": 6, **metadata}), period)
    return "".join({"sliding_attention": "s", "full_attention": "f"}[one] for one in types)


def test_which_layers_have_a_window():
    key = "attention.sliding_window_pattern"
    assert windows({}, 2) == "sfsfsf"
    assert windows({}, 4) == "sssfss"
    assert windows({key: 3}, 4) == "ssfssf"
    # As llama.cpp reads them: of 0 each has one, of 1 none.
    assert windows({key: 0}, 4) == "ssssss"
    assert windows({key: 1}, 4) == "ffffff"
    assert windows({key: np.array([1, 0, 0, 1, 1, 0], bool)}, 4) == "sffssf"


def test_how_long_windows_are():
    def of(size, default=None):
        return window(facts({"attention.sliding_window": size}), default)

    assert of(16) == of(16, 0) == of(16, 4096) == 16
    assert of(None, 4096) == 4096
    # None, where a model need not have one.
    assert of(0, 0) == of(None, 0) == 0
    for size, default in ((0, None), (0, 4096), (-1, 0)):
        with pytest.raises(CheckpointError, match=f"attention.sliding_window is {size}"):
            of(size, default)
    with pytest.raises(CheckpointError, match=r"has no llama\.attention\.sliding_window"):
        of(None)

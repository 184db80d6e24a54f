"""Ranks as processes: which one this is."""

import pytest

from scoremode.engines.torch.ranks.launch import Place, place_of
from scoremode.errors import UsageError


def test_a_process_alone_has_no_place_and_torchrun_gives_one():
    launched = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    assert place_of({}) is None
    assert place_of({"RANK": "1", "WORLD_SIZE": "2"}) is None
    assert place_of(launched) == Place(1, 2)
    assert place_of(launched | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0"}) is None
    with pytest.raises(UsageError, match="4 ranks, 2 of them on this machine"):
        place_of(launched | {"WORLD_SIZE": "4"})

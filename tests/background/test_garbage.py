"""Python's garbage collector is off for a while, and then as it was."""

import gc

import pytest

from scoremode.background.garbage import not_collecting


@pytest.mark.parametrize("before", [True, False])
def test_it_is_off_within_and_then_as_it_was(before):
    was = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with pytest.raises(ValueError, match="within"), not_collecting():
            assert not gc.isenabled()
            raise ValueError("within")
        assert gc.isenabled() == before
        assert not_collecting()(gc.isenabled)() is False
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()

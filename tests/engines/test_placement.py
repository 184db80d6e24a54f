"""Places as a user asks for them."""

import pytest
from engine_helpers import make_engine

from scoremode.errors import UsageError


@pytest.mark.parametrize("place", ["device", "host", "disk"])
def test_a_place_for_a_gpu_is_refused_on_a_cpu(place, demo):
    with pytest.raises(UsageError, match=f"--placement {place}: is for a GPU"):
        make_engine(demo / "model", place=place)


def test_a_cpu_reads_the_mapped_files(demo):
    assert make_engine(demo / "model").describe()["placement"] == "memory-mapped files"

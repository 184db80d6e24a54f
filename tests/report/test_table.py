"""Lines of a run's table."""

import pytest

from scoremode.report.table import _device


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"device": {"name": "a CPU", "threads": 2}}, "a CPU, 2 threads"),
        (
            {"device": {"name": "a CPU", "threads": 1}, "devices": [{}, {}]},
            "2 × a CPU, 1 thread each",
        ),
        ({"device": {"name": "a GPU", "threads": None}, "placement": "device"}, "a GPU"),
        ({"device": {"name": "a GPU", "threads": None}}, "a GPU"),
        (
            {
                "device": {"name": "a GPU", "threads": None},
                "devices": [{}, {}],
                "placement": "pinned host memory",
            },
            "2 × a GPU, weights in pinned host memory",
        ),
    ],
)
def test_what_it_ran_on(engine, words):
    assert _device(engine) == words

"""Fixtures of the commands' tests."""

import pytest


@pytest.fixture
def base(demo, tmp_path) -> list[str]:
    """A quick run's arguments."""
    text = "--text", "The same value is computed once and the result is used again. " * 20
    model = "ppl", str(demo / "model"), "--device", "cpu", "-o", str(tmp_path / "runs")
    return [*model, *text]


@pytest.fixture(scope="module")
def plan(demo) -> list[str]:
    return ["plan", str(demo / "model"), "-f", str(demo / "heldout.txt"), "-c", "64"]

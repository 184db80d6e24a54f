"""What vLLM raises becomes one line. Needs no vLLM."""

import pytest

from scoremode.engines.vllm import start
from scoremode.engines.vllm.start import Started, require_plugin, vllm_errors
from scoremode.errors import EngineError


class FromVllm(Exception):
    """As vLLM's own, which are of no common class."""


FromVllm.__module__ = "vllm.v1.engine.exceptions"


@pytest.fixture(autouse=True)
def version(monkeypatch):
    monkeypatch.setattr(start, "vllm_version", lambda: "0.33.0")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("1 error\n\n  max_num_seqs\n  too small\n  see https"),
         "1 error max_num_seqs too small"),
        (FromVllm("engine died"), "engine died"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("No memory for the KV cache blocks"),
         "No memory for the KV cache blocks; --gpu-memory-utilization 0.9 gives vLLM more"),
        (OSError("x" * 500), "x" * 400),
    ],
)  # fmt: skip
def test_an_error_of_vllms_is_one_line(error, line):
    with pytest.raises(EngineError) as found, vllm_errors("does not start"):
        raise error
    assert (
        str(found.value) == f"vLLM 0.33.0 does not start: {line}" and found.value.__cause__ is error
    )


def test_a_reason_that_is_known_by_then_is_told_instead():
    known = ["the worker of rank 1 has died", None]
    for line in ("the worker of rank 1 has died", "cancelled"):
        with (
            pytest.raises(EngineError) as found,
            vllm_errors("does not score", lambda: known.pop(0)),
        ):
            raise RuntimeError("cancelled")
        assert str(found.value) == f"vLLM 0.33.0 does not score: {line}"


@pytest.mark.parametrize("error", [EngineError("ours"), KeyboardInterrupt(), ZeroDivisionError()])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as found, vllm_errors("does not start"):
        raise error
    assert found.value is error


class Idle(Started):
    """A vLLM without a vLLM."""

    def __init__(self):
        class Closing:
            alive = True

        self._close = Closing
        self._cluster = None


def test_after_an_interruption_nothing_is_asked_and_after_an_error_something_is():
    idle = Idle()
    with pytest.raises(EngineError, match="does not score: full"), idle.working():
        raise RuntimeError("full")
    with pytest.raises(KeyboardInterrupt), idle.working():
        raise KeyboardInterrupt
    with pytest.raises(EngineError, match="was interrupted at work"), idle.working():
        raise AssertionError("inside")
    idle._close.alive = False
    with pytest.raises(EngineError, match="is closed"), idle.working():
        raise AssertionError("inside")


def test_without_vllm_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setattr(start, "find_spec", lambda _: None)
    with pytest.raises(
        EngineError, match=r"^vLLM is not installed: pip install 'scoremode\[vllm\]'"
    ):
        require_plugin()
    monkeypatch.setattr(start, "find_spec", lambda _: True)
    monkeypatch.setattr(start.metadata, "entry_points", lambda **_: ())
    with pytest.raises(EngineError, match="has to be installed, not only on the path"):
        require_plugin()

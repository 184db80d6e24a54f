"""Which of a kernel and its twin runs, and what is said of it."""

import pytest
import torch

from scoremode import launching

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch):
    monkeypatch.setattr(launching, "_ran", {})


def boom() -> None:
    raise AssertionError("must not be launched")


def test_a_cpu_has_the_twin_and_says_nothing():
    assert not launching.attempt("decode", torch.device("cpu"), boom)
    assert launching.ran() == {}


def test_without_triton_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(launching, "is_missing", lambda: "No module named 'triton'")
    assert not launching.attempt("decode", CUDA, boom)
    assert launching.ran() == {"decode": "plain torch (No module named 'triton')"}


def test_a_kernel_that_does_not_compile_is_tried_once():
    errors = pytest.importorskip("triton.errors", reason="needs Triton")
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise errors.TritonError("no such\ninstruction")

    assert not launching.attempt("decode", CUDA, refuse)
    assert not launching.attempt("decode", CUDA, refuse)
    assert len(calls) == 1
    assert launching.ran() == {"decode": "plain torch (TritonError: no such instruction)"}


def test_what_ran_is_told_by_name():
    pytest.importorskip("triton", reason="needs Triton")
    assert launching.attempt("b", CUDA, lambda: None)
    assert launching.attempt("a", CUDA, lambda: None)
    assert list(launching.ran().items()) == [("a", "triton"), ("b", "triton")]


def test_other_errors_are_not_hidden():
    pytest.importorskip("triton", reason="needs Triton")
    with pytest.raises(AssertionError, match="must not"):
        launching.attempt("decode", CUDA, boom)

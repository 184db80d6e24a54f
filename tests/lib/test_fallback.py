"""Which of a kernel and its twin runs, and what is said of it."""

import re
import subprocess

import pytest
import torch

from scoremode.errors import EngineError
from scoremode.head.rows import RowSums
from scoremode.lib import fallback

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch):
    monkeypatch.setattr(fallback, "_ran", {})
    monkeypatch.setattr(fallback, "_refused", {})


def boom() -> None:
    raise AssertionError("must not be launched")


def test_a_cpu_has_the_twin_and_says_nothing():
    assert not fallback.attempt("decode", torch.device("cpu"), boom)
    assert fallback.ran() == {}


def test_without_triton_the_reason_is_told(monkeypatch):
    monkeypatch.setattr(fallback, "is_missing", lambda: "No module named 'triton'")
    assert not fallback.attempt("decode", CUDA, boom)
    assert fallback.ran() == {"decode": "plain torch (No module named 'triton')"}


def test_a_kernel_that_does_not_compile_is_tried_once():
    errors = pytest.importorskip("triton.errors", reason="needs Triton")
    calls = []

    def refuse() -> None:
        calls.append(1)
        raise errors.TritonError("no such\ninstruction")

    assert not fallback.attempt("decode", CUDA, refuse)
    assert not fallback.attempt("decode", CUDA, refuse)
    assert len(calls) == 1
    assert fallback.ran() == {"decode": "plain torch (TritonError: no such instruction)"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("Failed to find C compiler. Please specify via CC environment variable."),
            "RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        ),
        (
            subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c", "-o", "x"]),
            "the C compiler /usr/bin/gcc failed with exit code 1",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "no-cc"),
            "FileNotFoundError: [Errno 2] No such file or directory: 'no-cc'",
        ),
    ],
)
def test_without_what_builds_its_launcher_the_twin_runs(error, words, demo_rows):
    pytest.importorskip("triton", reason="needs Triton")

    def unbuilt() -> None:
        raise error

    assert not fallback.attempt("decode", CUDA, unbuilt)
    assert fallback.ran() == {"decode": f"plain torch ({words})"}
    # The head has no twin on a GPU.
    with pytest.raises(EngineError, match=re.escape(f"scoring on CUDA needs Triton: {words}")):
        demo_rows(unbuilt)


@pytest.fixture
def demo_rows(monkeypatch):
    """Takes in some logits by a kernel that does what is given instead."""

    def take(launch):
        monkeypatch.setattr("scoremode.head.rows.has_kernels", lambda device: True)
        monkeypatch.setattr("scoremode.head.kernels.absorb_rows", lambda *_: launch())
        sums = RowSums(2, torch.device("cpu"))
        sums.absorb(slice(0, 2), torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64), 0)

    return take


@pytest.mark.parametrize("error", [RuntimeError("CUDA error: an illegal memory access"), OSError()])
def test_what_is_no_matter_of_building_is_not_taken_for_it(error):
    pytest.importorskip("triton", reason="needs Triton")
    with pytest.raises(type(error)), fallback.building():
        raise error


def test_what_ran_is_told_by_name():
    pytest.importorskip("triton", reason="needs Triton")
    assert fallback.attempt("b", CUDA, lambda: None)
    assert fallback.attempt("a", CUDA, lambda: None)
    assert list(fallback.ran().items()) == [("a", "triton"), ("b", "triton")]


def test_other_errors_are_not_hidden():
    pytest.importorskip("triton", reason="needs Triton")
    with pytest.raises(AssertionError, match="must not"):
        fallback.attempt("decode", CUDA, boom)


def test_an_account_that_begins_anew_tries_nothing_again_that_cant_be_had(monkeypatch):
    device, tried = torch.device("cuda"), []
    monkeypatch.setattr(fallback, "is_missing", lambda: tried.append(1) or "no Triton")
    assert not fallback.attempt("norm", device, lambda: None)
    fallback.forget()
    assert fallback.ran() == {}
    assert not fallback.attempt("norm", device, lambda: None)
    assert fallback.ran() == {"norm": "plain torch (no Triton)"} and tried == [1]

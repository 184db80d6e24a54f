import pickle

import pytest

from scoremode import errors
from scoremode.errors import CheckpointError, ScoremodeError, line_of, words_of


@pytest.mark.parametrize(
    ("code", "names"),
    [
        (1, "ScoremodeError CorpusError TokenizerError CheckpointError UnsupportedFormat "
            "UnsupportedModel EngineError ReferenceUnusable RunFolderError"),
        (2, "UsageError ProtocolError"),
        (3, "InvalidMeasurement"),
        (4, "GateNotMet"),
    ],
)  # fmt: skip
def test_each_error_ends_a_command_with_its_exit_code(code, names):
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = {kind for kind in kinds if issubclass(kind, ScoremodeError)}
    assert {kind.__name__ for kind in ours if kind.exit_code == code} == set(names.split())
    assert all(kind.__doc__ and kind.__name__ in errors.__all__ for kind in ours)


def test_what_is_not_decoded_is_a_matter_of_the_checkpoint():
    assert issubclass(errors.UnsupportedFormat, CheckpointError)
    assert not issubclass(errors.UnsupportedModel, CheckpointError)


def test_a_message_is_one_printable_line():
    error = CheckpointError("tensor a\nb\x1b[2J\ud800 é ×: missing")
    assert str(error) == r"tensor a\nb\x1b[2J\ud800 é ×: missing"


def test_a_long_message_keeps_its_ends():
    text = str(CheckpointError("begin " + "x" * 100_000 + " end"))
    assert len(text) < 1100 and text.startswith("begin ") and text.endswith(" end")


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(CheckpointError("a\nb")))  # noqa: S301
    assert str(error) == r"a\nb"


@pytest.mark.parametrize(
    ("error", "named", "bare"),
    [
        (KeyError("swish2"), "KeyError: 'swish2'", "'swish2'"),
        (
            ValueError("two\n  lines\tof words"),
            "ValueError: two lines of words",
            "two lines of words",
        ),
        (AssertionError(), "AssertionError", "AssertionError"),
        (RuntimeError(" \n"), "RuntimeError", "RuntimeError"),
        (
            OSError(2, "No such file", "a"),
            "OSError: [Errno 2] No such file: 'a'",
            "No such file",
        ),
    ],
)
def test_a_librarys_error_in_words(error, named, bare):
    named = named.replace("OSError", type(error).__name__)
    assert words_of(error) == named
    assert words_of(error, named=False).startswith(bare)
    assert words_of(error, 4, named=False) in (bare[:4], type(error).__name__)


def test_a_line_says_where_an_unexpected_error_is_from():
    try:
        {}["a\x1b"]
    except KeyError as error:
        line = line_of(error)
    assert line.startswith("KeyError: 'a\\x1b' (line ") and line.endswith(" of test_errors.py)")
    assert line_of(CheckpointError("said already")) == "said already"
    assert line_of(ZeroDivisionError()) == "ZeroDivisionError"
    assert len(line_of(ValueError("x" * 5000))) < 350

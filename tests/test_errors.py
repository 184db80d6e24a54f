import pickle

import pytest

from scoremode import errors
from scoremode.errors import CheckpointError, ScoremodeError, line_of, words_of


def test_the_tree_in_the_docstring_is_the_tree():
    """Name, parent and exit code of every error, by how far its line is indented."""
    stack, found = [], {}
    for line in (errors.__doc__ or "").splitlines():
        words = line.translate(str.maketrans("│├└─", "    ")).split()
        if not words or words[0] not in errors.__all__:
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4
        stack[depth - 1 :] = [words[0]]
        found[words[0]] = (stack[-2] if len(stack) > 1 else "Exception", int(words[1]))
    assert sorted(found) == [name for name in errors.__all__ if name[0].isupper()]
    for name, (parent, code) in found.items():
        error = getattr(errors, name)
        assert issubclass(error, ScoremodeError)
        assert (error.__base__.__name__, error.exit_code) == (parent, code)


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
            "[Errno 2] No such",
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

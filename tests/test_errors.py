import pickle

from scoremode import errors
from scoremode.errors import CheckpointError, ScoremodeError


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
    assert sorted(found) == errors.__all__
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

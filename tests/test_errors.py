import pickle

from scoremode.errors import CheckpointError


def test_a_message_is_one_printable_line():
    error = CheckpointError("tensor a\nb\x1b[2J\ud800 é ×: missing")
    assert str(error) == r"tensor a\nb\x1b[2J\ud800 é ×: missing"


def test_a_long_message_keeps_its_ends():
    text = str(CheckpointError("begin " + "x" * 100_000 + " end"))
    assert len(text) < 1100 and text.startswith("begin ") and text.endswith(" end")


def test_errors_cross_processes():
    error = pickle.loads(pickle.dumps(CheckpointError("a\nb")))  # noqa: S301
    assert str(error) == r"a\nb"

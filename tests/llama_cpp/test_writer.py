"""Writing `_logits_` files, and what a failed write leaves."""

import os
import resource
import threading

import numpy as np
import pytest
from support.llama_cpp.files import GOLDEN, decode, logprobs, small

from scoremode.errors import InvalidMeasurement, ReferenceUnusable
from scoremode.llama_cpp.export import LogitsFileWriter
from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.rows import encode


@pytest.fixture(scope="module")
def golden() -> LogitsFile:
    return LogitsFile(GOLDEN)


def test_the_tools_file_written_again(golden, tmp_path):
    """All but each row's smallest log-probability and the last places of its scale are the same."""
    again = tmp_path / "again.kld"
    with LogitsFileWriter(again, 64, 1024, golden.tokens) as writer:
        writer.write(logprobs(golden, 0, 100, 0, 1024))
        writer.write(logprobs(golden, 100, 248, 0, 1024))
    ours, theirs = again.read_bytes(), GOLDEN.read_bytes()
    begin = 20 + 4 * 8 * 64
    assert ours[:begin] == theirs[:begin] and len(ours) == len(theirs)
    a, b = (np.frombuffer(x, "<u2", offset=begin).reshape(248, 1028) for x in (ours, theirs))
    assert np.array_equal(a[:, 4:], b[:, 4:])
    assert a[:, :4].tobytes() != b[:, :4].tobytes()
    reopened = LogitsFile(again)
    # The stored probabilities' sum is not exactly 1, and is divided by on the way.
    mass = np.log(np.exp(logprobs(golden, 0, 248, 0, 1024).astype(np.float64)).sum(1))
    assert 0 < np.abs(mass).max() < 1e-4
    difference = logprobs(reopened, 0, 248, 0, 1024) - logprobs(golden, 0, 248, 0, 1024)
    assert np.abs(difference + mass[:, None]).max() < 1e-5


@pytest.mark.parametrize("nats", [16, 24])
@pytest.mark.parametrize("entries", [5, 6])
def test_written_and_read(tmp_path, entries, nats):
    tokens, logits = small(tmp_path / "f", entries=entries, nats=nats)
    file = LogitsFile(tmp_path / "f")
    assert (file.n_ctx, file.entries, file.chunks, file.rows_per_chunk) == (9, entries, 2, 4)
    assert np.array_equal(file.tokens, tokens)
    assert np.array_equal(
        logprobs(file, 0, 8, 0, entries), decode(encode(logits, nats), 0, entries)
    )
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "f"
    tokens, logits = small(path)
    before = path.read_bytes()

    def left_as_it_was() -> bool:
        return [p.name for p in tmp_path.iterdir()] == ["f"] and path.read_bytes() == before

    with (
        pytest.raises(ReferenceUnusable, match=r"f: 3 rows were written for 8 targets"),
        LogitsFileWriter(path, 9, 5, tokens) as writer,
    ):
        writer.write(logits[:3])
    assert left_as_it_was()
    with (
        pytest.raises(ReferenceUnusable, match=r"f: 9 rows for 8 targets"),
        LogitsFileWriter(path, 9, 5, tokens) as writer,
    ):
        writer.write(logits)
        writer.write(logits[:1])
    assert left_as_it_was()
    with pytest.raises(KeyboardInterrupt), LogitsFileWriter(path, 9, 5, tokens) as writer:
        writer.write(logits)
        raise KeyboardInterrupt
    assert left_as_it_was()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_refused(tmp_path, value):
    tokens = np.zeros(18, np.int32)
    logits = np.zeros((8, 5), np.float32)
    logits[6, 2] = value
    says = rf"the largest logit {value} is not finite \(chunk 1, position 7; 1 of 6 such\)"
    with (
        pytest.raises(InvalidMeasurement, match=says),
        LogitsFileWriter(tmp_path / "f", 9, 5, tokens) as writer,
    ):
        writer.write(logits[:2])
        writer.write(logits[2:])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("n_ctx", "entries", "tokens", "says"),
    [
        (2, 5, [1] * 4, "context length 2: must be at least 3"),
        (0, 5, [1] * 4, "context length 0: must be at least 3"),
        (9, 0, [1] * 9, "vocabulary 0: must be at least 1"),
        (9, 5, [1] * 8, "number of chunks 0: must be at least 1"),
        (9, 5, [1] * 19, "19 tokens are no whole number of chunks of 9"),
        (3, 5, [1, 2, 5], "token id 5 at place 2, and the vocabulary has 5 entries"),
    ],
)
def test_what_makes_no_file_is_refused(tmp_path, n_ctx, entries, tokens, says):
    with pytest.raises(ReferenceUnusable) as caught:
        LogitsFileWriter(tmp_path / "f", n_ctx, entries, np.array(tokens, np.int32))
    assert str(caught.value) == f"{tmp_path / 'f'}: {says}"
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_written(tmp_path):
    tokens = np.zeros(9, np.int32)
    for path, reason in (
        (tmp_path / "none" / "f", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        says = f"{path}: cannot be written: {reason}"
        with pytest.raises(ReferenceUnusable, match=says), LogitsFileWriter(path, 9, 5, tokens):
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [1000, 30_000])
def test_a_full_disk_leaves_nothing(tmp_path, limit):
    """In the tokens, which the header's write holds, or in the rows."""
    n_ctx, entries = 4000, 50
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with (
            pytest.raises(ReferenceUnusable, match=r"f: cannot be written: File too large"),
            LogitsFileWriter(tmp_path / "f", n_ctx, entries, np.zeros(n_ctx, np.int32)) as writer,
        ):
            writer.write(np.zeros((1999, entries), np.float32))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_pipe_gets_the_rows_and_stays_one(tmp_path):
    """What reads it sees the same bytes as a file has."""
    pipe, tokens, logits = tmp_path / "pipe", np.arange(9, dtype=np.int32) % 5, np.zeros((4, 5))
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    for path in (tmp_path / "file", pipe):
        with LogitsFileWriter(path, 9, 5, tokens) as writer:
            writer.write(logits.astype(np.float32))
    reader.join(10)
    assert read == [(tmp_path / "file").read_bytes()] and pipe.is_fifo()
    assert {p.name for p in tmp_path.iterdir()} == {"file", "pipe"}


def test_a_users_file_beside_it_stays(tmp_path):
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "f.tmp").symlink_to("outside")
    tokens, logits = np.arange(4, dtype=np.int32), np.zeros((1, 8), np.float32)
    with LogitsFileWriter(tmp_path / "f", 4, 8, tokens) as writer:
        writer.write(logits)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "f.tmp", "outside"]
    assert (tmp_path / "outside").read_text() == "mine"

"""Packed files of rows."""

import gzip

import pytest

from scoremode.errors import CorpusError
from scoremode.text import rows
from scoremode.text.rows import unpacked


def test_the_name_says_what_is_packed():
    packed = gzip.compress(b"a line\n")
    assert unpacked(packed, "rows.jsonl.gz") == unpacked(packed, "ROWS.JSONL.GZ") == b"a line\n"
    assert unpacked(packed, "rows.jsonl") == packed
    # As `cat a.gz b.gz` makes it.
    assert unpacked(packed + packed, "rows.json.gz") == b"a line\n" * 2


@pytest.mark.parametrize(
    # Named, and with a fixed time in the header: workers must collect the same tests in any second.
    "data",
    [b"plain", gzip.compress(b"x" * 99, mtime=0)[:-9], gzip.compress(b"x" * 99, mtime=0)[:20]],
    ids=["plain", "cut by nine bytes", "cut to twenty bytes"],
)
def test_what_is_no_gzip_file(data):
    with pytest.raises(CorpusError, match=r"^x\.gz: not a readable gzip file: "):
        unpacked(data, "x.gz")


def test_damaged_bytes_are_no_file():
    data = bytearray(gzip.compress(bytes(range(256)) * 9))
    data[30] ^= 0xFF
    with pytest.raises(CorpusError, match="not a readable gzip file"):
        unpacked(bytes(data), "x.gz")


def test_a_small_file_may_not_unpack_to_a_large_one(monkeypatch):
    monkeypatch.setattr(rows, "MOST_TEXT", 1 << 20)
    assert len(unpacked(gzip.compress(bytes(1 << 20)), "x.gz")) == 1 << 20
    with pytest.raises(CorpusError, match=r"x\.gz: unpacks to more than 1 MiB"):
        unpacked(gzip.compress(bytes((1 << 20) + 1)), "x.gz")

"""Parts of files, read by threads in requests of bounded size."""

import os
from pathlib import Path

import pytest

from scoremode.checkpoint import bulk_io
from scoremode.checkpoint.bulk_io import FileReader, Part


@pytest.fixture
def reader():
    made = FileReader(2, "test-read", RuntimeError)
    yield made
    made.close()


def part(path: Path, begin: int, memory: bytearray) -> Part:
    return Part(path, begin, memoryview(memory), f"{path.name}: tensor x: the file")


@pytest.mark.parametrize("request_bytes", [1, 7, 99, 100, 1 << 24])
def test_every_byte_of_every_part_arrives(reader, tmp_path, monkeypatch, request_bytes):
    """Wherever requests end, and where the system gives less than was asked for."""
    monkeypatch.setattr(bulk_io, "_REQUEST", request_bytes)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, to, at: preadv(fd, [to[0][:5]], at))
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(bytes(range(256)))
    other.write_bytes(bytes(range(255, -1, -1)))
    memory = [bytearray(100), bytearray(30), bytearray(0)]
    reader.read([part(one, 3, memory[0]), part(other, 226, memory[1]), part(one, 9, memory[2])])
    assert memory[0] == bytes(range(3, 103))
    assert memory[1] == bytes(range(29, -1, -1))


def test_a_file_that_became_shorter_is_named(reader, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with pytest.raises(RuntimeError, match=r"^file: tensor x: the file has become shorter$"):
        reader.read([part(path, 5, bytearray(6))])


def test_a_file_that_is_not_there_is_named(reader, tmp_path):
    with pytest.raises(RuntimeError, match="nonesuch: No such file or directory"):
        reader.read([part(tmp_path / "nonesuch", 0, bytearray(1))])

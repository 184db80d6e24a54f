"""Blocks of tensors read from files in pieces, held against the files' own bytes."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from scoremode.checkpoint import bulk_io
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.engines.torch.memory.feeder import Block, Reader
from scoremode.errors import CheckpointError

ALIGNMENT = 256
# Bytes of tensors: nothing, less than one aligned place, exactly one, just over, several.
SIZES = [0, 1, 255, 256, 257, 700, 1024, 3, 2049]


@pytest.fixture
def infos(tmp_path) -> list[TensorInfo]:
    """Tensors of SIZES in two files, at any offset, with gaps that no tensor has, out of order."""
    generator = np.random.default_rng(3)
    found = []
    for number, name in enumerate(("b.bin", "a.bin")):
        at, content = 7 + number, generator.bytes(6000)
        (tmp_path / name).write_bytes(content)
        for i, size in enumerate(SIZES):
            found.append(TensorInfo(f"{name}{i}", tmp_path / name, "U8", (size,), size, at))
            at += size + i % 3
    return found[::-1]


@pytest.fixture
def reader():
    reader = Reader()
    yield reader
    reader.close()


def stored(info: TensorInfo) -> bytes:
    return info.file.read_bytes()[info.begin : info.begin + info.bytes]


def image(block: Block, filler: int) -> np.ndarray:
    """The block as it must be: its tensors' bytes, and `filler` between them."""
    whole = np.full(block.bytes, filler, np.uint8)
    for at, info in block.tensors.values():
        whole[at : at + info.bytes] = np.frombuffer(stored(info), np.uint8)
    return whole


def test_a_block_has_every_tensor_aligned_apart_and_in_the_files_order(infos):
    block = Block.of(infos)
    places = list(block.tensors.values())
    assert set(block.tensors) == {i.name for i in infos}
    order = [(str(i.file), i.begin) for _, i in places]
    assert order == sorted(order)
    assert all(at % ALIGNMENT == 0 for at, _ in places)
    ends = [at + info.bytes for at, info in places]
    following = [at for at, _ in places[1:]] + [block.bytes]
    assert all(0 <= begin - end < ALIGNMENT for end, begin in zip(ends, following, strict=True))
    assert Block.of([]).bytes == 0


@pytest.mark.parametrize("request_size", [1, 100, 256, 1 << 24])
@pytest.mark.parametrize("piece", [97, 256, 1000, 100_000])
def test_pieces_and_requests_of_any_size_make_the_same_bytes(
    piece, request_size, infos, reader, monkeypatch
):
    if request_size * 97 < piece:
        piece = 97  # a system call a byte
    monkeypatch.setattr(bulk_io, "_REQUEST", request_size)
    block = Block.of(infos)
    memory = torch.full((block.bytes,), 0xA5, dtype=torch.uint8)
    for begin in range(0, block.bytes, piece):
        reader.fill(memory[begin : begin + piece], block, begin)
    assert np.array_equal(memory.numpy(), image(block, 0xA5))


def test_no_request_is_larger_than_allowed(infos, reader, monkeypatch):
    monkeypatch.setattr(bulk_io, "_REQUEST", 500)
    asked = []

    def count(fd, buffers, offset):
        asked.extend(len(b) for b in buffers)
        return preadv(fd, buffers, offset)

    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", count)
    block = Block.of(infos)
    reader.fill(torch.empty(block.bytes, dtype=torch.uint8), block, 0)
    assert max(asked) == 500 and sum(asked) == 2 * sum(SIZES)


def test_a_read_that_brings_less_than_asked_is_gone_on_with(infos, reader, monkeypatch):
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: preadv(fd, [b[0][:11]], at))
    block = Block.of(infos)
    memory = torch.zeros(block.bytes, dtype=torch.uint8)
    reader.fill(memory, block, 0)
    assert np.array_equal(memory.numpy(), image(block, 0))


def test_a_file_that_became_shorter_names_file_and_tensor(infos, reader):
    block = Block.of(infos)
    last = max((i for i in infos if i.file.name == "a.bin"), key=lambda i: i.begin)
    os.truncate(last.file, last.begin + last.bytes - 1)
    with pytest.raises(CheckpointError) as error:
        reader.fill(torch.empty(block.bytes, dtype=torch.uint8), block, 0)
    assert str(error.value) == f"{last.file}: tensor {last.name}: the file has become shorter"


def test_a_disks_error_names_the_file(infos, reader, monkeypatch):
    def fail(fd, buffers, offset):
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "preadv", fail)
    block = Block.of(infos[:1])
    with pytest.raises(CheckpointError, match="Input/output error") as error:
        reader.fill(torch.empty(block.bytes, dtype=torch.uint8), block, 0)
    assert str(infos[0].file) in str(error.value)


def test_what_is_read_is_the_file_that_was_opened(tmp_path, reader):
    """A file that is replaced meanwhile is not read in part: `check_unchanged` finds it."""
    path: Path = tmp_path / "x.bin"
    path.write_bytes(b"a" * 600)
    block = Block.of([TensorInfo("x", path, "U8", (600,), 600, 0)])
    memory = torch.empty(block.bytes, dtype=torch.uint8)
    reader.fill(memory[:256], block, 0)
    (tmp_path / "y.bin").write_bytes(b"b" * 600)
    (tmp_path / "y.bin").replace(path)
    reader.fill(memory[256:], block, 256)
    assert bytes(memory[:600].tolist()) == b"a" * 600

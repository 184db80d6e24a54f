"""Hashes of several files at a time."""

import hashlib
import threading
import weakref

import pytest

from scoremode.checkpoint import bulk_io
from scoremode.checkpoint.bulk_io import Hashing, hash_file
from scoremode.checkpoint.files import open_checkpoint
from scoremode.lib.tasks import Task


@pytest.fixture
def files(tmp_path):
    contents = [b"", b"a", bytes(range(256)) * 40_000, b"b" * (1 << 22)]
    paths = [tmp_path / str(i) for i in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_hashes_are_the_files_own_in_their_order(files, cores, monkeypatch):
    monkeypatch.setattr(bulk_io.os, "cpu_count", lambda: cores)
    found = Hashing(files).result()
    assert list(found) == files
    for path, digest in found.items():
        assert digest == hashlib.sha256(path.read_bytes()).hexdigest() == hash_file(path)


def test_the_bytes_that_are_read_add_up(files):
    told: list[tuple[float, int]] = []
    hashing, size = Hashing(files), sum(path.stat().st_size for path in files)
    hashing.follow(lambda read, total: told.append((read, total)))
    assert sum(read for read, _ in told) == size and {total for _, total in told} == {size}
    assert list(hashing.result()) == files
    # What fails is raised where the hashes are asked for.
    files[0].unlink()
    failed = Hashing(files)
    failed.follow(lambda *_: None)
    with pytest.raises(FileNotFoundError):
        failed.result()


def test_a_missing_file_is_the_error_of_reading_it(files):
    files[1].unlink()
    with pytest.raises(FileNotFoundError, match="No such file") as error:
        Hashing(files).result()
    assert error.value.filename == str(files[1])


def test_stopped_it_ends_and_gives_no_hashes_of_parts(files, monkeypatch):
    begun, held, before = threading.Event(), threading.Event(), threading.active_count()

    def slow(path, stopped, count):
        begun.set()
        held.wait()
        return hash_file(path, stopped, count)

    monkeypatch.setattr(bulk_io, "hash_file", slow)
    ours = Hashing(files)
    begun.wait()
    threading.Timer(0.05, held.set).start()
    ours.stop()
    assert threading.active_count() <= before + 1  # the timer's may be ending
    with pytest.raises(AssertionError, match="after `stop`"):
        ours.result()


def test_a_checkpoint_is_hashed_once_and_again_after_a_stop(demo, monkeypatch):
    read: list[str] = []

    def counted(path, stopped, count):
        read.append(path.name)
        return hash_file(path, stopped, count)

    monkeypatch.setattr(bulk_io, "hash_file", counted)
    checkpoint = open_checkpoint(str(demo / "model"))
    checkpoint.hashing()
    first = checkpoint.hash_files()
    assert checkpoint.hash_files() == first
    assert sorted(read) == ["config.json", "model.safetensors"] == sorted(first)
    checkpoint.stop_hashing()
    assert checkpoint.hash_files() == first
    assert len(read) == 4


def test_work_that_is_done_holds_nothing():
    """A reference's states on a GPU are held by the work that writes them."""

    class Large:
        pass

    def begin(large: Large) -> Task[str]:
        return Task(lambda: type(large).__name__)

    large = Large()
    held = weakref.ref(large)
    work = begin(large)
    del large
    assert work.result() == "Large"
    assert held() is None

"""Other nodes' files against the driver's, with workers that are no processes. Needs no vLLM."""

import hashlib
import shutil
import time
from pathlib import Path

import pytest

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.engines.vllm import copies as module
from scoremode.engines.vllm.copies import Copies, CopyHashes, view_of
from scoremode.engines.vllm.workers.worker import WorkerExtension
from scoremode.errors import EngineError


class Node(WorkerExtension):
    """A worker that finds the checkpoint's files in another folder."""

    def __init__(self, rank: int, here: Path, there: Path):
        self.rank, self._here, self._there = rank, str(here), str(there)

    def _own(self, paths):
        return [path.replace(self._here, self._there) for path in paths]

    def scoremode_view_files(self, paths):
        return super().scoremode_view_files(self._own(paths))

    def scoremode_hash_files(self, paths, ranks):
        super().scoremode_hash_files(self._own(paths), ranks)


@pytest.fixture
def checkpoint(demo, tmp_path) -> Checkpoint:
    shutil.copytree(demo / "model", tmp_path / "model")
    return open_checkpoint(str(tmp_path / "model"))


def copies_of(checkpoint: Checkpoint, *folders: Path) -> tuple[Copies, list[str]]:
    """Copies that workers have in these folders, and what they have been asked."""
    nodes = [Node(rank, checkpoint.path, folder) for rank, folder in enumerate(folders)]
    asked: list[str] = []

    def ask(question, *arguments):
        asked.append(question)
        return [getattr(node, question)(*arguments) for node in nodes]

    return Copies(checkpoint, ask), asked


def test_workers_on_the_drivers_node_hash_nothing(checkpoint):
    copies, asked = copies_of(checkpoint, checkpoint.path, checkpoint.path)
    assert copies.count == 0 and copies.are_known(wait=False)
    assert asked == ["scoremode_view_files"]


def test_one_worker_of_each_other_node_hashes(checkpoint, tmp_path):
    others = [tmp_path / name for name in ("second", "third")]
    for folder in others:
        shutil.copytree(checkpoint.path, folder)
    here = checkpoint.path
    copies, asked = copies_of(checkpoint, here, here, others[0], others[0], others[1], others[1])
    assert copies.count == 2
    assert copies.are_known(wait=True) and copies.count == 0
    asked.clear()
    assert copies.are_known(wait=False) and asked == []


def test_what_is_not_yet_known_is_waited_for_only_when_asked(checkpoint, tmp_path, monkeypatch):
    shutil.copytree(checkpoint.path, tmp_path / "second")
    copies, _ = copies_of(checkpoint, checkpoint.path, tmp_path / "second")
    answers, ask = iter([False, False, True]), copies._ask

    def slow(question, *arguments):
        found = ask(question, *arguments)
        return found if next(answers) else [None] * len(found)

    monkeypatch.setattr(copies, "_ask", slow)
    assert not copies.are_known(wait=False)
    time.sleep(0.3)
    assert copies.are_known(wait=True) and next(answers, None) is None


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"!"), "has sha256 "),
        (lambda file: file.unlink(), "is not there"),
    ],
)
def test_another_file_is_named_with_its_node(harm, words, checkpoint, tmp_path):
    shutil.copytree(checkpoint.path, tmp_path / "second")
    harm(tmp_path / "second" / "model.safetensors")
    copies, _ = copies_of(checkpoint, checkpoint.path, tmp_path / "second")
    with pytest.raises(EngineError) as found:
        copies.are_known(wait=True)
    line = str(found.value)
    assert f"model.safetensors {words}" in line and "on the node " in line
    assert "every node needs the same files" in line


def hashes(paths):
    found = CopyHashes(paths)
    while (result := found.result()) is None:
        time.sleep(0.01)
    return result


def test_two_see_the_same_file_only_where_it_is_the_same(tmp_path):
    one, copy, link = (tmp_path / name for name in ("one", "copy", "link"))
    one.write_bytes(b"weights")
    copy.write_bytes(b"weights")
    link.symlink_to(one)
    seen = view_of([str(one), str(copy), str(link), str(tmp_path / "none")])
    assert seen[0] == seen[2] != seen[1] and seen[3] is None
    one.write_bytes(b"Weights")
    assert view_of([str(one)])[0] != seen[0]


def test_digests_are_in_the_order_that_was_asked_for(tmp_path):
    paths = []
    for size in (10, 5_000_000, 0):
        (path := tmp_path / str(size)).write_bytes(b"x" * size)
        paths.append(str(path))
    wanted = [hashlib.sha256(b"x" * size).hexdigest() for size in (10, 5_000_000, 0)]
    assert hashes(paths) == wanted
    none = str(tmp_path / "none")
    assert hashes([none, *paths]) == ["missing", *wanted]


@pytest.mark.parametrize("goes", [False, True])
def test_a_file_that_changes_meanwhile_has_no_digest(goes, tmp_path, monkeypatch):
    (path := tmp_path / "file").write_bytes(b"one")

    class Hashing:
        def __init__(self, files):
            self.files = files

        def result(self):
            if goes:
                path.unlink()
                raise FileNotFoundError(path)
            path.write_bytes(b"another")
            return dict.fromkeys(self.files, "digest")

    monkeypatch.setattr(module, "Hashing", Hashing)
    assert hashes([str(path)]) == ["changed"]

"""A node's own view of files, and its hashes of them. Needs no vLLM."""

import hashlib
import time

from scoremode.engines.vllm import copies as copy_files
from scoremode.engines.vllm.copies import CopyHashes, view_of


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


def test_a_file_that_changes_meanwhile_has_no_digest(tmp_path, monkeypatch):
    (path := tmp_path / "file").write_bytes(b"one")

    class Hashing:
        def __init__(self, files):
            self.files = files

        def result(self):
            path.write_bytes(b"another")
            return dict.fromkeys(self.files, "digest")

    monkeypatch.setattr(copy_files, "Hashing", Hashing)
    assert hashes([str(path)]) == ["changed"]


def test_a_file_that_goes_meanwhile_has_no_digest(tmp_path, monkeypatch):
    (path := tmp_path / "file").write_bytes(b"one")

    class Hashing:
        def __init__(self, files):
            path.unlink()

        def result(self):
            raise FileNotFoundError(path)

    monkeypatch.setattr(copy_files, "Hashing", Hashing)
    assert hashes([str(path)]) == ["changed"]

"""The file of what is done: whole batches, whatever it was killed at."""

import json

import pytest
from support.hostile_files import KINDS, put, snapshot

from scoremode.errors import RunFolderError
from scoremode.runs.generate import PartFile, part_path, remove_left

IDENTITY = {"seed": 0, "engine": {"dtype": "float32"}}
ROWS = [{"row": {"messages": ["\u00e9\u2028"]}, "kept": True}]


@pytest.fixture
def path(tmp_path):
    return part_path(tmp_path / "chats.jsonl")


def test_batches_come_back_in_any_order(path):
    with PartFile(path, IDENTITY) as part:
        part.add(2, ROWS)
        part.add(0, [])
    with PartFile(path, IDENTITY) as part:
        assert part.done == {2: ROWS, 0: []}
        part.remove()
    assert not path.exists()


def test_wherever_it_was_killed_whole_batches_are_left(path):
    with PartFile(path, IDENTITY) as part:
        part.add(0, ROWS)
        part.add(1, ROWS)
    data = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    assert len(ends) == 3
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        with PartFile(path, IDENTITY) as part:
            assert len(part.done) == max(sum(end <= cut for end in ends) - 1, 0), cut
            part.add(7, ROWS)
        with PartFile(path, IDENTITY) as part:
            assert part.done[7] == ROWS, cut


def test_another_command_is_refused_by_the_field_that_differs(path):
    PartFile(path, IDENTITY).close()
    with pytest.raises(
        RunFolderError, match=r"was begun with engine dtype 'float32', and this command has 'b"
    ):
        PartFile(path, {"seed": 0, "engine": {"dtype": "bfloat16"}})
    PartFile(path, IDENTITY).close()


def test_two_at_once_are_refused(path):
    with (
        PartFile(path, IDENTITY),
        pytest.raises(RunFolderError, match="another process is generating it"),
    ):
        PartFile(path, IDENTITY)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"hello", "is no part of generated conversations"),
        (b"hello\n", "is no part of generated conversations"),
        (b"[]\n", "is no part of generated conversations"),
        (json.dumps({"identity": IDENTITY}).encode() + b"\n{}\n", "has a line that is no batch"),
    ],
)
def test_what_is_no_such_file_is_left_alone(path, line, words):
    path.write_bytes(line)
    with pytest.raises(RunFolderError, match=words):
        PartFile(path, IDENTITY)
    assert path.read_bytes() == line


def test_a_folder_is_no_file(path):
    path.mkdir()
    with pytest.raises(RunFolderError, match="cannot be written: is a folder, not a file"):
        PartFile(path, IDENTITY)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_written_where_it_lies(path, kind, tmp_path):
    put(path, kind, tmp_path / "outside")
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match=r"chats\.jsonl\.part: cannot be written: (is|has) "):
        PartFile(path, IDENTITY)
    remove_left(path.with_suffix(""), IDENTITY)
    assert snapshot(tmp_path) == before


def test_one_that_is_left_is_removed_and_a_users_is_not(path):
    PartFile(path, IDENTITY).close()
    remove_left(path.with_suffix(""), IDENTITY)
    assert not path.exists()
    path.write_text("mine")
    remove_left(path.with_suffix(""), IDENTITY)
    assert path.read_text() == "mine"

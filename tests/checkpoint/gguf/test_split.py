"""Split models: all files there and of one another, or a line that names the one that is not."""

import struct

import pytest
from support.gguf.files import SHAPES, U16, Raw, llama, split

from scoremode.checkpoint.gguf.header import first_of, parts_of, read_split
from scoremode.errors import CheckpointError

FIRST = "x-00001-of-00003.gguf"


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / FIRST


def refusal(file) -> str:
    with pytest.raises(CheckpointError) as error:
        read_split(file)
    return str(error.value).removeprefix(f"{file.parent}/")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("a.gguf", "a.gguf"),
        ("a-00002-of-00003.gguf", "a-00001-of-00003.gguf"),
        ("a-00001-of-00003.GGUF", "a-00001-of-00003.GGUF"),
        ("a-1-of-3.gguf", "a-1-of-3.gguf"),
        ("a-00002-of-00003.gguf.gguf", "a-00002-of-00003.gguf.gguf"),
    ],
)
def test_the_first_by_any(name, first):
    assert first_of(name) == first


def test_all_by_the_first():
    assert parts_of("a.gguf") == ["a.gguf"]
    assert parts_of("a-00001-of-00002.gguf") == ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
    assert parts_of("a-00001-of-00000.gguf") == ["a-00001-of-00000.gguf"]


def test_all_parts_are_read(tmp_path):
    found = read_split(write(tmp_path, split({})))
    assert [len(header.tensors) for _, header in found] == [0, 7, 5]
    assert {t.name for _, header in found for t in header.tensors} == set(SHAPES)


def test_a_part_names_the_first(tmp_path):
    file = write(tmp_path, split({})).with_name("x-00002-of-00003.gguf")
    assert refusal(file) == f"{file.name}: is a part of a split model: give its first file, {FIRST}"


def test_a_part_is_missing(tmp_path):
    file = write(tmp_path, split({}))
    (tmp_path / "x-00003-of-00003.gguf").unlink()
    assert refusal(file) == "x-00003-of-00003.gguf: is missing, one of 3 files of a split model"


def test_parts_of_two_models(tmp_path):
    file = write(tmp_path, split({}))
    files = split({})
    write(tmp_path, {"x-00003-of-00003.gguf": files["x-00002-of-00003.gguf"]})
    assert refusal(file) == "x-00003-of-00003.gguf: split.no is 1, and its name has 2"


def number(value: int) -> Raw:
    return Raw(U16, struct.pack("<H", value))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"split.count": 4}, f"{FIRST}: split.count is 4, and is named as the first of 3 files"),
        ({"split.count": "3"}, f"{FIRST}: split.count is 3, no count"),
        ({"split.count": -1.0}, f"{FIRST}: split.count is -1.0, no count"),
        ({"split.count": None}, f"{FIRST}: split.count is 1, and is named as the first of 3 files"),
        ({"split.no": number(0)}, "x-00002-of-00003.gguf: split.no is 0, and its name has 1"),
        ({"split.tensors.count": 13}, f"{FIRST}: split.tensors.count is 13, and 12 are there"),
    ],
)
def test_parts_that_disagree(tmp_path, metadata, words):
    assert refusal(write(tmp_path, split({}, metadata=metadata))) == words


def test_a_tensor_twice(tmp_path):
    files = split({}, metadata={"split.tensors.count": None})
    both = {"split.no": number(2), "split.count": 3}
    files["x-00003-of-00003.gguf"] = llama({}, both, list(SHAPES)[6:])
    words = "x-00003-of-00003.gguf: tensor blk.0.attn_v.weight is in x-00002-of-00003.gguf, too"
    assert refusal(write(tmp_path, files)) == words


def test_a_first_part_by_another_name(tmp_path):
    file = write(tmp_path, split({}))
    file = file.rename(tmp_path / "model.gguf")
    assert refusal(file) == (
        "model.gguf: split.count is 3, and its name doesn't end in -00001-of-N.gguf, by which the "
        "others are found"
    )


def test_a_split_of_one(tmp_path):
    file = tmp_path / "x-00001-of-00001.gguf"
    file.write_bytes(llama({}, {"split.count": 1, "split.no": 0}))
    assert len(read_split(file)) == 1

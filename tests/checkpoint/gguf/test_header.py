"""Headers of GGUF files: as the gguf package writes and reads them, and those that lie."""

import os
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.gguf.files import (
    ARRAY,
    BOOL,
    F64,
    I8,
    STRING,
    U8,
    U32,
    U64,
    Raw,
    array,
    file,
    info,
    pair,
    value,
)

from scoremode.checkpoint.gguf.header import TYPES, GgufHeader, read_gguf
from scoremode.errors import CheckpointError, UnsupportedFormat

ALL = tuple(TYPES)


def read(folder: Path, content: bytes) -> GgufHeader:
    (folder / "x.gguf").write_bytes(content)
    return read_gguf(folder / "x.gguf")


def refusal(folder: Path, content: bytes) -> str:
    """The line that a file is refused with, behind its name."""
    with pytest.raises(CheckpointError) as error:
        read(folder, content)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(f"{folder}/x.gguf: ")
    return str(error.value).removeprefix(f"{folder}/x.gguf: ")


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A file by the package's writer: every type of value, and a tensor of every type it writes."""
    path = tmp_path_factory.mktemp("gguf") / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, content in (("uint8", 200), ("int8", -3), ("uint16", 60000), ("int16", -300)):
        getattr(writer, f"add_{name}")(f"a.{name}", content)
    for name, content in (("uint32", 1 << 31), ("int32", -5), ("uint64", 1 << 63), ("int64", -1)):
        getattr(writer, f"add_{name}")(f"a.{name}", content)
    writer.add_float32("a.float32", 0.1)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_array("a.strings", ["é", "", "漢字"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [1.5, -2.0])
    writer.add_array("a.bools", [True, False])
    writer.add_array("a.arrays", [[1, 2], [3]])
    random = np.random.default_rng(0)
    for n, name in enumerate(ALL):
        kind = TYPES[name]
        shape = (n % 3 + 1, 2, 256 * kind.bytes // kind.values)
        content = random.integers(0, 256, shape, np.uint8)
        writer.add_tensor(f"t.{name}", content, raw_dtype=gguf.GGMLQuantizationType[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_is_what_the_package_wrote(written):
    found = read_gguf(written).metadata
    assert [found[f"a.{k}8"] for k in ("uint", "int")] == [200, -3]
    assert [found[f"a.{k}16"] for k in ("uint", "int")] == [60000, -300]
    assert [found[f"a.{k}32"] for k in ("uint", "int")] == [1 << 31, -5]
    assert [found[f"a.{k}64"] for k in ("uint", "int")] == [1 << 63, -1]
    assert (found["a.float32"], found["a.float64"]) == (float(np.float32(0.1)), 0.1)
    assert found["a.bool"] is True
    assert found["a.strings"] == ["é", "", "漢字"]
    assert (found["a.ints"].dtype, found["a.ints"].tolist()) == (np.int32, [1, -2, 3])
    assert (found["a.floats"].dtype, found["a.floats"].tolist()) == (np.float32, [1.5, -2.0])
    assert (found["a.bools"].dtype, found["a.bools"].tolist()) == (np.bool_, [True, False])
    assert [part.tolist() for part in found["a.arrays"]] == [[1, 2], [3]]
    assert found["general.architecture"] == "llama"


def test_tensors_are_where_the_package_reads_them(written):
    theirs = gguf.GGUFReader(written).tensors
    ours = read_gguf(written).tensors
    assert [t.name for t in ours] == [t.name for t in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.type == other.tensor_type.name
        assert one.shape == tuple(reversed(other.shape.tolist()))
        assert (one.bytes, one.begin) == (other.n_bytes, other.data_offset)
    assert len(ours) == len(ALL)


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions(tmp_path, version):
    found = read(tmp_path, file({"a": 1}, [info("t", 0, [3], 0)], bytes(12), version=version))
    assert found.metadata == {"a": 1}
    assert found.tensors[0].shape == (3,)


def test_another_alignment(tmp_path):
    infos = [info("t", 24, [3], 0), info("u", 24, [1], 64)]
    content = file({"general.alignment": 64}, infos, bytes(65), alignment=64)
    assert [t.begin % 64 for t in read(tmp_path, content).tensors] == [0, 0]


def test_truncated_at_any_byte(tmp_path, written):
    content = file(
        {"a": "text", "b": array(STRING, ["x", "yz"]), "c": array(U32, [1, 2]), "d": True},
        [info("t", 0, [2, 3], 0), info("u", 8, [32], 32)],
        bytes(66),
    )
    assert len(read(tmp_path, content).tensors) == 2
    for size in range(len(content)):
        assert refusal(tmp_path, content[:size])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "truncated or not GGUF (0 bytes)"),
        (b"PK\x03\x04" + bytes(40), r"not GGUF: begins with b'PK\x03\x04'"),
        (b"tjgg" + bytes(40), "from before GGUF"),
        (file(version=1), "GGUF version 1; 2 and 3 are read"),
        (file(version=4), "GGUF version 4; 2 and 3 are read"),
        (file(version=0), "GGUF version 0; 2 and 3 are read"),
        (file(version=3 << 24), "a big-endian GGUF file, which is not read"),
        (file(counts=(1 << 63, 0)), "9,223,372,036,854,775,808 tensors, more than 500,000"),
        (file(counts=(9, 0)) + bytes(9), "the header goes beyond the file's end"),
        (file(counts=(0, 1 << 40)), "the header goes beyond the file's end"),
    ],
    ids=range(10),
)
def test_what_is_no_file_of_these(tmp_path, content, words):
    assert words in refusal(tmp_path, content)


def test_a_big_endian_file_of_the_packages(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("t", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedFormat, match="big-endian"):
        read_gguf(tmp_path / "x.gguf")


DEEP = array(U8, [1])
for _ in range(8):
    DEEP = array(ARRAY, [DEEP])
HUGE = 1 << 60


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([pair("a", 1), pair("a", 2)], "metadata a is there twice"),
        ([pair(b"\xff", 1)], r"the key of metadata 0 is not in UTF-8: b'\xff'"),
        ([pair("a", b"\xed\xa0\x80")], "metadata a is not in UTF-8"),
        ([pair("a", array(STRING, ["x", b"\xc3"]))], r"metadata a is not in UTF-8: b'\xc3'"),
        ([pair("a", Raw(13, b"")), bytes(8)], "metadata a has type 13, which GGUF doesn't have"),
        ([pair("a", array(77, [])), bytes(8)], "metadata a has type 77, which GGUF doesn't have"),
        ([pair("a", Raw(BOOL, b"\x02"))], "metadata a is 2, which is no bool"),
        ([pair("a", array(BOOL, [Raw(BOOL, b"\x07")]))], "metadata a is 7, which is no bool"),
        ([pair("a", array(F64, [], HUGE))], "metadata a goes beyond the file's end"),
        ([pair("a", array(U8, [], HUGE))], "metadata a goes beyond the file's end"),
        ([pair("a", array(STRING, [], HUGE))], "metadata a goes beyond the file's end"),
        ([pair("a", array(ARRAY, [], HUGE))], "metadata a goes beyond the file's end"),
        ([pair("a", Raw(STRING, b"\xff" * 8))], "metadata a goes beyond the file's end"),
        (
            [pair("a", array(STRING, [Raw(8, b"\xff" * 8)]))],
            "metadata a goes beyond the file's end",
        ),
        ([pair("a", DEEP)], "metadata a is nested more than 8 deep"),
        ([pair("general.alignment", 0)], "general.alignment is 0, not a power of two"),
        ([pair("general.alignment", 48)], "general.alignment is 48, not a power of two"),
        ([pair("general.alignment", "32")], "general.alignment has type 8, not that of a 32-bit"),
        ([pair("general.alignment", 1.0)], "general.alignment has type 6, not that of a 32-bit"),
        ([pair("general.alignment", value(U64, 32))], "general.alignment has type 10, not that of"),
    ],
    ids=range(20),
)
def test_metadata_that_lies(tmp_path, pairs, words):
    assert words in refusal(tmp_path, file(pairs))


BIG = 1 << 62


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        ([info("t", 0, [1], 0), info("t", 0, [1], 32)], "tensor t is there twice"),
        ([info(b"\xff", 0, [1], 0)], "tensor 0 of 1 is not in UTF-8"),
        ([info("t", 0, [], 0, rank=5)], "tensor t has 5 dimensions, and ggml has 4"),
        ([info("t", 0, [], 0, rank=(1 << 32) - 1)], "tensor t has 4294967295 dimensions"),
        ([info("t", 0, [2, 0], 0)], "tensor t has shape [2, 0] at byte 0"),
        ([info("t", 0, [BIG, 2], 0)], f"tensor t has shape [{BIG}, 2] at byte 0"),
        ([info("t", 0, [BIG, BIG, BIG, BIG], 0)], "tensor t has shape"),
        ([info("t", 0, [BIG], 0)], "truncated or damaged"),
        ([info("t", 0, [1], 1 << 63)], "tensor t has shape [1] at byte 9223372036854775808"),
        ([info("t", 12, [2, 128], 0)], "rows of 128 values, and Q4_K has blocks of 256"),
        ([info("t", 8, [], 0)], "rows of 1 values, and Q8_0 has blocks of 32"),
        ([info("t", 31, [32], 0)], "ggml's type 31 (Q4_0_4_4), which is not read"),
        ([info("t", 42, [32], 0)], "ggml's type 42 (Q2_0), which is not read"),
        ([info("t", 99, [32], 0)], "ggml's type 99, which is not read"),
        (
            [info("t", 0, [1], 4)],
            "tensor t begins at byte 4 of the data, and the one before it ends at 0",
        ),
        ([info("t", 0, [1], 0), info("u", 0, [1], 0)], "tensor u begins at byte 0 of the data"),
        ([info("t", 0, [9], 0), info("u", 0, [1], 32)], "the one before it ends at 64"),
        ([info("t", 0, [1], 0), info("u", 0, [1], 64)], "the one before it ends at 32"),
        ([info("t", 0, [33], 0)], "tensor t: F32 [33] ends at byte"),
    ],
    ids=range(19),
)
def test_tensors_that_lie(tmp_path, infos, words):
    assert words in refusal(tmp_path, file((), infos, bytes(128)))


def test_a_vocabulary_of_a_quarter_million_is_read_soon(tmp_path):
    tokens = [f"token{n}" for n in range(262_144)]
    merges = [f"a{n} b{n}" for n in range(500_000)]
    content = file({"tokens": array(STRING, tokens), "merges": array(STRING, merges)})
    begin = time.process_time()
    found = read(tmp_path, content).metadata
    assert time.process_time() - begin < 1
    assert found["tokens"] == tokens


def test_more_strings_than_any_model_has(tmp_path):
    content = file({"a": Raw(ARRAY, array(STRING, [], 1 << 23).content + bytes(1 << 26))})
    assert "more than 4,194,304 strings and arrays, with metadata a" in refusal(tmp_path, content)


def test_arrays_in_arrays_are_counted(tmp_path):
    inner = Raw(ARRAY, b"".join(array(I8, []).content for _ in range(1000)))
    content = file({"a": Raw(ARRAY, array(ARRAY, [], 1 << 40).content + inner.content)})
    assert "metadata a goes beyond" in refusal(tmp_path, content)
    assert (
        read(tmp_path, file({"a": array(ARRAY, [array(U64, [])] * 3)})).metadata["a"][2].size == 0
    )


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "x.gguf")
    with pytest.raises(CheckpointError, match="is a pipe, not a file"):
        read_gguf(tmp_path / "x.gguf")

"""Headers that lie, and those that don't."""

import math
import struct

import pytest
from safetensors.torch import save
from support.checkpoint_folders import TENSORS, entry, refusal, with_header, write

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.safetensors_files import DTYPE_BITS


def test_truncated_at_any_byte(tmp_path):
    whole = save(TENSORS)
    for size in range(len(whole)):
        model = write(tmp_path, {"model.safetensors": whole[:size]})
        assert f"{model}/model.safetensors: " in refusal(model)


@pytest.mark.parametrize("extra", [1, 8, 4096])
def test_bytes_after_the_last_tensor(tmp_path, extra):
    model = write(tmp_path, {"model.safetensors": save(TENSORS) + bytes(extra)})
    assert "its header describes" in refusal(model)


def test_header_length_beyond_the_file(tmp_path):
    for length in (9, 1 << 31, (1 << 64) - 1):
        model = write(tmp_path, {"model.safetensors": struct.pack("<Q", length) + b"{}"})
        assert "truncated or not safetensors (10 bytes)" in refusal(model)


@pytest.mark.parametrize(
    "header",
    [
        *(b"[]", b"null", b"3", b'"x"', b"{", b"\xff\xfe", b"\x80{}", b"\xef\xbb\xbf{}"),
        *(b'{"a": 1, "a": 1}', b'{"\\ud800": 1}', b'{"a": NaN}', b"[" * 100_000),
        *(b'{"a": Infinity}', b'{"a": ' + b"9" * 5000 + b"}", "{}".encode("utf-16")),
    ],
    ids=range(15),
)
def test_header_that_is_no_object(tmp_path, header):
    model = write(tmp_path, {"model.safetensors": with_header(header)})
    assert "its header is not safetensors' JSON" in refusal(model)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "F32",
        {},
        {"dtype": "F32", "shape": [1]},
        entry(shape=1),
        entry(shape=["x"]),
        entry(shape=None),
        entry(shape=[True]),
        entry(shape=[1.0]),
        entry(shape=["1"]),
        entry(shape=[-1, -1]),
        entry(shape=[0, -1], offsets=[0, 0]),
        entry(shape=[1 << 63]),
        entry(shape=[1] * 65),
        entry(offsets=[0]),
        entry(offsets=[0, 4, 8]),
        entry(offsets=[0, 4.0]),
        entry(offsets=[False, 4]),
        entry(offsets=[-4, 0]),
        entry(offsets="ab"),
    ],
)
def test_malformed_header_entry(tmp_path, value):
    model = write(tmp_path, {"model.safetensors": with_header({"a": value}, bytes(4))})
    assert "tensor a: malformed header entry" in refusal(model)


@pytest.mark.parametrize(
    ("shape", "offsets", "needed"),
    [
        ([2], [0, 4], 8),
        ([1], [0, 3], 4),
        ([1], [0, 8], 4),
        ([1], [4, 0], 4),
        ([], [0, 0], 4),
    ],
)
def test_offsets_that_do_not_fit_the_shape(tmp_path, shape, offsets, needed):
    header = {"a": entry("F32", shape, offsets)}
    model = write(tmp_path, {"model.safetensors": with_header(header, bytes(4))})
    assert f"tensor a: F32 {shape} takes {needed} bytes, its header gives" in refusal(model)


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [([0, 4], [0, 4], 4), ([0, 4], [2, 6], 6), ([0, 4], [8, 12], 12), ([4, 8], [8, 12], 12)],
)
def test_tensors_that_overlap_or_leave_holes(tmp_path, first, second, size):
    header = {"a": entry(offsets=first), "b": entry(offsets=second)}
    model = write(tmp_path, {"model.safetensors": with_header(header, bytes(size))})
    assert "of the data, the one before it ends at" in refusal(model)


def test_offsets_beyond_the_file(tmp_path):
    header = {"a": entry("F32", [1 << 40], [0, 1 << 42])}
    model = write(tmp_path, {"model.safetensors": with_header(header, bytes(4))})
    assert "truncated or damaged" in refusal(model)


@pytest.mark.parametrize("dtype", ["F128", "f32", "", None])
def test_unknown_dtype(tmp_path, dtype):
    model = write(tmp_path, {"model.safetensors": with_header({"a": entry(dtype)}, bytes(4))})
    assert f"tensor a: unknown dtype {dtype}" in refusal(model)


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("F4", [4], 2), ("F6_E2M3", [4], 3), ("BOOL", [3], 3), ("F64", [2, 0], 0), ("I64", [], 8)],
)
def test_sizes_of_dtypes(tmp_path, dtype, shape, size):
    content = with_header({"a": entry(dtype, shape, [0, size])}, bytes(size))
    checkpoint = open_checkpoint(write(tmp_path, {"model.safetensors": content}))
    assert checkpoint.tensors["a"].bytes == size


def test_metadata_is_no_tensor(tmp_path):
    content = with_header({"__metadata__": {"format": "pt"}, "a": entry()}, bytes(4))
    checkpoint = open_checkpoint(write(tmp_path, {"model.safetensors": content}))
    assert list(checkpoint.tensors) == ["a"]


@pytest.mark.parametrize(("dtype", "shape"), [("F4", [3]), ("F6_E2M3", []), ("F6_E3M2", [3])])
def test_elements_that_end_within_a_byte(tmp_path, dtype, shape):
    """safetensors refuses the whole file."""
    size = (math.prod(shape) * DTYPE_BITS[dtype] + 7) // 8
    content = with_header({"a": entry(dtype, shape, [0, size])}, bytes(size))
    words = refusal(write(tmp_path, {"model.safetensors": content}))
    assert words.endswith(f"tensor a: {shape} of {dtype} are no whole bytes")

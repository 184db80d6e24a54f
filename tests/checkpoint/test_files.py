import hashlib
import json
import pickle
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.folder import locate
from scoremode.checkpoint.strict_json import read_json
from scoremode.errors import CheckpointError

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).view(2, 3),
    "a.bias": torch.arange(3, dtype=torch.float16),
    "b.weight": torch.arange(4, dtype=torch.bfloat16),
    "c.weight_shape": torch.tensor([2, 3]),
}
INDEX = "model.safetensors.index.json"


def write(folder: Path, files: dict, weight_map: dict | None = None, config: str = "{}") -> str:
    """A folder of these safetensors files (tensors, or bytes as they are) and perhaps an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(config)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else save(content)
        (folder / name).write_bytes(data)
    if weight_map is not None:
        (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def with_header(header: object, data: bytes = b"") -> bytes:
    """A safetensors file of this header (JSON, or bytes as they are)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.fixture
def single(tmp_path) -> str:
    return write(tmp_path, {"model.safetensors": TENSORS})


@pytest.fixture
def sharded(tmp_path) -> str:
    names = sorted(TENSORS)
    shards = {f"{i}.safetensors": {n: TENSORS[n] for n in names[i::2]} for i in range(2)}
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    return write(tmp_path, shards, weight_map)


def refusal(model: str | Path) -> str:
    """The one line that a checkpoint is refused with."""
    with pytest.raises(CheckpointError) as error:
        open_checkpoint(str(model))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", ["single", "sharded"])
def test_reads_what_was_written(kind, request):
    checkpoint = open_checkpoint(request.getfixturevalue(kind))
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        info = checkpoint.tensors[name]
        assert info.shape == tuple(tensor.shape)
        assert info.elements == tensor.numel()
        assert info.bytes == tensor.nbytes
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert torch.equal(read, tensor)
    assert len(checkpoint.shards) == {"single": 1, "sharded": 2}[kind]
    assert checkpoint.bytes == sum(f.stat().st_size for f in checkpoint.path.glob("*.safetensors"))


def test_one_file_of_any_name_will_do(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path, {"weights.safetensors": TENSORS}))
    assert [file.name for file in checkpoint.shards] == ["weights.safetensors"]


def test_other_files_beside_the_model_are_not_its_weights(single):
    save_file({"a.weight": torch.zeros(1)}, Path(single) / "adapter.safetensors")
    checkpoint = open_checkpoint(single)
    assert [file.name for file in checkpoint.shards] == ["model.safetensors"]


@pytest.mark.parametrize("file", ["../config.json", "/etc/hostname", "a\0b", ".", "x" * 999])
def test_an_index_names_only_files_beside_it(single, file):
    index = {"weight_map": {"a": file}}
    (Path(single) / INDEX).write_text(json.dumps(index))
    assert f"{INDEX}: names the file {file!r}"[:200] in refusal(single)


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_bytes_of_a_tensor_without_torch(sharded, name):
    content = open_checkpoint(sharded).read_bytes(name)
    assert content == TENSORS[name].view(torch.uint8).numpy().tobytes()


def test_reading_bytes_of_a_file_that_became_shorter(single):
    checkpoint = open_checkpoint(single)
    (Path(single) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="has become shorter"):
        checkpoint.read_bytes("a.weight")


def test_several_files_need_an_index(tmp_path):
    model = write(tmp_path, {"1.safetensors": TENSORS, "2.safetensors": {}})
    assert f"2 safetensors files and no {INDEX}" in refusal(model)


def test_reading_an_unknown_tensor(single):
    with pytest.raises(CheckpointError, match=r"no tensor d\.weight"):
        open_checkpoint(single).read("d.weight")


def test_reading_a_file_that_changed_since(single):
    checkpoint = open_checkpoint(single)
    (Path(single) / "model.safetensors").write_bytes(save({"other": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match=r"tensor a\.weight: "):
        checkpoint.read("a.weight")


def test_unaligned_tensors_are_read(tmp_path):
    """The format lets a tensor begin at any byte, and other writers than safetensors make use."""
    numbers = torch.tensor([1.5, -2.0, 3.25])
    words = torch.tensor([-7, 1 << 30], dtype=torch.int32)
    data = b"\x01" + numbers.numpy().tobytes() + words.numpy().tobytes()
    header = {
        "flag": entry("U8", [1], [0, 1]),
        "numbers": entry("F32", [3], [1, 13]),
        "words": entry("I32", [2], [13, 21]),
    }
    for padding in range(8):
        text = json.dumps(header).encode() + b" " * padding
        folder = tmp_path / str(padding)
        checkpoint = open_checkpoint(write(folder, {"model.safetensors": with_header(text, data)}))
        assert torch.equal(checkpoint.read("numbers"), numbers)
        assert torch.equal(checkpoint.read("words"), words)
        assert torch.equal(checkpoint.read("words").view(torch.uint8), words.view(torch.uint8))


def test_missing_shard(sharded):
    (Path(sharded) / "1.safetensors").unlink()
    assert refusal(sharded) == f"{sharded}/1.safetensors: missing shard, named by {INDEX}"


def test_tensor_that_only_the_index_names(tmp_path):
    model = write(tmp_path, {"1.safetensors": TENSORS}, dict.fromkeys(TENSORS, "1.safetensors"))
    index = tmp_path / INDEX
    index.write_text(index.read_text().replace('"a.bias"', '"d.bias"'))
    assert refusal(model) == f"{model}/1.safetensors: tensor d.bias is missing, named by {INDEX}"


def test_tensor_in_another_shard_than_the_index_says(tmp_path):
    shards = {"1.safetensors": {"a": torch.zeros(1)}, "2.safetensors": {"b": torch.zeros(1)}}
    model = write(tmp_path, shards, {"a": "2.safetensors", "b": "1.safetensors"})
    assert f"tensor a is missing, named by {INDEX}" in refusal(model)


def test_tensor_in_two_shards(tmp_path):
    shards = {f"{i}.safetensors": {"a": torch.zeros(1), str(i): torch.zeros(1)} for i in range(2)}
    model = write(tmp_path, shards, {"0": "0.safetensors", "1": "1.safetensors"})
    assert refusal(model) == f"{model}: tensor a is in 0.safetensors and 1.safetensors"


@pytest.mark.parametrize(
    "index", ['{"metadata": {}}', '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}']
)
def test_index_without_files(single, index):
    (Path(single) / INDEX).write_text(index)
    assert "has no weight_map of tensors to files" in refusal(single)


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": {"a"'])
def test_index_that_is_no_object(single, index):
    (Path(single) / INDEX).write_text(index)
    assert INDEX in refusal(single)


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
    [("F4", [3], 2), ("F6_E2M3", [4], 3), ("BOOL", [3], 3), ("F64", [2, 0], 0), ("I64", [], 8)],
)
def test_sizes_of_dtypes(tmp_path, dtype, shape, size):
    content = with_header({"a": entry(dtype, shape, [0, size])}, bytes(size))
    checkpoint = open_checkpoint(write(tmp_path, {"model.safetensors": content}))
    assert checkpoint.tensors["a"].bytes == size


def test_metadata_is_no_tensor(tmp_path):
    content = with_header({"__metadata__": {"format": "pt"}, "a": entry()}, bytes(4))
    checkpoint = open_checkpoint(write(tmp_path, {"model.safetensors": content}))
    assert list(checkpoint.tensors) == ["a"]


def test_folder_without_weights(tmp_path):
    assert refusal(write(tmp_path, {})) == f"{tmp_path}: no safetensors files"


class Trap:
    """Writes a file where it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickle_is_refused_and_not_loaded(tmp_path, name):
    sprung = tmp_path / "sprung"
    payload = pickle.dumps(Trap(sprung))
    model = write(tmp_path / "model", {name: payload})
    message = refusal(model)
    assert f"weights only as pickle ({name}), which is never loaded" in message
    assert "save_pretrained" in message
    assert not sprung.exists()
    pickle.loads(payload)  # noqa: S301
    assert sprung.exists()


@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
def test_gguf_is_named(tmp_path, config):
    """Such folders often have no config.json: the file carries its own."""
    if config:
        (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    message = refusal(str(tmp_path))
    assert message.startswith(f"{tmp_path}: weights only as GGUF (model-Q4_K_M.gguf)")
    assert "llama-perplexity" in message


def test_a_gguf_file_is_not_asked_to_be_a_folder(tmp_path):
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(b"GGUF")
    assert refusal(str(file)).startswith(f"{file}: GGUF is not decoded here")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nosuch", "a/b/c"])
def test_what_is_no_name_on_the_hub_is_not_asked_for_there(name):
    assert refusal(name) == f"{name}: no such folder"


def test_pickle_beside_safetensors_is_left_alone(single):
    (Path(single) / "pytorch_model.bin").write_bytes(b"not even pickle")
    assert set(open_checkpoint(single).tensors) == set(TENSORS)


def test_no_config(single):
    (Path(single) / "config.json").unlink()
    assert refusal(single) == f"{single}/config.json: No such file or directory"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("{'a': 1}", "not JSON"),
        ('{"a": 1, "a": 2}', "not JSON: 'a' is written twice"),
        ('{"a": "\\ud800"}', "not JSON: holds half a surrogate pair"),
        ('{"a": ' * 70 + "1" + "}" * 70, "not JSON: nested too deeply"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ("[1]", "holds a list, not an object"),
        ("null", "holds a NoneType, not an object"),
    ],
)
def test_config_that_is_no_json_object(single, text, message):
    (Path(single) / "config.json").write_text(text)
    assert refusal(single).startswith(f"{single}/config.json: {message}")


def test_json_in_another_encoding(tmp_path):
    (tmp_path / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(CheckpointError, match="not JSON"):
        read_json(tmp_path / "config.json")


def test_a_file_is_no_model(single):
    file = f"{single}/model.safetensors"
    assert refusal(file) == f"{file} is a file: give the model's folder or its hub id"


def test_a_folder_has_no_revisions(single):
    with pytest.raises(CheckpointError, match="is a folder: --revision main has no meaning"):
        locate(single, "main")


def test_fingerprint_follows_the_config_and_every_header(tmp_path):
    def fingerprint(tensors: dict, config: str = "{}", name: str = "model") -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return open_checkpoint(
            write(folder, {f"{name}.safetensors": tensors}, config=config)
        ).fingerprint

    zeros = torch.zeros(2, 3)
    base = fingerprint({"a": zeros})
    assert fingerprint({"a": zeros}) == base
    assert fingerprint({"a": zeros + 1}) == base
    changed = [
        fingerprint({"b": zeros}),
        fingerprint({"a": zeros.T.contiguous()}),
        fingerprint({"a": zeros.flatten()}),
        fingerprint({"a": zeros.int()}),
        fingerprint({"a": zeros, "b": zeros.clone()}),
        fingerprint({"a": zeros}, '{"x": 1}'),
        fingerprint({"a": zeros}, name="other"),
    ]
    assert len({base, *changed}) == 1 + len(changed)


def test_fingerprint_ignores_the_order_of_the_config(tmp_path):
    prints = {
        open_checkpoint(write(tmp_path, {"model.safetensors": TENSORS}, config=config)).fingerprint
        for config in ('{"a": 1, "b": 2}', '{"b": 2,  "a": 1}')
    }
    assert len(prints) == 1


def test_hash_files_are_the_hashes_of_the_files(sharded):
    hashes = open_checkpoint(sharded).hash_files()
    assert set(hashes) == {"config.json", "0.safetensors", "1.safetensors"}
    for name, digest in hashes.items():
        assert digest == hashlib.sha256((Path(sharded) / name).read_bytes()).hexdigest()


def test_hash_of_a_file_larger_than_one_read(tmp_path):
    tensors = {"a": torch.arange(3 << 20, dtype=torch.int16)}
    model = write(tmp_path, {"model.safetensors": tensors})
    expected = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert open_checkpoint(model).hash_files()["model.safetensors"] == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [({"a": 1}, {"a": 1}), ({"a": 1, "text_config": {"b": 2}}, {"b": 2})],
)
def test_text_config_is_the_language_models_part(config, expected):
    assert Checkpoint(Path(), "", config, {}).text_config == expected

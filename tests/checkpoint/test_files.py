"""Checkpoints are read as they were written, and no byte else."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from support.checkpoint_folders import INDEX, TENSORS, entry, refusal, with_header, write

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.errors import CheckpointError


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
    assert len(checkpoint.weight_files) == {"single": 1, "sharded": 2}[kind]
    assert checkpoint.bytes == sum(f.stat().st_size for f in checkpoint.path.glob("*.safetensors"))


@pytest.mark.parametrize("name", sorted(TENSORS))
def test_bytes_of_a_tensor_without_torch(sharded, name):
    content = open_checkpoint(sharded).read_bytes(name)
    assert content == TENSORS[name].view(torch.uint8).numpy().tobytes()


def test_reading_bytes_of_a_file_that_became_shorter(single):
    checkpoint = open_checkpoint(single)
    (Path(single) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="has become shorter"):
        checkpoint.read_bytes("a.weight")


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


def test_modelopts_own_file_is_part_of_the_checkpoint(single):
    """Where config.json says nothing it decides what the weights mean."""
    without, file = open_checkpoint(single), Path(single) / "hf_quant_config.json"
    assert without.modelopt is None and without.quantization is None
    prints = {without.fingerprint}
    for algorithm in ("FP8", "NVFP4"):
        file.write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
        found = open_checkpoint(single)
        said = {"quant_method": "modelopt", "quantization": {"quant_algo": algorithm}}
        assert found.quantization == said
        prints.add(found.fingerprint)
        assert found.hash_files()[file.name] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert len(prints) == 3
    (Path(single) / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    assert open_checkpoint(single).quantization == {"quant_method": "awq"}
    file.write_text("[]")
    with pytest.raises(CheckpointError, match=r"hf_quant_config.json: holds a list"):
        open_checkpoint(single)


OWN = {
    "quantize_config.json": ("gptq", {"bits": 4, "group_size": 128, "desc_act": True}),
    "quant_config.json": ("awq", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}),
}


@pytest.mark.parametrize("name", OWN)
def test_gptqs_and_awqs_own_files_are_part_of_the_checkpoint(tmp_path, name):
    """Where config.json says nothing, and tensors are theirs."""
    method, fields = OWN[name]
    packed = {"model.safetensors": {"a.qweight": torch.zeros(2, 2, dtype=torch.int32)}}
    model, file = write(tmp_path / "packed", packed), tmp_path / "packed" / name
    without = open_checkpoint(model)
    file.write_text(json.dumps(fields))
    found = open_checkpoint(model)
    assert without.quantization is None
    assert found.quantization == fields | {"quant_method": method}
    assert found.fingerprint != without.fingerprint
    assert found.hash_files()[name] == hashlib.sha256(file.read_bytes()).hexdigest()
    # GPTQModel says the method, of AWQ's weights too.
    file.write_text(json.dumps(fields | {"quant_method": "awq"}))
    assert open_checkpoint(model).quantization == fields | {"quant_method": "awq"}
    (tmp_path / "packed" / "config.json").write_text('{"quantization_config": {"bits": 8}}')
    assert open_checkpoint(model).quantization == {"bits": 8}
    dense = write(tmp_path / "dense", {"model.safetensors": TENSORS})
    (tmp_path / "dense" / name).write_text(json.dumps(fields))
    assert open_checkpoint(dense).quantization is None


def test_files_of_two_libraries_are_refused(tmp_path):
    packed = {"model.safetensors": {"a.qweight": torch.zeros(2, 2, dtype=torch.int32)}}
    model = write(tmp_path, packed)
    for name in OWN:
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"both quantize_config.json and quant_config.json"):
        open_checkpoint(model)
    (tmp_path / "quant_config.json").unlink()
    (tmp_path / "quantize_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"quantize_config.json: holds a list"):
        open_checkpoint(model)


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


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"quantization": {"bits": 4}}, {"bits": 4}),
        ({"quantization": {"bits": 8}, "quantization_config": {"bits": 8}}, {"bits": 8}),
        ({"text_config": {"quantization": {"bits": 4}}}, {"bits": 4}),
        ({"quantization": "none"}, None),
    ],
)
def test_mlx_has_another_name_for_it(tmp_path, config, found):
    path = write(tmp_path, {"model.safetensors": TENSORS}, config=json.dumps(config))
    assert open_checkpoint(path).quantization == found


def test_metadata_of_all_files(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weight_map = {}
    for i, (name, tensor) in enumerate(TENSORS.items()):
        file = f"model-{i}.safetensors"
        (tmp_path / file).write_bytes(save({name: tensor}, {f"about {name}": str(i)}))
        weight_map[name] = file
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    found = open_checkpoint(str(tmp_path)).metadata()
    assert found == {f"about {name}": str(i) for i, name in enumerate(TENSORS)}

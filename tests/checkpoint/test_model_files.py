"""Which of a folder's files are a model's weights, and what is refused by its name."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoint_folders import INDEX, TENSORS, refusal, write
from support.gguf.files import llama

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import models_in, refuse_adapter, resolve_model
from scoremode.errors import CheckpointError, UnsupportedFormat


def test_one_file_of_any_name_will_do(tmp_path):
    checkpoint = open_checkpoint(write(tmp_path, {"weights.safetensors": TENSORS}))
    assert [file.name for file in checkpoint.weight_files] == ["weights.safetensors"]


def test_other_files_beside_the_model_are_not_its_weights(single):
    save_file({"a.weight": torch.zeros(1)}, Path(single) / "adapter.safetensors")
    checkpoint = open_checkpoint(single)
    assert [file.name for file in checkpoint.weight_files] == ["model.safetensors"]


@pytest.mark.parametrize("file", ["../config.json", "/etc/hostname", "a\0b", ".", "x" * 999])
def test_an_index_names_only_files_beside_it(single, file):
    index = {"weight_map": {"a": file}}
    (Path(single) / INDEX).write_text(json.dumps(index))
    assert f"{INDEX}: names the file {file!r}"[:200] in refusal(single)


def test_several_files_need_an_index(tmp_path):
    model = write(tmp_path, {"1.safetensors": TENSORS, "2.safetensors": {}})
    assert f"2 safetensors files and no {INDEX}" in refusal(model)


def test_missing_shard(sharded):
    (Path(sharded) / "1.safetensors").unlink()
    assert refusal(sharded) == f"{sharded}/1.safetensors: missing weight file, named by {INDEX}"


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
def test_a_folders_only_gguf_file_is_its_model(tmp_path, config):
    """Such folders often have no config.json: the file carries its own."""
    if config:
        (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(llama())
    files = resolve_model(str(tmp_path))
    assert (files.path, files.source) == (file, str(file))
    assert open_checkpoint(str(tmp_path)).path == file


def test_safetensors_come_before_gguf(tmp_path):
    model = write(tmp_path, {"model.safetensors": TENSORS})
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"")
    files = resolve_model(model)
    assert (files.path, files.source) == (tmp_path, model)


def test_which_of_several_gguf_files(tmp_path):
    for name in ("b-Q8_0.gguf", "a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-b.gguf"):
        (tmp_path / name).write_bytes(b"")
    assert refusal(str(tmp_path)).endswith("its models? a-00001-of-00002.gguf, b-Q8_0.gguf")


def test_folders_of_models_beside_gguf_files_are_not_left_out(tmp_path, single):
    """One GGUF file beside a quant's folder is not all that the folder has."""
    folder = tmp_path / "quants"
    for name in ("notes", "folder.gguf", "split"):
        (folder / name).mkdir(parents=True)
    (folder / "mmproj-x.gguf").touch()
    assert models_in(folder) == [] and models_in(Path(single)) == []
    file = folder / "x-Q4_K_M.gguf"
    file.write_bytes(llama())
    assert resolve_model(str(folder)).path == file
    (folder / "W4A16").symlink_to(single)
    (folder / "split" / "y-00001-of-00002.gguf").touch()
    assert refusal(str(folder)).endswith("which of its models? W4A16, split, x-Q4_K_M.gguf")


def test_a_gguf_file_is_a_model(tmp_path):
    file = tmp_path / "model-Q4_K_M.gguf"
    file.write_bytes(llama())
    files = resolve_model(str(file))
    assert (files.path, files.source) == (file, str(file))
    with pytest.raises(CheckpointError, match="is a file: --revision v1 has no meaning"):
        resolve_model(str(file), "v1")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("wiki.raw", b"x" + "ß".encode() * 4096, "or a hub id, and the text with -f "),
        ("rows.jsonl", b"{}", "is a file of rows: "),
        ("config.json", b"{}", "is a file: give the model's folder"),
        ("model.pt", b"PK\3\4\0", "is a file: give the model's folder"),
    ],
)  # fmt: skip
def test_a_text_in_the_models_place_is_told_where_it_belongs(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    assert words in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["x.gguf", "quants/x.gguf", "a/b/c", "quants/", "./x", "~/x"])
def test_a_path_that_is_not_there_is_not_asked_for_on_the_hub(name, monkeypatch):
    monkeypatch.setattr("scoremode.lib.hub.find_revision", lambda *_: pytest.fail("asked"))
    with pytest.raises(CheckpointError, match=f"^{name}: no such (file|folder)$"):
        resolve_model(name)


def test_another_file_is_none(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"")
    assert refusal(tmp_path / "model.bin").endswith(
        "give the model's folder, a .gguf file or a hub id"
    )


def test_a_gguf_file_that_is_not_there():
    assert refusal("./no/such.gguf") == "./no/such.gguf: no such file"


@pytest.mark.parametrize("name", ["/no/such/folder", "./nosuch", "a/b/c"])
def test_what_is_no_name_on_the_hub_is_not_asked_for_there(name):
    assert refusal(name) == f"{name}: no such folder"


def test_pickle_beside_safetensors_is_left_alone(single):
    (Path(single) / "pytorch_model.bin").write_bytes(b"not even pickle")
    assert set(open_checkpoint(single).tensors) == set(TENSORS)


def test_a_file_is_no_model(single):
    file = f"{single}/model.safetensors"
    assert refusal(file) == f"{file} is a file: give the model's folder, a .gguf file or a hub id"


def test_a_folder_has_no_revisions(single):
    with pytest.raises(CheckpointError, match="is a folder: --revision main has no meaning"):
        resolve_model(single, "main")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            '{"peft_type": "LORA", "base_model_name_or_path": "lab/base"}',
            "a LORA adapter for lab/base",
        ),
        ("{}", "an adapter, and no model: merge it"),
    ],
)
def test_an_adapter_is_no_model(tmp_path, config, said):
    (tmp_path / "adapter_config.json").write_text(config)
    save_file({"a": torch.zeros(1)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UnsupportedFormat) as error:
        refuse_adapter(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: {said}")
    # Beside a model it is only another file.
    write(tmp_path, {"model.safetensors": TENSORS})
    refuse_adapter(tmp_path)


def test_a_folder_of_two_models_is_refused(tmp_path):
    """transformers takes the single file, vLLM what the index names."""
    shard = "model-00001-of-00001.safetensors"
    folder = write(
        tmp_path, {shard: TENSORS, "model.safetensors": TENSORS}, dict.fromkeys(TENSORS, shard)
    )
    assert refusal(folder).startswith(f"{folder}: holds two models, model.safetensors, which trans")
    # An index may name that very file.
    one = "model.safetensors"
    write(tmp_path / "one", {one: TENSORS}, dict.fromkeys(TENSORS, one))
    assert open_checkpoint(str(tmp_path / "one")).tensors.keys() == TENSORS.keys()


def test_mistrals_own_file_alone(tmp_path):
    folder = write(tmp_path, {"consolidated.safetensors": TENSORS})
    open_checkpoint(folder)
    (tmp_path / "params.json").write_text("{}")
    assert "consolidated.safetensors alone has its tensors under the names of" in refusal(folder)
    write(tmp_path, {"consolidated.safetensors": TENSORS, "model.safetensors": TENSORS})
    assert open_checkpoint(folder).weight_files == [tmp_path / "model.safetensors"]

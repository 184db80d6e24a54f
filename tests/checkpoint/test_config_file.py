"""A config that comes alone."""

import json

import pytest

from scoremode.checkpoint.files import opened_config
from scoremode.errors import CheckpointError


def test_messages_name_the_file_that_was_given(tmp_path):
    file = tmp_path / "a-model.json"
    file.write_text(json.dumps({"model_type": "llama", "hidden_size": 64}))
    with opened_config(str(file)) as (checkpoint, shown):
        assert checkpoint.config["hidden_size"] == 64 and checkpoint.tensors == {}
        assert json.loads((checkpoint.path / "config.json").read_text()) == checkpoint.config
        said = shown({"a": [f"{checkpoint.path}: no", f"{checkpoint.path / 'config.json'}: no", 3]})
    assert said == {"a": [f"{file}: no", f"{file}: no", 3]}
    assert not checkpoint.path.exists()


def test_modelopts_file_beside_belongs_to_it(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text('{"quantization": {"quant_algo": "FP8"}}')
    with opened_config(str(tmp_path / "config.json")) as (checkpoint, shown):
        said = {"quantization": {"quant_algo": "FP8"}}
        assert checkpoint.modelopt == said
        assert checkpoint.quantization == said | {"quant_method": "modelopt"}
        copied = checkpoint.path / "hf_quant_config.json"
        assert copied.read_bytes() == beside.read_bytes()
        assert shown(f"{copied}: no") == f"{beside}: no"
    with opened_config(str(beside)) as (checkpoint, shown):
        assert checkpoint.config == {} and checkpoint.modelopt == said
        assert shown(f"{checkpoint.path / 'hf_quant_config.json'}: no") == f"{beside}: no"


def test_gptqs_file_beside_belongs_to_a_config_that_says_nothing(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "quantize_config.json").write_text('{"bits": 4, "group_size": 128}')
    with opened_config(str(tmp_path / "config.json")) as (checkpoint, _):
        expected = {"bits": 4, "group_size": 128, "quant_method": "gptq"}
        assert checkpoint.quantization == expected
    (tmp_path / "other.json").write_text('{"model_type": "llama"}')
    with opened_config(str(tmp_path / "other.json")) as (checkpoint, _):
        assert checkpoint.quantization is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "holds a list"),
        ('{"hidden_size": 0}', "hidden_size is 0"),
    ],
)
def test_files_that_are_no_config(tmp_path, content, words):
    file = tmp_path / "c.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(CheckpointError, match=words), opened_config(str(file)):
        pass

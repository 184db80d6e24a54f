import json

import pytest
import torch
from support.checkpoint_folders import write
from support.schemes import group, quantization
from transformers.utils.quantization_config import QuantizationMethod

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.resolve import READ, foreign_method, method_of, refuse_transforms


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "exl2", "bits": 4.0}, ("'exl2'", "ExLlamaV2")),
        ({"quant_method": "fbgemm_fp8"}, ("'fbgemm_fp8'", "FBGEMM")),
        ({"quant_method": "quanto", "weights": "int8"}, ("'quanto'", "optimum-quanto")),
        ({"quant_method": "tomorrow"}, ("'tomorrow': not known",)),
        ({"quant_method": 4}, ("4: not known",)),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
def test_another_librarys_config_is_refused_by_its_name(config, words):
    assert method_of(config) not in READ
    message = foreign_method(config)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert message.startswith("quantization method ")


@pytest.mark.parametrize("method", QuantizationMethod)
def test_every_method_of_transformers_is_read_or_refused(method):
    refused = foreign_method({"quant_method": method.value})
    assert (method.value in READ) or f"quantization method {method.value!r}" in refused


@pytest.mark.parametrize("change", [{}, {"quant_method": None}])
def test_groups_without_a_method_are_ours(change):
    config = quantization({"g": group()}) | change
    assert method_of(config) in (None, "compressed-tensors")
    del config["quant_method"]
    assert method_of(config) is None


def refused_transform(folder, config, **beside) -> str | None:
    """What `refuse_transforms` says of a folder of this config, and of other files in it."""
    path = write(
        folder, {"model.safetensors": {"a.weight": torch.ones(2, 2)}}, None, json.dumps(config)
    )
    for name, content in beside.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    try:
        refuse_transforms(open_checkpoint(path))
    except UnsupportedFormat as error:
        return str(error)
    return None


GPTQ = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"rotation": "hadamard"}, "rotation 'hadamard'"),
        ({"dynamic": {"m.1": {"rotation": "random"}}}, "dynamic, m.1, rotation 'random'"),
        ({"rotation_config": {"a": 1}}, "rotation_config {'a': 1}"),
        ({"hadamard_config": {"block_size": 32}}, "hadamard_config {'block_size': 32}"),
        ({"spinquant_config": {"r3": True}}, "spinquant_config {'r3': True}"),
        (
            {"transform_config": {"config_groups": {"R1": {}}}},
            "transform_config {'config_groups': {'R1': {}}}",
        ),
        ({"rotate": {"enable": True}}, "rotate {'enable': True}"),
        ({"groups": [{"online_rotation": True}]}, "groups, online_rotation True"),
    ],
)
def test_changed_inputs_are_refused_wherever_they_are_said(tmp_path, said, words):
    for n, place in enumerate(("quantization_config", "compression_config", "quantization")):
        found = refused_transform(tmp_path / str(n), {place: GPTQ | said})
        assert found and f"config.json, {place}, {words} says that weights" in found
    nested = refused_transform(
        tmp_path / "n", {"text_config": {"quantization_config": GPTQ | said}}
    )
    assert nested and f"config.json, text_config.quantization_config, {words} says" in nested
    # The other file says it, and config.json nothing.
    for name in ("quantize_config", "quant_config", "quantization_config"):
        config = {"quantization_config": GPTQ}
        found = refused_transform(tmp_path / name, config, **{name: said})
        assert found and f"{name}.json, {words} says that weights" in found
    beside = refused_transform(tmp_path / "modelopt", {}, hf_quant_config={"quantization": said})
    assert beside and f"hf_quant_config.json, quantization, {words} says" in beside


def test_changed_inputs_of_a_dense_model(tmp_path):
    found = refused_transform(tmp_path, {"hadamard_config": {"block_size": 32}})
    assert found and "config.json, hadamard_config {'block_size': 32} says" in found


@pytest.mark.parametrize(
    "said",
    [
        {"transform_config": {}, "rotation": None, "rotated": False, "hadamard": "none"},
        {"transform_config": {"config_groups": {}}, "rotate": {"enable": False, "mode": "x"}},
        {"hadamard": "False", "rotation": "off", "online_rotation": [None]},
        {"meta": {"opt_rotation_epochs": 10, "opt_fused_rotation": True}},
        {"cls.transform.dense": {"bits": 4}, "transformers_version": "5.23.0"},
    ],
)
def test_what_changes_no_input_is_left_alone(tmp_path, said):
    assert (
        refused_transform(tmp_path, {"rope_scaling": None, "quantization_config": GPTQ | said})
        is None
    )

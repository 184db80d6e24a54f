"""Every parameter has its tensor and every tensor of the model its use, or it is one clear error."""

import pytest
import torch
from engine_helpers import make_engine
from models import (
    edit_config,
    edit_tensors,
    make_checkpoint,
)
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from scoremode.demo.quantize import VARIANTS
from scoremode.errors import CheckpointError


def change_tensor(name, change):
    def edit(tensors):
        value = change(tensors[name])
        del tensors[name]
        if value is not None:
            tensors[name] = value

    return edit


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (change_tensor(Q, lambda t: None), "no tensor for parameter model.layers.1.self_attn.q_p"),
        (change_tensor(Q, lambda t: t[:-1].clone()), r"q_proj.weight has shape \[31, 32\]"),
        (change_tensor(Q, lambda t: t.to(torch.int16)), "no quantization|says nothing|dtype"),
        (
            lambda tensors: tensors.update({Q + "_extra": torch.ones(3)}),
            "weight_extra belongs to a layer",
        ),
    ],
    ids=["missing", "shape", "dtype", "extra"],
)
def test_damaged_checkpoint_is_one_clear_error(edit, message, tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, edit)
    with pytest.raises(CheckpointError, match=message) as error:
        make_engine(folder)
    assert "\n" not in str(error.value)


def test_unused_tensor_of_no_module_is_recorded(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, lambda t: t.update({"vision.patch.weight": torch.ones(2, 2)}))
    assert make_engine(folder).describe()["unused_tensors"] == ["vision.patch.weight"]


def test_layers_beyond_the_configs_are_refused_unless_they_only_predict(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, lambda t: t.update({"model.layers.3.eh_proj.weight": torch.ones(2, 2)}))
    with pytest.raises(CheckpointError, match=r"layers\.3\.eh_proj\.weight belongs to a layer"):
        make_engine(folder)
    edit_config(folder, num_nextn_predict_layers=1)
    assert make_engine(folder).describe()["unused_tensors"] == ["model.layers.3.eh_proj.weight"]
    edit_config(folder, num_hidden_layers=2, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match=r"layers\.2"):
        make_engine(folder)


def test_missing_stored_buffer_is_refused(tmp_path, monkeypatch):
    folder = make_checkpoint(tmp_path, "llama")

    def with_buffer(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.register_buffer("layer_scalar", torch.ones(1))

    original = LlamaDecoderLayer.__init__
    monkeypatch.setattr(LlamaDecoderLayer, "__init__", with_buffer)
    with pytest.raises(CheckpointError, match=r"buffer model\.layers\.0\.layer_scalar"):
        make_engine(folder)


def test_stored_dense_and_declared_quantized_is_refused(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, quantization_config=VARIANTS[0].config())
    with pytest.raises(CheckpointError, match="stored dense"):
        make_engine(folder)


@pytest.mark.parametrize("field", ["num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers"])
def test_layers_that_only_predict_are_not_the_models(field, tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, lambda t: t.update({"model.layers.3.eh_proj.weight": torch.ones(2, 2)}))
    with pytest.raises(CheckpointError, match=r"layers\.3\.eh_proj"):
        make_engine(folder)
    edit_config(folder, **{field: 1})
    assert make_engine(folder).describe()["unused_tensors"] == ["model.layers.3.eh_proj.weight"]


@pytest.mark.parametrize("name", ["model.embed_norm.weight", "model.scale"])
def test_what_lies_in_a_plain_model_and_is_not_used_is_refused(name, tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, lambda t: t.update({name: torch.ones(32)}))
    with pytest.raises(CheckpointError, match=f"tensor {name} belongs to"):
        make_engine(folder)

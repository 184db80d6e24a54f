"""Every parameter has its tensor and every tensor of the model its use, or it is one clear error."""

import pytest
import torch
from support.engine import make_engine
from support.models import (
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

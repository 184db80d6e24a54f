"""Tensors that nothing uses are recorded, or one clear error."""

import pytest
import torch
from support.engine import make_engine
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.errors import CheckpointError


def test_unused_tensor_of_no_module_is_recorded(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_tensors(folder, lambda t: t.update({"vision.patch.weight": torch.ones(2, 2)}))
    assert make_engine(folder).describe()["unused_tensors"] == ["vision.patch.weight"]


def test_layers_beyond_the_configs_are_refused(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, num_hidden_layers=2, num_nextn_predict_layers=0)
    with pytest.raises(CheckpointError, match=r"layers\.2"):
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

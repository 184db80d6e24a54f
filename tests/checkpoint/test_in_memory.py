"""A module in a checkpoint's place."""

import pytest
import torch
from support.models import library_model
from torch import nn

from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.errors import CheckpointError


@pytest.fixture
def module(demo):
    return library_model(demo / "model", torch.bfloat16)


def test_it_is_known_by_its_bytes(module, tmp_path):
    made = ModuleInMemory.of(module, tmp_path)
    first = made.hash_files()
    assert made.source == made.place == "LlamaForCausalLM in memory"
    assert (tmp_path / "config.json").exists() and made.config["model_type"] == "llama"
    # A tied head lies where the embedding does.
    tied = module.lm_head.weight.data_ptr() == module.model.embed_tokens.weight.data_ptr()
    wanted = sum(p.numel() * 2 for p in module.parameters())
    assert tied and made.bytes == wanted and made.summary()["bytes"] == wanted
    assert made.summary()["bits_per_weight"] == {"body": None, "file": None}
    with torch.no_grad():
        module.model.norm.weight[0] += 1
    again = ModuleInMemory.of(module, tmp_path)
    assert again.hash_files() != first and again.fingerprint == made.fingerprint
    assert again.hash_files().keys() == {"state_dict"}


def test_a_module_that_is_trained_meanwhile_is_found(module, tmp_path):
    made = ModuleInMemory.of(module, tmp_path)
    made.check_unchanged()
    with torch.no_grad():
        module.model.layers[0].mlp.up_proj.weight.mul_(2)
    with pytest.raises(CheckpointError, match="was changed while it was in use"):
        made.check_unchanged()
    made = ModuleInMemory.of(module, tmp_path)
    module.model.norm.weight = nn.Parameter(module.model.norm.weight.detach().clone())
    with pytest.raises(CheckpointError, match="was changed"):
        made.check_unchanged()


def test_a_module_that_says_nothing_of_itself_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="Linear: has no config of transformers'"):
        ModuleInMemory.of(nn.Linear(2, 2), tmp_path)


class CodesAndScale(torch.Tensor):
    """A weight as torchao has one: a tensor of a class of its own, without memory of its own."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.bfloat16)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return CodesAndScale(args[0].codes, args[0].scale)
        raise NotImplementedError(func)


def test_a_weight_of_a_class_of_its_own_counts_with_what_it_is_made_of(module, tmp_path):
    codes, scale = torch.ones(4, 8, dtype=torch.int8), torch.ones(4)
    made = nn.Module()
    made.config = module.config
    made.weight = nn.Parameter(CodesAndScale(codes, scale), requires_grad=False)
    first = ModuleInMemory.of(made, tmp_path)
    assert first.bytes == 4 * 8 + 4 * 4 and first.summary()["formats"]["bfloat16"]["bytes"] == 48
    hashes = first.hash_files()
    scale[0] = 2
    with pytest.raises(CheckpointError, match="was changed"):
        first.check_unchanged()
    assert ModuleInMemory.of(made, tmp_path).hash_files() != hashes

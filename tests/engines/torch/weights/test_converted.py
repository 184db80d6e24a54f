"""Parameters made of other tensors by the library's conversion rules."""

import re

import numpy as np
import pytest
import torch
from support.models import edit_config, edit_tensors, make_checkpoint, random_plan
from support.schemes import arguments, compress, decompress, group, quantization
from transformers import conversion_mapping, core_model_loading
from transformers.core_model_loading import Chunk, Concatenate, Transpose, WeightConverter

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import CheckpointError
from scoremode.results.scores import concatenate

QKV = [f"self_attn.{x}_proj.weight" for x in "qkv"]
cuts = pytest.mark.skipif(
    not hasattr(core_model_loading, "Split"), reason="this transformers has no rule that cuts"
)


def score(folder, **options):
    options.setdefault("dtype", "float32")
    engine = build_engine(open_checkpoint(str(folder)), TorchOptions(device="cpu", **options))
    plan = random_plan()
    return concatenate(list(engine.score(plan, engine.schedule(plan)))).logprob


@pytest.fixture
def rules(monkeypatch):
    """Adds conversion rules to the library's."""
    own = conversion_mapping.get_model_conversion_mapping

    def add(*converters):
        monkeypatch.setattr(
            conversion_mapping,
            "get_model_conversion_mapping",
            lambda model: [*own(model), *converters],
        )

    return add


def fuse_qkv(tensors):
    for name in [n for n in tensors if n.endswith(QKV[0])]:
        prefix = name.removesuffix(QKV[0])
        parts = [tensors.pop(prefix + part) for part in QKV]
        tensors[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(parts)


@cuts
def test_one_tensor_cut_into_several_parameters(rules, tmp_path):
    before = score(make_checkpoint(tmp_path, "llama"))
    edit_tensors(tmp_path, fuse_qkv)
    with pytest.raises(
        CheckpointError, match=r"no tensor for parameter model\.layers\.0\.self_attn\.q"
    ):
        score(tmp_path)
    rules(WeightConverter("self_attn.qkv_proj.weight", QKV, [core_model_loading.Split(dim=0)]))
    assert np.array_equal(score(tmp_path), before)


@cuts
def test_packed_tensors_are_decoded_before_the_rule_rearranges_them(rules, tmp_path):
    form = arguments(4, "group", 32, True)
    packed = make_checkpoint(tmp_path / "packed", "llama", dtype=torch.bfloat16)
    dense = make_checkpoint(tmp_path / "dense", "llama", dtype=torch.bfloat16)

    def pack(tensors):
        fuse_qkv(tensors)
        for name in [n for n in tensors if "qkv_proj" in n]:
            stored = compress(tensors.pop(name), form)
            tensors |= {f"{name.removesuffix('.weight')}.{s}": t for s, t in stored.items()}

    def decode(tensors):
        for name in [n for n in tensors if re.search(r"[qkv]_proj", n)]:
            tensors[name] = decompress(compress(tensors[name], form), form)

    edit_tensors(packed, pack)
    edit_tensors(dense, decode)
    config = quantization({"group_0": group("re:.*qkv_proj$")})
    edit_config(packed, quantization_config=config)
    rules(WeightConverter("self_attn.qkv_proj.weight", QKV, [core_model_loading.Split(dim=0)]))
    assert np.array_equal(score(packed), score(dense))


def test_several_tensors_put_together(rules, tmp_path):
    before = score(make_checkpoint(tmp_path, "phi3"))
    parts = [f"mlp.{x}_proj.weight" for x in ("gate", "up")]

    def cut(tensors):
        for name in [n for n in tensors if n.endswith("mlp.gate_up_proj.weight")]:
            prefix = name.removesuffix("mlp.gate_up_proj.weight")
            for part, tensor in zip(parts, tensors.pop(name).chunk(2), strict=True):
                tensors[prefix + part] = tensor.contiguous()

    edit_tensors(tmp_path, cut)
    rules(WeightConverter(parts, "mlp.gate_up_proj.weight", [Concatenate(dim=0)]))
    assert np.array_equal(score(tmp_path), before)

    def lose(tensors):
        del tensors[f"model.layers.1.{parts[1]}"]

    edit_tensors(tmp_path, lose)
    with pytest.raises(CheckpointError, match=r"1\.mlp\.gate_up_proj\.weight made of .*\[64, 32\]"):
        score(tmp_path)


def test_a_transposed_tensor_declared_packed_and_stored_dense_is_refused(rules, tmp_path):
    before = score(make_checkpoint(tmp_path, "llama"))

    def transpose(tensors):
        for name in [n for n in tensors if n.endswith("mlp.up_proj.weight")]:
            tensors[name.replace("up_proj", "w3")] = tensors.pop(name).T.contiguous()

    edit_tensors(tmp_path, transpose)
    rules(WeightConverter("mlp.w3.weight", "mlp.up_proj.weight", [Transpose(0, 1)]))
    assert np.array_equal(score(tmp_path), before)
    edit_config(tmp_path, quantization_config=quantization({"group_0": group("re:.*w3$")}))
    with pytest.raises(CheckpointError, match=r"0\.mlp\.w3 is stored dense"):
        score(tmp_path)


def test_a_rule_that_does_not_fit_the_tensors_is_one_clear_error(rules, tmp_path):
    make_checkpoint(tmp_path, "llama")
    edit_tensors(tmp_path, fuse_qkv)
    # Three equal chunks, where the keys and values have half of the queries' rows.
    rules(WeightConverter("self_attn.qkv_proj.weight", QKV, [Chunk(dim=0)]))
    with pytest.raises(CheckpointError, match=r"q_proj\.weight made of .*qkv_proj") as error:
        score(tmp_path)
    assert "\n" not in str(error.value)

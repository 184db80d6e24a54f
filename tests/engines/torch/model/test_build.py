"""From a config to a model without values."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import (
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    random_plan,
)
from torch import nn

from scoremode.engines.torch.model.build import _NoInitialization
from scoremode.errors import UnsupportedModel


def test_only_what_has_values_gets_random_ones():
    real, meta = torch.zeros(64), torch.zeros(64, device="meta")
    for draw in (nn.init.normal_, nn.init.uniform_, nn.init.trunc_normal_, torch.Tensor.normal_):
        with _NoInitialization():
            assert draw(meta) is meta
            draw(real.zero_())
        assert real.count_nonzero() > 32
    with _NoInitialization():
        nn.init.xavier_uniform_(tensor=real.zero_().view(8, 8))
        assert nn.init.kaiming_uniform_(meta.view(8, 8), a=5**0.5).is_meta
    assert real.count_nonzero() > 32


def test_what_is_real_is_drawn_from_the_same_numbers():
    torch.manual_seed(0)
    expected = nn.Linear(4, 4).weight
    torch.manual_seed(0)
    with _NoInitialization():
        nn.Linear(4, 4, device="meta")
        drawn = nn.Linear(4, 4).weight
    assert torch.equal(drawn, expected)


def same_as_library(folder: Path, expected: np.ndarray) -> bool:
    engine = make_engine(folder, dtype="float32", batch_windows=1)
    return bool(np.abs(score(engine, random_plan()).logprob - expected).max() < 2e-6)


def test_longcat_has_half_as_many_layers_as_its_config_counts(tmp_path):
    folder = make_checkpoint(tmp_path, "longcat_flash")
    plan = random_plan()
    engine = make_engine(folder, dtype="float32", batch_windows=1)
    assert (
        len(engine.parts.skeleton.layers) == 2
        and engine.parts.skeleton.config.num_hidden_layers == 4
    )
    theirs = library_logprobs(library_model(folder, torch.float32), plan)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 2e-6


def kimi(folder: Path) -> np.ndarray:
    """Makes a checkpoint as Kimi-K2.5 is stored; the library's own scores of its DeepSeek-V3."""
    make_checkpoint(folder, "deepseek_v3")
    theirs = library_logprobs(library_model(folder, torch.float32), random_plan())
    text = json.loads((folder / "config.json").read_text())
    fields = {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"]}
    vision = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}
    fields |= {"text_config": text, "vision_config": vision, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(fields))

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)

    edit_tensors(folder, rename)
    return theirs


def test_an_encoder_that_can_not_be_built_leaves_the_language_model(tmp_path, monkeypatch):
    """Gemma 3n's needs timm and Pillow."""
    from transformers.models.kimi_k25 import modeling_kimi_k25

    theirs = kimi(tmp_path)
    whole = modeling_kimi_k25.Kimi_K25ForConditionalGeneration
    assert make_engine(tmp_path).identity()["model_class"].endswith(f".{whole.__name__}")
    assert same_as_library(tmp_path, theirs)

    def refuse(*_):
        raise ImportError("Kimi's eyes need the PIL library")

    monkeypatch.setattr(whole, "__init__", refuse)
    assert make_engine(tmp_path).identity()["model_class"].endswith(".DeepseekV3ForCausalLM")
    assert same_as_library(tmp_path, theirs)
    edit_config(tmp_path, model_type="qwen3_vl")
    qwen = "transformers.models.qwen3_vl.modeling_qwen3_vl.Qwen3VLForConditionalGeneration"
    monkeypatch.setattr(f"{qwen}.__init__", refuse)
    with pytest.raises(UnsupportedModel, match="eyes need the PIL library"):
        make_engine(tmp_path)


def test_a_whole_that_hides_its_head_is_its_language_model(tmp_path, monkeypatch):
    """As Nemotron Omni does."""
    from transformers.models.kimi_k25 import modeling_kimi_k25

    theirs = kimi(tmp_path)
    whole = modeling_kimi_k25.Kimi_K25ForConditionalGeneration
    monkeypatch.setattr(whole, "get_output_embeddings", lambda _: None)
    engine = make_engine(tmp_path)
    assert engine.identity()["model_class"].endswith(".DeepseekV3ForCausalLM")
    assert engine.identity()["text_alone"].startswith("KimiK25ForConditionalGeneration")
    assert same_as_library(tmp_path, theirs)

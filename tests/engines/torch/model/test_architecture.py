"""Which class of the library's computes a checkpoint, and what is told of it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.engine import make_engine, score
from support.models import (
    ARCHITECTURES,
    edit_config,
    edit_tensors,
    library_logprobs,
    library_model,
    make_checkpoint,
    needs,
    random_plan,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.cli.inspect import inspect, inspect_config
from scoremode.engines.torch.model.architecture import find_architecture
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.report.inspection import inspect_document
from scoremode.report.terminal import document_text

OWN_CODE = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}


def nest(folder: Path, prefix: str, part: str = "llm_config") -> None:
    """Makes a Llama the language model of something that the library doesn't know."""
    fields = json.loads((folder / "config.json").read_text())
    whole = {"model_type": "seeing", "architectures": ["SeeingModel"], part: fields}
    (folder / "config.json").write_text(json.dumps(whole))

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[prefix + name] = tensors.pop(name)
        tensors["eye.blocks.0.weight"] = torch.ones(2, 2)

    edit_tensors(folder, rename)


def same_as_library(folder: Path, expected: np.ndarray) -> bool:
    engine = make_engine(folder, dtype="float32", batch_windows=1)
    return bool(np.abs(score(engine, random_plan()).logprob - expected).max() < 2e-6)


@pytest.fixture
def expected(tmp_path):
    folder = make_checkpoint(tmp_path / "llama", "llama")
    return library_logprobs(library_model(folder, torch.float32), random_plan())


@pytest.mark.parametrize("part", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_an_unknown_whole_is_found(part, expected, tmp_path):
    folder = tmp_path / "llama"
    nest(folder, "language_model.", part)
    assert same_as_library(folder, expected)
    engine = make_engine(folder)
    assert engine.identity()["text_alone"] == "SeeingModel (model_type seeing)"
    assert engine.identity()["model_class"].endswith(".LlamaForCausalLM")
    assert engine.describe()["unused_tensors"] == ["eye.blocks.0.weight"]
    value = inspect(str(folder), device_name="cpu")
    assert value["computed_by"] == {
        "class": "LlamaForCausalLM",
        "text_alone": "SeeingModel (model_type seeing)",
    }
    assert "LlamaForCausalLM, text alone: no images, no sound" in document_text(
        inspect_document(value)
    )


def test_what_lies_in_the_language_model_and_is_not_used_is_refused(expected, tmp_path):
    folder = tmp_path / "llama"
    nest(folder, "language_model.")
    edit_tensors(folder, lambda t: t.update({"language_model.model.gate.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=r"language_model\.model\.gate\.weight belongs to"):
        make_engine(folder)


@pytest.mark.parametrize(
    "text, whole, told",
    [
        ({"architectures": None}, {}, r"\(llama\) names no class, not LlamaForCausalLM"),
        ({"architectures": ["LlamaModel"]}, {}, r"names LlamaModel, not LlamaForCausalLM"),
        ({}, {"logit_scale": 0.5}, r"its logit_scale is 0.5, and what that changes isn't known"),
        ({}, {"scale_emb": 12}, r"its scale_emb is 12, "),
    ],
)
def test_an_unknown_whole_that_may_do_more_is_refused(text, whole, told, expected, tmp_path):
    """What it makes of a decoder's states or logits is in its own code, which isn't read."""
    folder = tmp_path / "llama"
    nest(folder, "language_model.")
    fields = json.loads((folder / "config.json").read_text())
    fields["llm_config"] |= text
    edit_config(folder, llm_config=fields["llm_config"], auto_map=OWN_CODE, **whole)
    with pytest.raises(UnsupportedModel, match=told) as error:
        make_engine(folder)
    assert str(error.value).endswith("with --trust-remote-code")


@pytest.mark.parametrize("prefix, other", [("language_model.", ""), ("", "model.")])
def test_two_tensors_of_one_name_are_refused(prefix, other, expected, tmp_path):
    """The last of them won: a head beside the language model's own, a layer without its prefix."""
    folder = tmp_path / "llama"
    if prefix:
        nest(folder, prefix)
    name = "lm_head.weight" if prefix else "model.norm.weight"
    again = name.removeprefix(other)

    def double(tensors: dict[str, torch.Tensor]) -> None:
        tensors[again] = tensors[prefix + name] * 0.5

    edit_tensors(folder, double)
    with pytest.raises(CheckpointError, match=f"{again}.* are both the model's {name}"):
        make_engine(folder)


def test_own_code_is_not_asked_for_where_the_library_knows_the_type(expected, tmp_path):
    folder = tmp_path / "llama"
    edit_config(folder, auto_map=OWN_CODE)
    assert same_as_library(folder, expected)


def test_own_code_of_an_unknown_type_is_asked_for_by_name(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, auto_map=OWN_CODE, model_type="own", architectures=["OwnLM"])
    with pytest.raises(UnsupportedModel) as error:
        make_engine(folder)
    told = "OwnLM (model_type own): not known to transformers"
    assert told in str(error.value) and str(error.value).endswith("with --trust-remote-code")


def test_a_known_type_that_predicts_nothing_is_refused_for_that(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, auto_map=OWN_CODE, model_type="vit", architectures=["ViTModel"])
    with pytest.raises(UnsupportedModel, match="has no class that predicts its next token"):
        make_engine(folder)


def test_a_damaged_config_of_a_known_type_is_not_said_to_need_its_code(tmp_path):
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, auto_map=OWN_CODE, initializer_range="wide")
    with pytest.raises(UnsupportedModel, match=r"can't be built: .*initializer_range") as error:
        make_engine(folder)
    assert "\n" not in str(error.value) and "--trust" not in str(error.value)


def test_a_field_that_the_library_trips_over_is_refused(tmp_path):
    """Its own AttributeError; before transformers 5.23 the field's own check of its type."""
    folder = make_checkpoint(tmp_path, "llama")
    edit_config(folder, id2label=0)
    said = r"can't be built: .*( has no attribute|'id2label')"
    with pytest.raises(UnsupportedModel, match=said) as error:
        make_engine(folder, dtype="float32")
    assert "\n" not in str(error.value)


def test_kimi_k2_is_a_deepseek_v3(tmp_path):
    """transformers' own rule, in its configuration of kimi_k25."""
    folder = make_checkpoint(tmp_path, "deepseek_v3")
    plan = random_plan()
    theirs = library_logprobs(library_model(folder, torch.float32), plan)
    edit_config(folder, model_type="kimi_k2", auto_map=OWN_CODE)
    assert same_as_library(folder, theirs)
    assert make_engine(folder).identity()["text_alone"] is None


def test_fields_at_the_top_are_a_text_config_where_the_library_reads_none(tmp_path):
    needs("step3p7")
    (tmp_path / "config.json").write_text("{}")
    fields = {"model_type": "step3p7", "hidden_size": 32, "num_hidden_layers": 5, "vocab_size": 99}
    checkpoint = open_checkpoint(str(make_checkpoint(tmp_path, "llama")))
    object.__setattr__(checkpoint, "config", fields)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    text = find_architecture(checkpoint, trust_remote_code=False).config.get_text_config()
    assert (text.hidden_size, text.num_hidden_layers, text.vocab_size) == (32, 5, 99)


def test_masks_that_old_checkpoints_store_are_not_weights(tmp_path, monkeypatch):
    """As EleutherAI's GPT-Neo has them, whose class computes them now."""
    settings = {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}
    settings["num_hidden_layers"] = None
    monkeypatch.setitem(ARCHITECTURES, "gpt_neo", settings)
    folder = make_checkpoint(tmp_path, "gpt_neo")
    theirs = library_logprobs(library_model(folder, torch.float32, "eager"), random_plan())
    masks = ["transformer.h.1.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"]
    edit_tensors(folder, lambda t: t.update({name: torch.ones(1) for name in masks}))
    assert same_as_library(folder, theirs)
    assert make_engine(folder).describe()["unused_tensors"] == masks


def test_a_config_that_does_not_say_its_model(tmp_path):
    """As where a folder has ModelOpt's own file and an empty config.json."""
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    file = f"{tmp_path / 'config.json'}: no model_type, so which model it is is not known"
    with pytest.raises(UnsupportedModel) as error:
        make_engine(tmp_path)
    assert str(error.value) == file
    beside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    tensors = {"m.weight": torch.ones(4, 4).to(torch.float8_e4m3fn)}
    tensors |= {"m.weight_scale": torch.ones(()), "m.input_scale": torch.ones(())}
    save_file(tensors, tmp_path / "model.safetensors")
    words = "; hf_quant_config.json says only how it is quantized: give the model's own config.json"
    with pytest.raises(UnsupportedModel) as error:
        make_engine(tmp_path)
    assert str(error.value) == f"{file}{words} beside it"
    for value in (
        inspect(str(tmp_path), device_name="cpu"),
        inspect_config(str(tmp_path / "config.json"), device_name="cpu"),
    ):
        assert [r["reason"] for r in value["refusals"]] == [f"{file}{words} beside it"]
    alone = inspect_config(str(tmp_path / "hf_quant_config.json"), device_name="cpu")
    (refusal,) = alone["refusals"]
    assert refusal["reason"].startswith(f"{tmp_path / 'hf_quant_config.json'}: no model_type, so")

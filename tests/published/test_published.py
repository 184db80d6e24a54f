"""Every published config, shrunk and with random weights, against the library's own forward.

Sizes alone are changed (shrink.py), so whatever a real config says is met here: padding ids, nested
parts, layers of many kinds, code of its own. `make test-all` takes one config of each model type, and
`make published-all` the others.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published.shrink import dense_config, shrink
from published.variants import library_class, library_config, make_model, quantize
from safetensors.torch import save_file
from support.engine import make_engine, score
from support.families.float8_blocks import LINEAR
from support.families.float8_blocks import quantize as quantize_blocks
from support.families.modelopt import FORMATS, write_file
from support.models import edit_config, edit_tensors, library_logprobs, random_plan
from transformers.quantizers.quantizers_utils import should_convert_module

from scoremode.cli.inspect import inspect
from scoremode.errors import UnsupportedModel
from scoremode.report.inspection import inspect_document
from scoremode.report.terminal import document_text
from scoremode.runs.planning import plan_text
from scoremode.schemes.modelopt_config import parse_modelopt
from scoremode.text.corpus import from_string
from scoremode.text.protocol import Protocol

# One of each model type, by its class in the library.
KINDS = {
    "MiniMaxAI--MiniMax-M2.7": "MiniMaxM2ForCausalLM",
    "Qwen--Qwen3-0.6B": "Qwen3ForCausalLM",
    "Qwen--Qwen3-Coder-480B-A35B-Instruct": "Qwen3MoeForCausalLM",
    "Qwen--Qwen3-VL-30B-A3B-Instruct": "Qwen3VLMoeForConditionalGeneration",
    "Qwen--Qwen3-VL-4B-Instruct": "Qwen3VLForConditionalGeneration",
    "Qwen--Qwen3.5-35B-A3B": "Qwen3_5MoeForCausalLM",
    "XiaomiMiMo--MiMo-V2-Flash": "MiMoV2FlashForCausalLM",
    "deepseek-ai--DeepSeek-R1": "DeepseekV3ForCausalLM",
    "deepseek-ai--DeepSeek-V3.2": "DeepseekV32ForCausalLM",
    "deepseek-ai--DeepSeek-V4-Flash": "DeepseekV4ForCausalLM",
    "google--gemma-4-26B-A4B": "Gemma4ForConditionalGeneration",
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": "Llama4ForCausalLM",
    "meta-llama--Meta-Llama-3.1-8B": "LlamaForCausalLM",
    "mistralai--Mixtral-8x7B-v0.1": "MixtralForCausalLM",
    "moonshotai--Kimi-K2-Instruct": "DeepseekV3ForCausalLM",
    "moonshotai--Kimi-K2.5": "Kimi_K25ForConditionalGeneration",
    "nvidia--GLM-5-NVFP4": "GlmMoeDsaForCausalLM",
    "zai-org--GLM-5.2": "GlmMoeDsaForCausalLM",
    "nvidia--MiniMax-M3-NVFP4": "MiniMaxM3SparseForConditionalGeneration",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": "NemotronHForCausalLM",
    "nvidia--Qwen3.6-27B-NVFP4": "Qwen3_5ForCausalLM",
    "openai--gpt-oss-120b": "GptOssForCausalLM",
    "stepfun-ai--Step-3.7-Flash-FP8": "Step3p7ForConditionalGeneration",
}
OTHERS = {
    "Qwen--Qwen3-1.7B": "Qwen3ForCausalLM",
    "Qwen--Qwen3-235B-A22B": "Qwen3MoeForCausalLM",
    "Qwen--Qwen3-235B-A22B-FP8": "Qwen3MoeForCausalLM",
    "Qwen--Qwen3-32B": "Qwen3ForCausalLM",
    "Qwen--Qwen3-32B-FP8": "Qwen3ForCausalLM",
    "Qwen--Qwen3-VL-32B-Instruct": "Qwen3VLForConditionalGeneration",
    "Qwen--Qwen3-VL-32B-Thinking": "Qwen3VLForConditionalGeneration",
    "Qwen--Qwen3-VL-8B-Instruct": "Qwen3VLForConditionalGeneration",
    "deepseek-ai--DeepSeek-V3": "DeepseekV3ForCausalLM",
    "meta-llama--Meta-Llama-3.1-405B": "LlamaForCausalLM",
    "meta-llama--Meta-Llama-3.1-70B": "LlamaForCausalLM",
    "nvidia--DeepSeek-V4-Flash-NVFP4": "DeepseekV4ForCausalLM",
    "nvidia--DeepSeek-V4-Pro-NVFP4": "DeepseekV4ForCausalLM",
    "nvidia--Gemma-4-26B-A4B-NVFP4": "Gemma4ForConditionalGeneration",
    "nvidia--Kimi-K2.6-NVFP4": "Kimi_K25ForConditionalGeneration",
    "nvidia--Kimi-K2.7-Code-NVFP4": "Kimi_K25ForConditionalGeneration",
    "nvidia--MiniMax-M2.5-NVFP4": "MiniMaxM2ForCausalLM",
    "nvidia--MiniMax-M2.7-NVFP4": "MiniMaxM2ForCausalLM",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": "NemotronHForCausalLM",
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8": "NemotronHForCausalLM",
    "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": "NemotronHForCausalLM",
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": "NemotronHForCausalLM",
    "nvidia--Nemotron-H-56B-Base-8K": "NemotronHForCausalLM",
    "nvidia--Qwen3-235B-A22B-NVFP4": "Qwen3MoeForCausalLM",
    "nvidia--Qwen3.5-122B-A10B-NVFP4": "Qwen3_5MoeForCausalLM",
    "nvidia--Qwen3.5-397B-A17B-NVFP4": "Qwen3_5MoeForCausalLM",
    "nvidia--Qwen3.6-35B-A3B-NVFP4": "Qwen3_5MoeForCausalLM",
    "zai-org--GLM-5": "GlmMoeDsaForCausalLM",
    "zai-org--GLM-5-FP8": "GlmMoeDsaForCausalLM",
    "zai-org--GLM-5.1-FP8": "GlmMoeDsaForCausalLM",
    "zai-org--GLM-5.2-FP8": "GlmMoeDsaForCausalLM",
}
# The library can't build these (5.23 doesn't know the model type), and neither can we.
UNKNOWN = {
    "MiniMaxAI--MiniMax-M3": r"MiniMaxM3ForCausalLM \(model_type minimax_m3\): not known to",
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": (
        r"DeciLMForCausalLM \(model_type nemotron-nas\): not known to transformers .*; it brings its "
        "own code: read it, then allow it with --trust-remote-code"
    ),
    "sgl-project--DeepSeek-V4-Pro-FP8": r"\(model_type deepseek_ref\): not known to transformers",
}


def case(name: str) -> Any:
    marks = [] if name in KINDS else [pytest.mark.large]
    return pytest.param(name, marks=marks)


@pytest.fixture
def published(data):
    def read(name: str) -> dict[str, Any]:
        return json.loads((data / "configs" / "published" / f"{name}.json").read_text())

    return read


def test_every_config_is_here(data):
    files = (data / "configs" / "published").glob("*.json")
    names = {f.name.removesuffix(".json") for f in files if "hf_quant_config" not in f.name}
    assert names == {*KINDS, *OTHERS, *UNKNOWN}


@pytest.mark.parametrize("name", [case(name) for name in KINDS | OTHERS])
def test_equals_the_librarys_forward(name, published, demo, tmp_path):
    original = published(name)
    fields = shrink(dense_config(original))
    config = library_config(fields)
    model = make_model(tmp_path / "model", fields, config)
    check(tmp_path / "model", name, model)
    check_commands(tmp_path / "model", original, KINDS | OTHERS, name, demo)
    for variant in ("W4A16-g32", "FP8_DYNAMIC")[: 2 if name in OTHERS else 1]:
        folder = tmp_path / variant
        interleaved = fields["model_type"] == "gpt_oss"
        quantize(tmp_path / "model", folder, variant, interleaved=interleaved)
        cls = library_class(config, fields["architectures"][0])
        same = cls.from_pretrained(
            folder / "dense", config=copy.deepcopy(config), dtype=torch.float32
        )
        # Inputs in float8 would have no forward to compare with.
        check(folder / "quantized", name, same.eval(), arithmetic="weights")


def check(folder: Path, name: str, model: Any, **options: Any) -> None:
    engine = make_engine(folder, dtype="float32", batch_windows=1, **options)
    plan = random_plan(length=24, windows=2, vocabulary=model.config.get_text_config().vocab_size)
    theirs = library_logprobs(model, plan)
    assert np.abs(score(engine, plan).logprob - theirs).max() < 2e-6
    assert theirs.std() > 0.5
    # GLM-5.2's layers share the indices that one of them chose; GLM-5's each choose their own.
    assert (engine.describe()["layers"] == "layer by layer") == ("GLM-5.2" not in name)
    identity = engine.identity()
    assert identity["model_class"].rpartition(".")[2] == (KINDS | OTHERS)[name]
    # What isn't used is an encoder's or a projection's from it.
    unused = engine.describe()["unused_tensors"]
    assert bool(unused) == (identity["text_alone"] is not None)
    assert all(any(part in n for part in _BESIDE) for n in unused)


_BESIDE = ("vision", "vit_", "visual", "mm_projector", "multi_modal_projector", "patch_merge_mlp")


def check_commands(
    folder: Path, original: dict[str, Any], classes: dict[str, str], name: str, demo: Path
) -> None:
    value = inspect(str(folder), device_name="cpu")
    assert value["refusals"] == [] and value["arithmetic"] == "weights"
    assert value["computed_by"]["class"] == classes[name]
    assert ("text alone" in document_text(inspect_document(value))) == (
        value["computed_by"]["text_alone"] is not None
    )
    planned = plan_text(
        from_string("To be, or not to be, that is the question. " * 20),
        Protocol("test", context_length=64),
        model=str(folder),
        tokenizer=str(demo / "model"),
    )
    assert planned.plan.scored > 0
    text = library_config(dense_config(original)).get_text_config()
    assert planned.model_vocabulary == text.vocab_size
    method = (original.get("quantization_config") or {}).get("quant_method")
    if method is not None:
        file = folder / "config.json"
        fields = file.read_text()
        file.write_text(json.dumps(original))
        (refusal,) = inspect(str(folder), device_name="cpu")["refusals"]
        # Blocks of float8 are read, and these files have none.
        assert refusal["reason"].startswith(f"quantization method '{method}'")
        file.write_text(fields)


FLOAT8 = (
    *("Qwen--Qwen3-32B-FP8", "Qwen--Qwen3-235B-A22B-FP8", "deepseek-ai--DeepSeek-V3"),
    *("deepseek-ai--DeepSeek-V3.2", "MiniMaxAI--MiniMax-M2.7", "zai-org--GLM-5-FP8"),
    *("moonshotai--Kimi-K2-Instruct", "XiaomiMiMo--MiMo-V2-Flash"),
)


@pytest.mark.parametrize("name", [case(name) for name in FLOAT8])
def test_blocks_of_float8_by_the_published_config(name, published, tmp_path):
    original = published(name)
    quantization = original["quantization_config"]
    fields = shrink(dense_config(original))
    make_model(tmp_path, fields, library_config(fields))

    def pack(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if LINEAR.search(key)]:
            module, _, _ = key.rpartition(".")
            if should_convert_module(module, quantization.get("modules_to_not_convert")):
                stored = quantize_blocks(tensors.pop(key), (128, 128))
                tensors |= {f"{module}.{suffix}": tensor for suffix, tensor in stored.items()}

    edit_tensors(tmp_path, pack)
    edit_config(tmp_path, quantization_config=quantization)
    value = inspect(str(tmp_path), device_name="cpu")
    assert value["refusals"] == [] and value["arithmetic"] == "weights+activations"
    engine = make_engine(tmp_path, dtype="float32", batch_windows=1)
    plan = random_plan(length=24, windows=1, vocabulary=fields["vocab_size"])
    assert np.isfinite(score(engine, plan).logprob).all()


MODELOPT = (
    *("nvidia--GLM-5-NVFP4", "nvidia--MiniMax-M3-NVFP4", "nvidia--Qwen3.6-27B-NVFP4"),
    *("nvidia--Qwen3-235B-A22B-NVFP4", "nvidia--Qwen3.6-35B-A3B-NVFP4"),
    *("nvidia--MiniMax-M2.5-NVFP4", "nvidia--Kimi-K2.6-NVFP4"),
    *("nvidia--Qwen3.5-122B-A10B-NVFP4", "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
)


@pytest.mark.parametrize("name", [case(name) for name in MODELOPT])
def test_modelopts_by_the_published_config(name, published, data, tmp_path):
    """Its linears under the published names, with the file beside it: the weights of a dense one."""
    original = published(name)
    own = original.get("quantization_config")
    own = own or (original.get("text_config") or {}).get("quantization_config")
    beside = published(f"{name}.hf_quant_config")
    parsed = parse_modelopt(own or {**beside, "quant_method": "modelopt"}, beside)
    fields = shrink(dense_config(original))
    for folder in (tmp_path / "packed", tmp_path / "dense"):
        make_model(folder, fields, library_config(fields))
    found: set[str] = set()

    def stored(key: str, weight: torch.Tensor) -> tuple[str, dict[str, torch.Tensor]] | None:
        module = key.removesuffix(".weight")
        algorithm = parsed.algorithm_of(module)
        is_linear = key.endswith(".weight") and (LINEAR.search(key) or parsed.claims(module))
        if not is_linear or weight.dim() != 2 or algorithm is None or parsed.excluded.has(module):
            return None
        # Shrunk sizes are no multiples of all groups, and lists of others may be missing.
        if weight.shape[1] % FORMATS[algorithm.name].columns or "vision" in key or "visual" in key:
            assert not parsed.claims(module), key
            return None
        found.add(algorithm.name)
        return algorithm.name, FORMATS[algorithm.name].store(weight)

    def pack(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            if made := stored(key, tensors[key]):
                del tensors[key]
                tensors |= {f"{key.removesuffix('weight')}{s}": t for s, t in made[1].items()}

    def decode(tensors: dict[str, torch.Tensor]) -> None:
        for key in list(tensors):
            if made := stored(key, tensors[key]):
                tensors[key] = FORMATS[made[0]].weight(made[1], torch.float32)

    edit_tensors(tmp_path / "packed", pack)
    edit_tensors(tmp_path / "dense", decode)
    assert found
    if own:
        edit_config(tmp_path / "packed", quantization_config=own)
    write_file(tmp_path / "packed", beside)
    value = inspect(str(tmp_path / "packed"), device_name="cpu")
    assert value["refusals"] == []
    vocabulary = library_config(fields).get_text_config().vocab_size
    plan = random_plan(length=24, windows=1, vocabulary=vocabulary)
    ours, theirs = (
        score(make_engine(tmp_path / kind, dtype="float32", arithmetic="weights"), plan).logprob
        for kind in ("packed", "dense")
    )
    assert np.array_equal(ours, theirs) and np.isfinite(ours).all()


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_library_does_not_know_is_refused_by_name(name, published, tmp_path):
    fields = shrink(dense_config(published(name)))
    with pytest.raises(ValueError, match="Unrecognized model identifier"):
        library_config(fields)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    # As many tensors as there are layers, or else that is what is refused.
    tensors = {f"model.layers.{i}.norm.weight": torch.ones(4) for i in range(100)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=UNKNOWN[name]) as error:
        make_engine(tmp_path)
    assert "\n" not in str(error.value)
    (refusal,) = inspect(str(tmp_path), device_name="cpu")["refusals"]
    assert refusal["reason"] == str(error.value)

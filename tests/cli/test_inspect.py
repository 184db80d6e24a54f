"""`scoremode inspect`: figures by hand, what would run, what is refused, and how much is read."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families import bitsandbytes as bitsandbytes_models
from support.families import mxfp4_experts
from support.models import needs
from support.programs import error_of, run
from support.quantized import LibraryLinear, preset
from support.sparse_checkpoints import experts, llama70b, nvfp4, packed, w4a16, write_holes

from scoremode.cli.inspect import inspect, inspect_config
from scoremode.cli.main import main
from scoremode.report.inspection import inspect_document
from scoremode.report.terminal import document_text

KEYS = {
    *("source", "architectures", "model_type", "layers", "hidden_size", "positions", "dtype"),
    *("tied_embeddings", "vocabulary", "tokenizer_problem", "weight_files", "parameters"),
    *("quantized_parameters", "bytes", "gib", "bits_per_weight", "formats", "kv_cache_declared"),
    *("device", "compute_dtype", "arithmetic", "refusals", "computed_by", "runs"),
    "by_config",
}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}


def of_preset(folder: Path, name: str, **config) -> dict:
    """What is said of a checkpoint of one linear [128, 256] that the library quantized."""
    torch.manual_seed(0)
    linear = LibraryLinear(torch.randn(128, 256).bfloat16(), preset(name), torch.randn(4, 256))
    folder.mkdir(exist_ok=True)
    settings = CONFIG | {"quantization_config": linear.config()} | config
    (folder / "config.json").write_text(json.dumps(settings))
    name = "model.layers.0.mlp.up_proj"
    save_file({f"{name}.{k}": v for k, v in linear.stored().items()}, folder / "model.safetensors")
    return inspect(str(folder), device_name="cpu")


@pytest.mark.parametrize(
    ("name", "label", "bits", "inputs"),
    [
        # 4 bits and one 16-bit scale for 128 weights.
        ("W4A16", "W4A16 g128", 4 + 16 / 128, None),
        # And a zero point of 4 bits for each, packed along the 128 rows.
        ("W4A16_ASYM", "W4A16 g128 asym", 4 + 20 / 128, None),
        # 8 bits for 16, and one number of 32 for all.
        ("NVFP4A16", "NVFP4A16", 4 + 8 / 16 + 32 / (128 * 256), None),
        ("MXFP4A16", "MXFP4A16", 4 + 8 / 32, None),
        ("MXFP6A16", "MXFP6A16", 6 + 8 / 32, None),
        ("MXFP8", "MXFP8", 8 + 8 / 32, "float8 group 32"),
        # One 16-bit scale a row of 256.
        ("FP8_DYNAMIC", "FP8_DYNAMIC", 8 + 16 / 256, "float8 token"),
        ("INT8", "W8A8 channel", 8 + 16 / 256, "int8 token"),
        ("FP8_BLOCK", "FP8_BLOCK", 8 + 16 / (128 * 128), "float8 group 128"),
    ],
)
def test_bits_and_arithmetic_of_each_format(tmp_path, name, label, bits, inputs):
    value = of_preset(tmp_path, name)
    (found,) = value["formats"].values()
    assert list(value["formats"]) == [label]
    assert found["bits_per_weight"] == pytest.approx(bits, rel=1e-12)
    assert value["bits_per_weight"]["body"] == pytest.approx(bits, rel=1e-12)
    assert found["modules"] == 1 and found["parameters"] == 128 * 256
    assert found["inputs"] == inputs and found["groups"] == {"group_0": 1}
    assert value["arithmetic"] == ("weights+activations" if inputs else "weights")
    (run,) = found["runs"]
    assert run["arithmetic"] == value["arithmetic"] and run["modules"] == 1
    assert (run["product"] is None) == (inputs is None)
    assert value["parameters"] == value["quantized_parameters"] == 128 * 256
    size = (tmp_path / "model.safetensors").stat().st_size
    assert value["bytes"] == size
    assert value["bits_per_weight"]["file"] == 8 * size / (128 * 256)


def test_the_product_is_the_one_that_the_engine_takes(tmp_path):
    from scoremode.engines.torch.device import choose_device
    from scoremode.engines.torch.matmul.products import choose_product
    from scoremode.schemes.decoding.codes import Codes

    (found,) = of_preset(tmp_path, "INT8")["formats"].values()
    device = choose_device("cpu", None, None)
    product = choose_product(Codes("int", 128), Codes("int", 128), (128, 256), device)
    assert found["runs"] == [
        {
            "arithmetic": "weights+activations",
            "product": product.name,
            "native": product.native,
            "modules": 1,
        }
    ]


def test_llm_int8_runs_as_declared(tmp_path):
    packed, _ = bitsandbytes_models.make_pair(tmp_path, "llama", "int8")
    value = inspect(str(packed), device_name="cpu")
    found = value["formats"]["LLM.int8"]
    assert value["arithmetic"] == "weights+activations" and value["runs"]["possible"]
    assert found["inputs"] == "int8 token, outliers from 6 apart"
    assert {run["arithmetic"] for run in found["runs"]} == {"weights+activations"}
    assert sum(run["modules"] for run in found["runs"]) == 3 * 7
    assert "weights+activations: " in document_text(inspect_document(value))


def test_inputs_that_nothing_declares_do_not_run_by_default(tmp_path):
    packed, _ = mxfp4_experts.make_pair(tmp_path)
    value = inspect(str(packed), device_name="cpu")
    found = value["formats"]["MXFP4A16"]
    assert (value["arithmetic"], found["inputs"]) == ("weights", None)
    assert [run["arithmetic"] for run in found["runs"]] == ["weights"]


def test_mixed_formats_are_told_apart(tmp_path):
    tensors = packed("model.layers.0.self_attn.q_proj", 256, 512)
    tensors |= nvfp4("model.layers.0.mlp.up_proj", 256, 512)
    tensors |= nvfp4("model.layers.0.mlp.down_proj", 256, 512)
    tensors["lm_head.weight"] = ("BF16", (300, 512), None)
    floats = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups = {
        "attention": w4a16("re:.*self_attn.*"),
        "the rest": {"targets": ["Linear"], "weights": floats, "format": "nvfp4-pack-quantized",
                     "input_activations": floats | {"dynamic": "local"}},
    }  # fmt: skip
    quantization = {"format": "mixed-precision", "config_groups": groups, "ignore": ["lm_head"]}
    config = CONFIG | {"quantization_config": quantization}
    value = inspect(write_holes(tmp_path, config, tensors), device_name="cpu")
    formats = value["formats"]
    assert {k: (f["modules"], f["groups"]) for k, f in formats.items()} == {
        "W4A16 g128": (1, {"attention": 1}),
        "NVFP4": (2, {"the rest": 2}),
        "bf16": (1, {}),
    }
    assert formats["NVFP4"]["kinds"] == {"up_proj": 1, "down_proj": 1}
    assert value["arithmetic"] == "weights+activations"
    assert formats["W4A16 g128"]["runs"][0]["arithmetic"] == "weights"
    one = 256 * 512
    stored = one * 4.125 + 2 * (one * 4.5 + 32)
    assert value["bits_per_weight"]["body"] == pytest.approx(stored / (3 * one), rel=1e-12)
    assert value["quantized_parameters"] == 3 * one
    assert value["parameters"] == 3 * one + 300 * 512


def touched_bytes() -> int:
    """What this process has read so far, and the pages of memory and mapped files that it touched."""
    read = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert read is not None
    return (
        int(read[1]) + resource.getrusage(resource.RUSAGE_SELF).ru_minflt * resource.getpagesize()
    )


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's /proc")
def test_seventy_billion_are_told_by_their_headers(tmp_path):
    config, tensors = llama70b()
    folder = write_holes(tmp_path, config, tensors, shards=30)
    assert sum(f.stat().st_blocks * 512 for f in tmp_path.iterdir()) < 20_000_000
    before = touched_bytes()
    value = inspect(folder, device_name="cpu")
    # Of 36.8 GiB.
    assert touched_bytes() - before < 1 << 30
    assert value["parameters"] == 70_553_706_496
    assert value["bits_per_weight"]["body"] == 4.125
    assert value["gib"] == pytest.approx(36.788, abs=0.001)
    assert value["formats"]["W4A16 g128"]["modules"] == 560
    assert value["weight_files"] == 30 and value["positions"] == 131072
    text = document_text(inspect_document(value))
    for words in ("70,553,706,496", "4.125 layers", "36.788 GiB in 30 files", "q_proj ×80"):
        assert words in text


def test_experts_are_grouped(tmp_path):
    config, tensors = experts(layers=3, count=40)
    value = inspect(write_holes(tmp_path, config, tensors), device_name="cpu")
    assert value["formats"]["W4A16 g32"]["kinds"] == {
        "experts.*.down_proj": 120,
        "experts.*.gate_proj": 120,
        "experts.*.up_proj": 120,
    }
    assert value["formats"]["bf16"]["kinds"]["shared_experts.up_proj"] == 3
    text = document_text(inspect_document(value))
    assert "experts.*.up_proj ×120" in text and "experts.17" not in text


def test_no_weight_is_read(tmp_path, monkeypatch):
    """Of files of 4 GB it reads headers and blocks of small tensors, and maps nothing."""
    import safetensors

    config, tensors = experts(layers=2, count=100)
    folder = write_holes(tmp_path, config, tensors)
    with (tmp_path / "model.safetensors").open("rb") as file:
        headers = int.from_bytes(file.read(8), "little")

    def refuse(*_, **__):
        raise AssertionError("a weight was opened")

    monkeypatch.setattr(safetensors, "safe_open", refuse)
    program = (
        "import sys, json; from scoremode.cli.inspect import inspect\n"
        f"inspect({folder!r}, device_name='cpu')\n"
        "def count(): return int(open('/proc/self/io').read().split()[1])\n"
        f"before = count(); inspect({folder!r}, device_name='cpu'); print(count() - before)"
    )
    value = inspect(folder, device_name="cpu")
    assert value["formats"]["W4A16 g32"]["modules"] == 600 and value["gib"] > 4
    if not Path("/proc/self/io").exists():
        pytest.skip("this system doesn't count what a process reads")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.5 * headers + 200_000


def test_json_has_the_same_facts(tmp_path, capsys):
    value = of_preset(tmp_path, "NVFP4")
    # One linear is no model.
    assert main(["inspect", str(tmp_path), "--device", "cpu", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == value and set(printed) == KEYS
    assert main(["inspect", str(tmp_path), "--device", "cpu"]) == 1
    assert capsys.readouterr().out == document_text(inspect_document(value)) + "\n"


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_model_that_would_run_is_told_by_the_exit_code(
    has_bfloat16, dtype, demo, capsys, monkeypatch
):
    name = "scoremode.engines.torch.device.cpu_has_instructions"
    monkeypatch.setattr(name, lambda _: has_bfloat16)
    assert main(["inspect", str(demo / "model"), "--device", "cpu"]) == 0
    assert f"would run        arithmetic weights, in {dtype} on" in capsys.readouterr().out


def test_a_model_without_one_of_its_tensors_would_not_run(demo, tmp_path, capsys):
    folder = Path(shutil.copytree(demo / "model", tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    assert main(["inspect", str(folder), "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "not at all" in out and "model.layers.1.mlp.up_proj.weight" in out


def test_what_can_not_be_decoded_is_not_counted(tmp_path, capsys):
    """GPTQ whose config says nothing: the norms alone came to 64 bits a weight, 0 % quantized."""
    tensors = {"model.norm.weight": ("BF16", (512,), None)}
    for name in ("q_proj", "k_proj"):
        module = f"model.layers.0.self_attn.{name}"
        tensors[f"{module}.qweight"] = ("I32", (64, 512), None)
        tensors[f"{module}.qzeros"] = ("I32", (4, 64), None)
        tensors[f"{module}.scales"] = ("BF16", (4, 512), None)
    folder = write_holes(tmp_path, CONFIG, tensors)
    assert main(["inspect", folder, "--device", "cpu"]) == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "bits per weight unknown" in lines
    assert "parameters unknown: not all of it can be decoded" in lines
    assert not [line for line in lines if "%" in line]


@pytest.mark.parametrize("command", ["inspect", "ppl", "plan"])
def test_an_adapter_is_called_one(tmp_path, capsys, command):
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "lab/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    save_file({"a.lora_A.weight": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    text = () if command == "inspect" else ("--text", "a b c")
    output = ("-o", str(tmp_path / "runs")) if command == "ppl" else ()
    assert main([command, str(tmp_path), *text, *output]) == 1
    err = capsys.readouterr().err
    assert f"{tmp_path}: a LORA adapter for lab/base, and no model: merge it" in err


def test_refusals_are_listed_by_reason(tmp_path):
    tensors = packed("model.layers.0.mlp.up_proj", 256, 512)
    tensors |= packed("model.layers.1.mlp.up_proj", 256, 512)
    for i in range(5):
        tensors |= packed(f"model.layers.{i}.mlp.down_proj", 256, 512)
        del tensors[f"model.layers.{i}.mlp.down_proj.weight_scale"]
    for i in range(3):
        tensors |= packed(f"model.layers.{i}.self_attn.q_proj", 256, 512)
    groups = {
        "group_0": w4a16("re:.*mlp.*"),
        "sparse": w4a16("re:.*self_attn.*") | {"format": "marlin-24"},
    }
    config = CONFIG | {"quantization_config": {"config_groups": groups}}
    value = inspect(write_holes(tmp_path, config, tensors), device_name="cpu")
    assert value["arithmetic"] is None
    assert [r["modules"] for r in value["refusals"]] == [5, 3]
    missing, sparse = (r["reason"] for r in value["refusals"])
    assert missing == (
        "model.layers.0.mlp.down_proj: quantized, and its tensor weight_scale is missing"
    )
    assert "marlin-24" in sparse and sparse.startswith("model.layers.0.self_attn.q_proj: ")
    assert value["formats"]["W4A16 g128"]["modules"] == 2
    text = document_text(inspect_document(value))
    assert "refused ×5" in text and "and 4 more" in text and "not at all" in text


def test_a_config_that_can_not_be_understood_is_said(tmp_path, capsys):
    tensors = packed("model.layers.0.mlp.up_proj", 256, 512)
    config = CONFIG | {"quantization_config": {"config_groups": {"g": w4a16("re:(")}}}
    folder = write_holes(tmp_path, config, tensors)
    assert main(["inspect", folder, "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "refused" in out and "not a regular expression" in out and "MiB" in out


@pytest.mark.parametrize(
    ("config", "rows", "words"),
    [
        ({"vocab_size": 300}, 300, "200 entries that no token has (padding)"),
        ({"vocab_size": 100}, 100, "config 100, tokenizer 100"),
        ({"vocab_size": 90}, 90, "10 tokens lie beyond the head and can't be scored"),
        ({"vocab_size": 100}, 128, "head 128"),
        ({}, 128, "28 entries that no token has"),
    ],
)
def test_vocabularies_are_compared_in_words(tmp_path, config, rows, words):
    from tokenizers import Tokenizer, models

    vocabulary = {f"t{i}": i for i in range(100)}
    Tokenizer(models.WordLevel(vocabulary, "t0")).save(str(tmp_path / "tokenizer.json"))
    tensors = {"lm_head.weight": ("BF16", (rows, 64), None)}
    value = inspect(write_holes(tmp_path, CONFIG | config, tensors), device_name="cpu")
    assert value["vocabulary"]["tokenizer"] == 100 and value["vocabulary"]["head"] == rows
    assert words in document_text(inspect_document(value))


def test_a_quantized_head_is_not_measured_by_its_codes(tmp_path):
    """As Quark's lies transposed, in words of eight outputs."""
    tensors = {
        "lm_head.weight": ("I32", (64, 16), None),
        "model.embed_tokens.weight": ("BF16", (128, 64), None),
    }
    value = inspect(write_holes(tmp_path, CONFIG | {"vocab_size": 128}, tensors), device_name="cpu")
    assert value["vocabulary"]["head"] == 128


def test_published_configs_can_be_inspected(data, tmp_path):
    tensors = {"model.norm.weight": ("BF16", (4,), None)}
    for file in sorted((data / "configs").rglob("*config.json")):
        config = json.loads(file.read_text())
        if "hf_quant_config" in file.name:
            continue
        if "quantization_config" in file.name or "config_groups" in config:
            config = {"quantization_config": config}
        value = inspect(write_holes(tmp_path / file.name, config, tensors), device_name="cpu")
        assert document_text(inspect_document(value)), file.name
        json.dumps(value)


def test_a_dense_model_has_nothing_quantized(demo):
    text = document_text(inspect_document(inspect(str(demo / "model"))))
    assert "1,377,600, none quantized" in text and "0.0%" not in text


def test_modelopt_is_named_where_only_its_own_file_tells(demo, tmp_path):
    """Older releases of it leave config.json as it was, and one tensor tells nothing."""
    shutil.copy(demo / "model" / "config.json", tmp_path)
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}})
    )
    value = inspect(str(tmp_path), device_name="cpu")
    (refusal,) = value["refusals"]
    assert refusal["reason"] == (
        "quantization method 'modelopt' with quant_algo FP8, and no tensor is a weight_scale: not "
        "decoded"
    )
    assert value["runs"] == {"possible": False, "reason": refusal["reason"]}
    assert value["parameters"] is None


def test_one_tensor_is_one(demo, tmp_path):
    shutil.copy(demo / "model" / "config.json", tmp_path)
    save_file({"model.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    reason = inspect(str(tmp_path), device_name="cpu")["runs"]["reason"]
    assert reason.endswith("says 3 layers, and all the files have 1 tensor")


# What a config alone says: class, labels with modules, bits of the body, GiB; the words that refuse.
BY_CONFIG = {
    "Qwen--Qwen3-0.6B": ("Qwen3ForCausalLM", {"bf16": 197}, 16.0, 1.110),
    "Qwen--Qwen3-32B-FP8": (
        "Qwen3ForCausalLM", {"FP8 block 128x128": 448, "bf16": 2}, 8 + 32 / 128**2, 31.969
    ),
    "Qwen--Qwen3-VL-30B-A3B-Instruct": (
        "Qwen3VLMoeForConditionalGeneration", {"bf16": 338}, 16.0, 56.870
    ),
    "meta-llama--Meta-Llama-3.1-405B": ("LlamaForCausalLM", {"bf16": 884}, 16.0, 755.961),
    # 21 GB a layer, which nothing may write to.
    "meta-llama--Llama-4-Maverick-17B-128E-Instruct": (
        "Llama4ForCausalLM", {"bf16": 410}, 16.0, 746.384
    ),
    "mistralai--Mixtral-8x7B-v0.1": ("MixtralForCausalLM", {"bf16": 930}, 16.0, 86.991),
    "openai--gpt-oss-120b": ("GptOssForCausalLM", {"MXFP4A16": 72, "bf16": 182}, 4.347, 60.768),
    "nvidia--Nemotron-H-56B-Base-8K": ("NemotronHForCausalLM", None, 16.0, 104.912),
    "nvidia--DeepSeek-V4-Flash-NVFP4": "method 'fp8' with quant_algo 'MIXED_PRECISION'",
    # ModelOpt's own file, and no model's.
    "nvidia--Qwen3-235B-A22B-NVFP4.hf_quant_config": "hf_quant_config.json says only how it is q",
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": "DeciLMForCausalLM (model_type nemotron-nas): not k",
    "MiniMaxAI--MiniMax-M3": "model_type minimax_m3): not known to transformers",
    "stepfun-ai--Step-3.7-Flash-FP8": "moe.down_proj.weight is of 288 experts, and how",
}  # fmt: skip


@pytest.mark.parametrize("name", BY_CONFIG)
def test_a_config_alone(data, name):
    if name.startswith("stepfun-ai"):
        needs("step3p7")
    file = data / "configs" / "published" / f"{name}.json"
    value, expected = inspect_config(str(file), device_name="cpu"), BY_CONFIG[name]
    text = document_text(inspect_document(value))
    assert "config alone: no tensor was seen" in text and value.keys() >= KEYS
    if isinstance(expected, str):
        (reason, *_) = [refusal["reason"] for refusal in value["refusals"]]
        assert expected in reason and value["runs"] == {"possible": False, "reason": reason}
        assert value["parameters"] is None and "bits per weight  unknown" in text
        return
    kind, labels, body, gib = expected
    assert value["computed_by"]["class"] == kind and value["runs"]["possible"]
    if labels is not None:
        assert {label: f["modules"] for label, f in value["formats"].items()} == labels
    assert value["bits_per_weight"]["body"] == pytest.approx(body, abs=5e-4)
    assert value["gib"] == pytest.approx(gib, abs=6e-4)


# The same of ModelOpt's, whose own file lies beside: labels with modules, bits of the body. Of NVFP4
# each weight has 4 bits and a sixteenth of a scale of 8.
MODELOPT = {
    # All linears of 80 layers, under two numbers of 32 bits in a hundred million.
    "other-quant/nvidia--Llama-3.1-70B-Instruct-FP8_": ({"FP8": 560, "bf16": 2}, 8.0),
    # `quantized_layers` name 401; the body by hand from the config's sizes, norms left out: 5.54891.
    "published/nvidia--Qwen3.6-27B-NVFP4.": (
        {"NVFP4A16": 193, "FP8": 208, "bf16": 145}, 5.549
    ),
    # And 5,981.
    "published/nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4.": (
        {"NVFP4A16": 5935, "FP8": 46, "bf16": 71}, 4.653
    ),
    # 23 layers of 128 experts, 46 linears of shared ones, 34 of 17 layers of Mamba.
    "published/nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4.": (
        {"NVFP4": 23 * 128 * 2 + 46 + 34, "bf16": 84}, 4.639
    ),
    "published/nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8.": (
        "quant_algo FP8 and no exclude_modules: which linears are quantized is known"
    ),
    "published/nvidia--DeepSeek-V4-Flash-NVFP4.": "'fp8' with quant_algo 'MIXED_PRECISION': not d",
}  # fmt: skip


@pytest.mark.parametrize("name", MODELOPT)
def test_modelopts_configs_alone(data, tmp_path, name):
    own = f"{name}config.json" if name.endswith("_") else f"{name}json"
    shutil.copy(data / "configs" / own, tmp_path / "config.json")
    beside = data / "configs" / f"{name}hf_quant_config.json"
    shutil.copy(beside, tmp_path / "hf_quant_config.json")
    value = inspect_config(str(tmp_path / "config.json"), device_name="cpu")
    if isinstance(expected := MODELOPT[name], str):
        assert [r for r in value["refusals"] if expected in r["reason"]] and not value["parameters"]
        return
    labels, body = expected
    found: Counter[str] = Counter()
    for label, f in value["formats"].items():
        # transformers 5.24 declares Nemotron-H's 23 routers in float32, and earlier ones don't.
        found["bf16" if label == "f32" else label] += f["modules"]
    assert found == labels
    assert value["bits_per_weight"]["body"] == pytest.approx(body, abs=5e-4)
    assert value["runs"]["possible"] and value["kv_cache_declared"] == "float8 tensor static"
    # Where every module is named nothing is left to take.
    assert (value["by_config"]["untold"] is None) == (len(labels) == 3)


@pytest.mark.large
def test_every_config_alone(data):
    files = sorted((data / "configs").rglob("*.json"))
    assert len(files) > 70
    for file in files:
        value = inspect_config(str(file), device_name="cpu")
        assert document_text(inspect_document(value)), file.name
        assert value["runs"]["possible"] or value["refusals"] or value["runs"]["reason"]
        json.dumps(value)


def test_a_config_alone_says_what_its_checkpoint_says(demo, tmp_path):
    from scoremode.demo.quantize import VARIANTS, quantize_folder

    for variant in (v for v in VARIANTS if v.name in ("W4A16-g32", "NVFP4")):
        folder = tmp_path / variant.name
        quantize_folder(demo / "model", folder, variant)
        real = inspect(str(folder), device_name="cpu")
        shutil.copy(folder / "config.json", tmp_path / "other.json")
        alone = inspect_config(str(tmp_path / "other.json"), device_name="cpu")
        for key in ("formats", "parameters", "quantized_parameters", "arithmetic", "runs"):
            assert alone[key] == real[key], key
        assert alone["bits_per_weight"]["body"] == real["bits_per_weight"]["body"]
        assert alone["by_config"] == {"untold": None} and real["by_config"] is None


def test_the_flag_config(demo, capsys, tmp_path):
    file = str(demo / "model" / "config.json")
    code, out, _ = run(capsys, "inspect", "--config", file, "--json")
    assert code == 0 and json.loads(out)["source"] == file
    code, _, err = run(capsys, "inspect", "m", "--config", file)
    assert code == 2 and "MODEL m and --config" in error_of(err)
    code, _, err = run(capsys, "inspect", "--config", str(tmp_path / "none.json"))
    assert code == 1 and err.count("\n") == 1 and "none.json: No such file" in err
    (tmp_path / "unknown.json").write_text('{"model_type": "nothing"}')
    code, out, _ = run(capsys, "inspect", "--config", str(tmp_path / "unknown.json"))
    assert code == 1 and "unknown.json: architecture nothing (model_type nothing): not known" in out
    awq = json.loads(Path(file).read_text())
    awq["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 32}
    (tmp_path / "awq.json").write_text(json.dumps(awq))
    code, out, _ = run(capsys, "inspect", "--config", str(tmp_path / "awq.json"))
    assert code == 0 and "AWQ W4A16 g32 asym" in out and "its tensors tell which linears" in out

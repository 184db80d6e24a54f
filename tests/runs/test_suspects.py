"""What is planted in a quantized model's files is named; what quantizers do of right is not."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.gguf.golden import make_pair
from support.models import edit_config, edit_tensors, make_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.demo.quantize import VARIANTS, Variant, quantize_folder
from scoremode.runs.suspects import Suspect, odd_fields, suspects

W4 = Variant("W4A16-g32", 4, 32)
LINEAR = "model.layers.1.mlp.up_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def model(demo) -> Path:
    return demo / "model"


def found(model: Path, base: Path) -> list[Suspect]:
    return suspects(open_checkpoint(str(model)), open_checkpoint(str(base)))


def made(model: Path, folder: Path, variant: Variant = W4) -> Path:
    quantize_folder(model, folder, variant)
    return folder


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_no_format_is_suspect(variant, model, tmp_path):
    """AWQ among them, whose scales are moved into the norms."""
    assert found(made(model, tmp_path / "m", variant), model) == []


def rotated(t: Tensors) -> None:
    """As QuaRot: the norms go into the linears, and the residual stream is turned."""
    turn = torch.linalg.qr(torch.randn(192, 192, generator=torch.Generator().manual_seed(0)))[0]
    for name in list(t):
        if name.endswith("norm.weight"):
            continue
        wide = t[name].float()
        layer = name.rpartition(".layers.")[2].partition(".")[0]
        norm = "input_layernorm" if "self_attn" in name else "post_attention_layernorm"
        if re.search(r"(o|down)_proj", name):
            wide = turn.T @ wide
        elif "_proj" in name:
            wide = wide * t[f"model.layers.{layer}.{norm}.weight"].float() @ turn
        else:
            wide = wide @ turn
        t[name] = wide.to(t[name].dtype).contiguous()
    for name in [n for n in t if re.search(r"\d\..*norm\.weight", n)]:
        t[name] = torch.ones_like(t[name])


def pruned(t: Tensors) -> None:
    """Half of each linear, the smaller half."""
    for name in [n for n in t if "_proj" in n]:
        size = t[name].float().abs()
        t[name] = torch.where(size > size.median(), t[name], 0)


@pytest.mark.parametrize("change", [rotated, pruned])
def test_what_is_done_to_all_linears_is_no_suspect(change, model, tmp_path):
    shutil.copytree(model, tmp_path / "changed")
    edit_tensors(tmp_path / "changed", change)
    assert found(made(tmp_path / "changed", tmp_path / "m"), model) == []


def rolled(suffix: str, axis: int, by: int = 1) -> Callable[[Tensors], None]:
    def change(t: Tensors) -> None:
        scale = t[f"{LINEAR}.{suffix}"]
        # torch rolls no float8.
        whole = scale.view(torch.uint8) if scale.itemsize == 1 else scale
        t[f"{LINEAR}.{suffix}"] = whole.roll(by, axis).view(scale.dtype)

    return change


def scaled(t: Tensors) -> None:
    t[f"{LINEAR}.weight_scale"] *= 1.3


def exchanged(t: Tensors) -> None:
    for suffix in ("weight_packed", "weight_scale"):
        t[f"{LINEAR}.{suffix}"] = t[f"{LINEAR.replace('1', '0')}.{suffix}"].clone()


_BY_NAME = {v.name: v for v in VARIANTS}


@pytest.mark.parametrize(
    ("format", "change", "words"),
    [
        ("W4A16-g32", rolled("weight_scale", 1), "its scales are those of the group before"),
        ("W4A16-g32", rolled("weight_scale", 1, -1), "its scales are those of the group after"),
        ("W4A16-g32", rolled("weight_scale", 0), "its scales are those of the row before"),
        ("W4A16-g32-GPTQ", rolled("scales", 0), "its scales are those of the group before"),
        ("W4A16-g32-AWQ", rolled("scales", 0), "the median of its peers is 0.0"),
        ("NVFP4A16", rolled("weight_scale", 1), "its scales are those of the group before"),
        ("FP8_DYNAMIC", rolled("weight_scale", 0), "its scales are those of the row before"),
        ("FP8-block64", rolled("weight_scale_inv", 1), "its scales are those of the group before"),
        ("W4A16-g32", exchanged, "relative error 0.99, and the median of its peers is 0.1"),
        ("W4A16-g32", scaled, "1.29 times the base's size, and the median of its peers is 0.997"),
    ],
)
def test_the_linear_that_is_off_is_named(format, change, words, model, tmp_path):
    folder = made(model, tmp_path / "m", _BY_NAME[format])
    edit_tensors(folder, change)
    (suspect,) = found(folder, model)
    assert suspect.name == LINEAR and words in suspect.words
    assert suspect.to_json() == {"kind": suspect.kind, "name": LINEAR, "words": suspect.words}


def test_scales_that_are_off_everywhere_are_named(model, tmp_path):
    """No peer is right."""
    folder = made(model, tmp_path / "m")

    def change(t: Tensors) -> None:
        for name in [n for n in t if n.endswith("weight_scale")]:
            t[name] = t[name].roll(1, 1)

    edit_tensors(folder, change)
    assert [s.kind for s in found(folder, model)] == ["scales"] * 21


def test_a_weight_of_zeros_is_named(model, tmp_path):
    folder = made(model, tmp_path / "m")

    def change(t: Tensors) -> None:
        t[f"{LINEAR}.weight_scale"].zero_()

    edit_tensors(folder, change)
    (suspect,) = found(folder, model)
    assert suspect.words.startswith("relative error 1, ")


def test_a_field_of_the_config_is_named(model, tmp_path):
    folder = made(model, tmp_path / "m")
    edit_config(folder, rope_parameters={"rope_theta": 10100.0, "rope_type": "default"})
    (suspect,) = found(folder, model)
    assert suspect.kind == "config"
    assert suspect.words == "rope_parameters.rope_theta is 10100.0, and the base's 10000.0"


def test_a_default_that_one_config_writes_is_no_suspect(model, tmp_path):
    """And `rope_theta` is the same by its old name."""
    folder = made(model, tmp_path / "m")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"], config["hidden_act"], config["tie_word_embeddings"]
    config |= {"rope_theta": 10000.0, "tie_word_embeddings": True, "sliding_window": None}
    path.write_text(json.dumps(config))
    assert found(folder, model) == []


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("gemma2", "attn_logit_softcapping", None, "is not there, and the base's 2.0"),
        ("gemma2", "final_logit_softcapping", None, "is not there, and the base's 3.0"),
        ("gemma2", "sliding_window", 8, "is 8, and the base's 7"),
        ("qwen3_moe", "norm_topk_prob", False, "is False, and the base's True"),
        ("qwen3_moe", "num_experts_per_tok", 1, "is 1, and the base's 2"),
        ("granite", "residual_multiplier", 1.0, "is 1.0, and the base's 0.5"),
    ],
)
def test_fields_of_other_architectures(name, field, value, words, tmp_path):
    base = make_checkpoint(tmp_path / "base", name)
    shutil.copytree(base, tmp_path / "m")
    edit_config(tmp_path / "m", **{field: value})
    (suspect,) = found(tmp_path / "m", base)
    assert suspect.name == field and suspect.words == f"{field} {words}"


def test_another_bos_is_named(model, tmp_path):
    folder = made(model, tmp_path / "m")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"bos_token": config["eos_token"], "add_bos_token": True}))
    names = [s.name for s in found(folder, model)]
    assert names[0] == "BOS" and {s.kind for s in found(folder, model)} == {"tokenizer"}
    assert "and the base's 0 (" in found(folder, model)[0].words


def test_a_dense_linear_with_its_rows_in_another_order_is_named(tmp_path):
    """Beside experts that are stored as one matrix."""
    base = make_checkpoint(tmp_path / "base", "granitemoe")
    shutil.copytree(base, tmp_path / "m")
    name = "model.layers.1.self_attn.q_proj"

    def change(t: Tensors) -> None:
        t[f"{name}.weight"] = t[f"{name}.weight"].flip(0).contiguous()

    edit_tensors(tmp_path / "m", change)
    (suspect,) = found(tmp_path / "m", base)
    assert suspect.name == name and suspect.kind == "linear"


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "phi3-long", "deepseek_v3", "hunyuan_v1_dense"]
)
def test_a_gguf_file_s_own_keys_are_no_suspects(name, tmp_path):
    folder, file = make_pair(tmp_path, name)
    models = [open_checkpoint(resolve_model(str(path), None)) for path in (file, folder)]
    assert odd_fields(*models) == []
    edit_config(folder, rms_norm_eps=0.125)
    (found,) = odd_fields(models[0], open_checkpoint(resolve_model(str(folder), None)))
    assert found.name == "rms_norm_eps" and found.words.endswith("and the base's 0.125")

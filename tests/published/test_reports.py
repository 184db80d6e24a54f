"""Checkpoints as people reported them, of other tools mostly: each gives the number of its dense twin,
or is refused by what it is refused for.

A report is a folder of SCOREMODE_DATA/cases with a small builder, whose docstring names its source and
says what is right; `expected.npy` is made by the library's own forward, without a line of ours.
"""

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import scoremode
from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CorpusError, ScoremodeError, UnsupportedModel

Build = Callable[..., Path]

# Stands for a folder of a small dense model.
MODEL = "MODEL"
SCALES = ("ct-nvfp4", "ct-fp8", "fp8", "modelopt-fp8", "modelopt-nvfp4")
KEYS = (
    *("plain", "pth-layout", "scale_linear", "scale_linear2", "sep-token", "align64", "expert0"),
    *("rope-none", "rope-linear4", "split1", "split0", "rope-ones", "no-vocab-size", "imatrix"),
    *("swa0", "causal", "f16norm", "both", "temp", "mradermacher"),
)
CONFIGS = (
    *("infinity", "q-null", "q-empty", "compression_config", "inv_freq", "no-dtype", "dtype-auto"),
    *("no-arch", "bool-tie", "rope-null", "rope-both", "yarn-int", "head-null", "f64"),
    "torchscript",
)
AWQ = ("upper", "quant_config", "fuse", "gptq-meta", "autoround-word", "intel")
# Report → the kinds of it that give the expected number.
RIGHT = {
    "autoround-router-shortgroup": [
        (kind, method) for kind in ("router", "short", "both") for method in ("gptq", "auto-round")
    ],
    "awq-config-forms": [(kind,) for kind in AWQ],
    "bnb-skip-prefix": [("plain",), ("storage",), ("prefix",), ("nested-name",)],
    "config-odd": [(kind,) for kind in CONFIGS],
    "ct-fused-nvfp4": [("whole",), ("parts",)],
    "ct-qwen38-unsloth": [()],
    "fp8-kv-static": [("hy3",), ("llama",), ("llama-kv_scale",), ("modelopt",)],
    "gguf-odd-keys": [(kind, MODEL) for kind in KEYS],
    "gptq-gidx-zeros": [("one",)],
    "hybrid-int4-fp8": [("auto-round",), ("quark-block",), ("quark-fp8",)],
    "mlx-autoround-config": [("word",), ("same",), ("sub",), ("sub-word",), ("sub-bare",)],
    "modelopt-head-excluded": [("listed",)],
    "shards-odd": [("consolidated",), ("leftover",), ("oldname",)],
    "static-scale-missing": [(form, how) for form in SCALES for how in ("absent", "zero", "nan")],
    "tied-physical-head": [(), ("other",)],
    "tokenizer-odd": [(k,) for k in ("over", "gap", "nfc", "strip", "eot-in-text", "prefix")],
}
WEIGHTS = {"arithmetic": "weights"}
FLAGS: dict[str, dict[str, Any]] = dict.fromkeys(
    (
        *("ct-fused-nvfp4", "ct-qwen38-unsloth", "fp8-kv-static", "hybrid-int4-fp8"),
        *("modelopt-head-excluded", "static-scale-missing"),
    ),
    WEIGHTS,
)
# Report, kind → words of the line that it is refused with.
REFUSED = {
    ("awq-scaled-act",): "divided by its tensor model.layers.0.mlp.act.scales",
    ("config-odd", "rope-unknown"): "KeyError: 'su'",
    ("config-odd", "extra-buffer"): "tensor model.embed_tokens.position_ids belongs to",
    ("config-odd", "layers-more"): "tensor model.layers.2.input_layernorm.weight belongs to",
    ("ct-fused-nvfp4", "part-ignored"): "treats its parts q_proj, k_proj, v_proj differently",
    ("gguf-hadamard",): "prism.hadamard.block_size (32), ",
    ("gptq-gidx-zeros", "groups"): "mlp.down_proj: its g_idx doesn't put 96 inputs into g32",
    ("modelopt-head-excluded",): "lm_head: stored quantized, and the config's exclude_modules name",
    ("shards-odd", "stale"): "holds two models, model.safetensors, which transformers reads",
    (
        "shards-odd",
        "wrong-map",
    ): "tensor lm_head.weight is missing, named by model.safetensors.index",
    ("shards-odd", "extra-shard"): "tensor model.layers.2.eh_proj.weight belongs to",
    ("shards-odd", "missing"): "model-00002-of-00002.safetensors: missing weight file",
    ("shards-odd", "dup"): "lm_head.weight is in model-00001-of-00002.safetensors and model-00002",
    ("shards-odd", "pth"): "consolidated.safetensors alone has its tensors under the names of",
    ("tokenizer-odd", "over-used"): "the text has token id 300, and ",
    ("tokenizer-odd", "only-tekken"): "only tekken.json, which can't be read here",
    ("tokenizer-odd", "only-tiktoken"): "only tiktoken.model, which can't be read here",
}


@pytest.fixture
def build(data: Path, demo: Path, tmp_path: Path, monkeypatch) -> Build:
    """Makes a report's folder by its own builder."""

    def make(report: str, *kind: str) -> Path:
        builder = data / "cases" / report / "make.py"
        if not builder.exists():
            pytest.skip(f"SCOREMODE_DATA holds no cases/{report}")
        words = [str(demo / "model") if word == MODEL else word for word in kind]
        monkeypatch.setattr("sys.argv", [str(builder), str(tmp_path), *words])
        runpy.run_path(str(builder), run_name="__main__")
        return tmp_path

    return make


def score(folder: Path, **flags: Any) -> np.ndarray:
    """The log-probabilities of the report's text, in its windows, in float32."""
    gguf = folder / "model.gguf"
    flags = {"bos": "never", "dtype": "float32", "device": "cpu"} | flags
    run = scoremode.measure(
        gguf if gguf.exists() else folder / "model",
        file=folder / "t.txt",
        protocol="disjoint",
        context_length=48,
        output=folder / "runs",
        quiet=True,
        **flags,
    )
    order = np.lexsort((run.scores["position"], run.scores["window"]))
    return np.asarray(run.scores["logprob"])[order]


def expected(folder: Path, name: str = "expected") -> np.ndarray:
    return np.load(folder / f"{name}.npy")


@pytest.mark.parametrize(
    ("report", "kind"), [(report, kind) for report, kinds in RIGHT.items() for kind in kinds]
)
def test_the_number_is_the_dense_twins(build, report, kind):
    folder = build(report, *kind)
    assert score(folder, **FLAGS.get(report, {})) == pytest.approx(expected(folder), abs=1e-5)


@pytest.mark.parametrize(("report", "words"), REFUSED.items())
def test_what_is_refused_is_named(build, report, words):
    with pytest.raises(ScoremodeError) as caught:
        score(build(*report))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["absent", "zero", "nan"])
@pytest.mark.parametrize("form", SCALES)
def test_a_static_scale_is_asked_for_where_inputs_are_quantized(build, form, how):
    with pytest.raises(ScoremodeError) as caught:
        score(build("static-scale-missing", form, how), arithmetic="weights+activations")
    suffix = "input_global_scale" if form == "ct-nvfp4" else "input_scale"
    value = {"absent": "is missing", "zero": "is 0, not a", "nan": "is nan, not a"}[how]
    assert f"tensor model.layers.1.mlp.up_proj.{suffix} {value}" in str(caught.value)
    assert str(caught.value).endswith("; arithmetic='weights' measures without it")


def test_a_cache_in_float8(build):
    flags = {"arithmetic": "weights", "kv_cache": "as-declared"}
    folder = build("tf-cache-keyword")
    assert score(folder, **flags) == pytest.approx(expected(folder), abs=1e-5)


@pytest.mark.parametrize("kind", ["hy3", "llama", "llama-kv_scale", "modelopt"])
def test_a_cache_that_a_word_declares(build, kind):
    """It is what float8 with the stored scales is; without any it is refused, and only where asked."""
    folder = build("fp8-kv-static", kind)
    if kind == "hy3":
        with pytest.raises(ScoremodeError, match="has 0 tensors for its cache's k_scale"):
            score(folder, **WEIGHTS, kv_cache="as-declared")
        return
    scales = folder / "scales.safetensors"
    names = (f"layers.{i}.self_attn.{side}_scale" for i in range(2) for side in "kv")
    save_file({name: np.array([0.02], np.float32) for name in names}, scales)
    given = score(folder, **WEIGHTS, kv_cache="fp8_e4m3-tensor", kv_scales=str(scales))
    assert np.array_equal(score(folder, **WEIGHTS, kv_cache="as-declared"), given)
    assert np.abs(given - expected(folder)).max() > 1e-3


def test_a_rotation_by_length_is_that_of_the_tokens_fed(build):
    """Whatever came before, and without the last one, which predicts nothing (docs/protocols.md)."""
    folder = build("rope-dynamic")
    assert score(folder) == pytest.approx(expected(folder, "expected_fed_n-1"), abs=1e-5)


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        ("tokenizer-odd", ("eos",)),
        ("tokenizer-odd", ("addbos-null",)),
        ("gguf-odd-keys", ("eos", MODEL)),
    ],
)
def test_what_a_tokenizer_adds_behind_a_text_is_no_protocols(build, report, kind):
    folder = build(report, *kind)
    found, wanted = score(folder, bos="auto"), expected(folder)
    assert len(wanted) - len(found) == (kind[0] == "eos")
    assert found == pytest.approx(wanted[: len(found)], abs=1e-5)


def test_architectures_that_are_not_read_are_named(build):
    files = sorted(build("gguf-arch").glob("*.gguf"))
    assert len(files) > 30
    for file in files:
        with pytest.raises(UnsupportedModel, match=f"GGUF architecture '{file.stem}' is not sup"):
            open_checkpoint(str(file))


@pytest.mark.parametrize("kind", ["first", "outside"])
def test_marks_of_what_the_model_generates(build, demo, kind):
    folder = build("chat-generation-first", str(demo / "model" / "tokenizer.json"))
    run = scoremode.measure(
        demo / "model",
        conversations=folder / "chat.jsonl",
        chat_template=folder / f"{kind}.jinja",
        context_length=128,
        output=folder / "runs",
        quiet=True,
    )
    wanted = json.loads((folder / "expected.json").read_text())[kind]
    assert np.bincount(run.scores["conversation"]).tolist() == wanted[0]
    assert run.record.document["plan"]["scored"] == wanted[1]


@pytest.mark.parametrize("template", ["template", "tojson"])
def test_arguments_of_tools_in_a_string(build, demo, template):
    """They are the object that the string is, to a template that walks through them."""
    folder = build("chat-tool-strings")
    plans = {
        scoremode.measure(
            demo / "model",
            conversations=folder / f"{form}.jsonl",
            chat_template=folder / f"{template}.jinja",
            context_length=256,
            output=folder / "runs",
            quiet=True,
        ).record.document["plan"]["sha256"]
        for form in ("string", "object")
    }
    assert len(plans) == 1


def test_texts_from_windows(build, demo, capsys):
    folder = build("text-odd")

    def measured(name: str) -> tuple[float, str]:
        kind = "dataset_file" if name.endswith(".jsonl") else "file"
        text: dict[str, Any] = {kind: folder / name}
        options = {"protocol": "disjoint", "context_length": 48, "output": folder / "runs"}
        run = scoremode.measure(demo / "model", **text, **options)
        return float(run.scores["logprob"].sum()), capsys.readouterr().err

    plain = measured("plain.jsonl")
    for name in ("bom.jsonl", "crlf.jsonl"):
        assert measured(name)[0] == plain[0]
    assert "its text has 1 byte order mark (U+FEFF)" in measured("bom.txt")[1]
    assert "its text has 11 Windows line ends (CRLF)" in measured("crlf.txt")[1]
    assert "its text has" not in measured("plain.txt")[1] + plain[1]
    with pytest.raises(CorpusError, match="row 3 is NoneType"):
        measured("null.jsonl")
    with pytest.raises(CorpusError, match="UTF-16"):
        measured("utf16.txt")

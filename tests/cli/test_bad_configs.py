"""Configs with bad values: `inspect`, `plan` and `ppl` refuse them in one line, or the number is right.

Fields of the demo model's config are given other values, those of the issue by name and others at
random; the model then is what transformers itself makes of the same files.
"""

import json
import math
import os
import shutil
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from support.models import library_logprobs, library_model

from scoremode.cli.main import main
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

TEXT = "The same value is computed once and the result is used again, or it is not."
WINDOWS = ("-c", "8", "--protocol", "disjoint", "--text", TEXT)
CPU = ("--device", "cpu", "--dtype", "float32")
# Seconds: most take half of one.
LIMIT = 10.0
CASES = int(os.environ.get("SCOREMODE_BAD_CONFIGS", "25"))


@pytest.fixture
def model(demo, tmp_path):
    """Makes a copy of the demo model whose config has other values."""

    def make(**fields: Any) -> Path:
        folder = tmp_path / "model"
        if not folder.exists():
            shutil.copytree(demo / "model", folder)
        config = json.loads((demo / "model" / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | fields))
        return folder

    return make


def run(capsys, *command: str) -> tuple[int, str, str]:
    begin = time.process_time()
    code = main(command)
    assert time.process_time() - begin < LIMIT, command
    out, err = capsys.readouterr()
    return code, out, err


def error_of(err: str) -> str:
    """The one line of an error; the library's own warnings may stand before it."""
    lines = [line for line in err.splitlines() if line.startswith("scoremode: error: ")]
    assert len(lines) == 1 and err.splitlines()[-1] == lines[0] and "Traceback" not in err, err
    return lines[0]


def ppl(capsys, folder: Path, output: Path) -> tuple[int, str, str]:
    return run(capsys, "ppl", str(folder), *WINDOWS, *CPU, "--json", "-o", str(output))


BAD: list[tuple[str, Any, str]] = [
    ("num_hidden_layers", 10**6, "num_hidden_layers is 1000000"),
    ("num_hidden_layers", 9_999, "9,999 layers, and all the files have 29 tensors"),
    ("num_hidden_layers", 0, "num_hidden_layers is 0, not a whole number above 0"),
    ("num_hidden_layers", -1, "num_hidden_layers is -1"),
    ("num_hidden_layers", 3.0, "num_hidden_layers is 3.0"),
    ("hidden_size", "64", "hidden_size is '64'"),
    ("hidden_size", True, "hidden_size is True"),
    ("num_attention_heads", 0, "num_attention_heads is 0"),
    ("num_attention_heads", [6], r"num_attention_heads is [6]"),
    ("vocab_size", 10**9, "vocab_size is 1000000000"),
    ("vocab_size", -5, "vocab_size is -5"),
    ("head_dim", 10**9, "head_dim is 1000000000"),
    ("intermediate_size", 10**12, "intermediate_size is"),
    ("max_position_embeddings", 10**12, "max_position_embeddings is"),
    ("max_position_embeddings", "512", "max_position_embeddings"),
    ("hidden_act", "nonesuch", "KeyError: 'nonesuch'"),
    ("hidden_act", 7, "hidden_act"),
    ("quantization_config", [], "its quantization_config is not an object"),
    ("text_config", [], "its text_config is not an object"),
    ("rope_parameters", {"rope_type": "nonesuch", "rope_theta": 1e4}, "nonesuch"),
    ("rope_parameters", {"rope_type": "default", "rope_theta": "x"}, "can't be built"),
    ("rope_parameters", 3, "rope_parameters"),
    ("logits_scaling", 0, "logits_scaling is 0, not a number other than 0"),
    ("logits_scaling", "x", "logits_scaling is 'x'"),
    ("rms_norm_eps", "a", "rms_norm_eps"),
    ("tie_word_embeddings", "x", "tie_word_embeddings"),
    ("attention_bias", "yes", "attention_bias"),
    ("bos_token_id", "x", "bos_token_id"),
    ("layer_types", ["x"] * 3, "layer_types"),
    ("num_key_value_heads", 4, "k_proj.weight has shape [64, 192]"),
    ("num_key_value_heads", 0, "can't be built"),
    ("model_type", 5, "model"),
    ("model_type", None, "model"),
    ("text_config", {"a": 1}, "can't be built"),
]


@pytest.mark.parametrize(("field", "value", "said"), BAD, ids=lambda v: str(v)[:24])
def test_bad_values_are_refused_in_one_line(model, capsys, tmp_path, field, value, said):
    folder = model(**{field: value})
    code, _, err = ppl(capsys, folder, tmp_path / "runs")
    assert code == 1 and said in error_of(err)
    assert not list((tmp_path / "runs").glob("*"))
    code, out, err = run(capsys, "inspect", str(folder), "--device", "cpu")
    assert code == 1 and said in (error_of(err) if err.startswith("scoremode: error") else out)
    # It needs no more of the config than positions and vocabulary.
    code, _, err = run(capsys, "plan", str(folder), *WINDOWS)
    assert code == 0 or (code == 1 and error_of(err))


def test_the_published_configs_have_no_bad_values(data):
    from scoremode.checkpoint.config import check_config, layers_of

    files = sorted((data / "configs").rglob("*.json"))
    configs = [(file, json.loads(file.read_text())) for file in files]
    for file, config in configs:
        check_config(file, config)
    assert sum(layers_of(config) > 0 for _, config in configs) > 50


_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 64, 2**31, 2**63, 10**30, 0.0, 0.5, -1.5, 1e308),
    *(math.nan, math.inf, "", "x", "64", "silu", "gelu", "float32", "é", [], [1], {}, {"a": 1}),
    *(["full_attention"] * 3, ["sliding_attention"] * 3, {"rope_type": "linear", "factor": 2.0}),
    *({"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn"}, {"rope_theta": 0}, "llama"),
]
_FIELDS = [
    *("rope_scaling", "sliding_window", "layer_types", "quantization_config", "text_config"),
    *("auto_map", "is_encoder_decoder", "attn_logit_softcapping", "final_logit_softcapping"),
    *(
        "partial_rotary_factor",
        "attention_chunk_size",
        "logits_scaling",
        "pruned_heads",
        "id2label",
    ),
    *(
        "num_labels",
        "chunk_size_feed_forward",
        "output_attentions",
        "return_dict",
        "use_return_dict",
    ),
]


@pytest.mark.parametrize("case", range(CASES))
def test_random_values_are_refused_or_right(model, demo, capsys, tmp_path, case):
    rng = Random(f"bad config {case}")
    fields = sorted(json.loads((demo / "model" / "config.json").read_text())) + _FIELDS
    change = {rng.choice(fields): rng.choice(_VALUES) for _ in range(rng.choice([1, 1, 2]))}
    folder = model(**change)
    inspected, _, said = run(capsys, "inspect", str(folder), "--device", "cpu")
    if inspected:
        assert inspected == 1 and (not said or error_of(said))
    code, out, err = ppl(capsys, folder, tmp_path / "runs")
    if code:
        assert code in (1, 2, 3) and error_of(err), change
        return
    # What `--dtype` gives is not looked for.
    assert inspected == 0 or "dtype" in change, change
    ours = json.loads(out)["metrics"]["nll"]["value"]
    # The library refuses this one with its other attention.
    attention = "eager" if "output_attentions" in change else "sdpa"
    assert ours == pytest.approx(library_nll(folder, attention), abs=2e-6), change


def library_nll(folder: Path, attention: str) -> float:
    """Of the same windows, by transformers' own model of the same files."""
    import torch

    from scoremode.runs.planning import plan_text

    rules = preset("disjoint").override(context_length=8)
    plan = plan_text(from_string(TEXT), rules, model=str(folder)).plan
    library = library_model(folder, torch.float32, attention)
    return float(-np.mean(library_logprobs(library, plan)))

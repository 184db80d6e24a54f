"""The table of `scoremode inspect`."""

from typing import Any

import pytest
from support.holes import packed, w4a16, write_holes

from scoremode.cli.inspect import inspect
from scoremode.report.forms.csv import table_csv
from scoremode.report.inspection import inspect_document, inspect_table

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}


def test_a_declared_cache_is_said_and_not_applied(tmp_path):
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    config = {"quantization_config": {"config_groups": {"g": w4a16()}, "kv_cache_scheme": cache}}
    tensors = packed("model.layers.0.mlp.up_proj", 256, 512)
    value = inspect(write_holes(tmp_path, CONFIG | config, tensors), device_name="cpu")
    assert value["kv_cache_declared"] == "float8 tensor static"
    assert (
        "declared float8 tensor static: not applied, but with --kv-cache as-decl"
        in inspect_table(value)
    )


def value(**changes: Any) -> dict[str, Any]:
    """Findings on a model that would run."""
    made = {
        "source": "m", "architectures": ["A"], "model_type": "a", "layers": 2, "hidden_size": 64,
        "computed_by": {"class": "A", "text_alone": None}, "positions": 2048, "dtype": None,
        "vocabulary": {"config": 100, "tokenizer": 90, "head": 100, "note": "padding"},
        "tokenizer_problem": None, "tied_embeddings": None, "parameters": 1000, "shards": 1,
        "quantized_parameters": 250, "gib": 0.5, "bits_per_weight": {"body": 4.5, "file": 5.25},
        "kv_cache_declared": None, "formats": {}, "refusals": [], "arithmetic": "weights",
        "device": "a CPU", "compute_dtype": "float32", "runs": {"possible": True, "reason": None},
        "by_config": None,
    }  # fmt: skip
    return made | changes


def rows(**changes: Any) -> dict[str, str]:
    lines = inspect_table(value(**changes)).split("\n\n")[0].splitlines()
    return {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}


def test_each_fact_has_its_row():
    found = rows()
    assert found["parameters"] == "1,000, of them 25.0% quantized"
    assert found["size"] == "0.500 GiB in 1 file"
    assert found["bits per weight"] == "4.500 body, 5.250 file"
    assert found["vocabulary"] == "config 100, tokenizer 90: padding"
    assert found["embeddings"] == "not said whether tied to the head"
    assert found["KV cache"] == "not quantized"
    assert found["would run"] == "arithmetic weights, in float32 on a CPU"


@pytest.mark.parametrize(
    ("changes", "row", "text"),
    [
        ({"parameters": None}, "parameters", "unknown: not all of it can be decoded"),
        ({"parameters": None}, "bits per weight", "unknown"),
        ({"quantized_parameters": 0}, "parameters", "1,000, none quantized"),
        ({"shards": 30}, "size", "0.500 GiB in 30 files"),
        ({"arithmetic": None}, "would run", "not at all, for what is refused"),
        ({"runs": {"reason": "no room"}}, "would run", "not at all: no room"),
        (
            {"by_config": {"untold": "x"}},
            "size",
            "about 0.500 GiB, by the shapes that the config gives",
        ),
        ({"by_config": {"untold": None}}, "known from", "the config alone: no tensor was seen"),
        (
            {"by_config": {"untold": "x"}},
            "known from",
            "the config alone: no tensor was seen; its tensors tell x",
        ),
        ({"model_type": "\x1b[2J"}, "architecture", r"A (\x1b[2J)"),
    ],
)  # fmt: skip
def test_what_is_unknown_or_refused_is_said(changes, row, text):
    assert rows(**changes)[row] == text


def test_refusals_that_are_alike_are_one_row():
    refusals = [{"reason": "a: no", "modules": 5}, {"reason": "b", "modules": None}]
    assert inspect_table(value(refusals=refusals)).split("\n\n")[1].splitlines() == [
        "refused ×5  a: no, and 4 more",
        "refused     b",
    ]


def test_a_small_model_s_size_is_in_mib_and_in_full_in_data():
    small = {"bytes": 1_067_352, "gib": 0.001}
    assert rows(**small)["size"] == "1.02 MiB in 1 file"
    head, row = table_csv(inspect_document(value(**small)).data).splitlines()
    size = dict(zip(head.split(","), row.split(","), strict=True))["size_gib"]
    assert float(size) == 1_067_352 / 2**30

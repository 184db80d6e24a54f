"""The table of `scoremode inspect`."""

from typing import Any

import pytest
from support.sparse_checkpoints import packed, w4a16, write_holes

from scoremode.cli.inspect import inspect
from scoremode.report.inspection import generation_document, inspect_document
from scoremode.report.rendering import table_csv
from scoremode.report.terminal import document_text

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}


def test_a_declared_cache_is_said_and_not_applied(tmp_path):
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    config = {"quantization_config": {"config_groups": {"g": w4a16()}, "kv_cache_scheme": cache}}
    tensors = packed("model.layers.0.mlp.up_proj", 256, 512)
    value = inspect(write_holes(tmp_path, CONFIG | config, tensors), device_name="cpu")
    assert value["kv_cache_declared"] == "float8 tensor static"
    assert (
        "declared float8 tensor static: not applied, but with --kv-cache as-decl"
        in document_text(inspect_document(value))
    )


def value(**changes: Any) -> dict[str, Any]:
    """Findings on a model that would run."""
    made = {
        "source": "m", "architectures": ["A"], "model_type": "a", "layers": 2, "hidden_size": 64,
        "computed_by": {"class": "A", "text_alone": None}, "positions": 2048, "dtype": None,
        "vocabulary": {"config": 100, "tokenizer": 90, "head": 100, "note": "padding"},
        "tokenizer_problem": None, "tied_embeddings": None, "parameters": 1000, "weight_files": 1,
        "quantized_parameters": 250, "gib": 0.5, "bits_per_weight": {"body": 4.5, "file": 5.25},
        "kv_cache_declared": None, "formats": {}, "refusals": [], "arithmetic": "weights",
        "device": "a CPU", "compute_dtype": "float32", "runs": {"possible": True, "reason": None},
        "by_config": None,
    }  # fmt: skip
    return made | changes


def rows(**changes: Any) -> dict[str, str]:
    lines = document_text(inspect_document(value(**changes))).split("\n\n")[0].splitlines()
    return {name: text.strip() for name, text in (line.split("  ", 1) for line in lines)}


def test_each_fact_has_its_row():
    found = rows()
    assert found["parameters"] == "1,000, of them 25.0% quantized"
    assert found["size"] == "0.500 GiB in 1 file"
    assert found["bits per weight"] == "4.500 layers, 5.250 file"
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
        ({"weight_files": 30}, "size", "0.500 GiB in 30 files"),
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
    assert document_text(inspect_document(value(refusals=refusals))).split("\n\n")[
        1
    ].splitlines() == [
        "refused ×5  a: no, and 4 more",
        "refused     b",
    ]


def test_a_small_model_s_size_is_in_mib_and_in_full_in_data():
    small = {"bytes": 1_067_352, "gib": 0.001}
    assert rows(**small)["size"] == "1.02 MiB in 1 file"
    head, row = table_csv(inspect_document(value(**small)).data).splitlines()
    size = dict(zip(head.split(","), row.split(","), strict=True))["size_gib"]
    assert float(size) == 1_067_352 / 2**30


COUNTS = {
    "replies": 1200, "written": 1198, "left_out": 2, "ended": 1000, "cut": 198,
    "respelled": 300, "tokens": 123_456,
}  # fmt: skip


@pytest.fixture
def record():
    return {
        "base": {"source": "org/model"},
        "prompts": {"prompts": 400, "name": "p.jsonl", "dropped_replies": 7, "with_history": 3},
        "sampling": {"max_new_tokens": 512, "temperature": 0.7, "top_p": 0.9, "top_k": 40,
                     "seed": 5, "samples": 3},
        "engine": {"engine": "torch", "dtype": "bfloat16", "device": {"name": "A CPU"}},
        "versions": {"transformers": "5.23.0"},
        "counts": COUNTS,
        "output": {"name": "chats.jsonl", "sha256": "0123456789abcdef"},
    }  # fmt: skip


def facts(record) -> list[str]:
    return document_text(generation_document(record)).splitlines()


def test_everything_that_happened_is_said(record):
    assert facts(record) == [
        "file      chats.jsonl, sha256 0123456789ab…",
        "base      org/model",
        "prompts   400 of p.jsonl, of which 7 had a reply that was left out",
        "sampled   temperature 0.7, top-k 40, top-p 0.9, at most 512 tokens, 3 times each, seed 5",
        "by        transformers 5.23.0 in bfloat16 on A CPU",
        "replies   1,200, 123,456 tokens",
        "          1,000 ended by the model, 198 cut at the limit",
        "          300 with generated_ids: the tokenizer's would be others",
        "left out  2, which don't read back as the tokens generated",
        "score it  scoremode kld QUANT --reference BASE --conversations chats.jsonl "
        "--score completion",
        "          3 prompts have turns that the base did not say",
    ]


def test_what_did_not_happen_is_not(record):
    record["counts"] = COUNTS | {"written": 1200, "left_out": 0, "cut": 200, "respelled": 0}
    record["prompts"] |= {"dropped_replies": 0, "with_history": 0}
    record["sampling"] |= {"temperature": 0}
    record["engine"] = {"engine": "vllm", "vllm": "0.32.0", "dtype": "bfloat16"}
    assert facts(record) == [
        "file      chats.jsonl, sha256 0123456789ab…",
        "base      org/model",
        "prompts   400 of p.jsonl",
        "sampled   the likeliest token, at most 512",
        "by        vLLM 0.32.0 in bfloat16",
        "replies   1,200, 123,456 tokens",
        "          1,000 ended by the model, 200 cut at the limit",
        "score it  scoremode kld QUANT --reference BASE --conversations chats.jsonl",
    ]


def test_the_data_are_one_row(record):
    head, row = table_csv(generation_document(record).data).splitlines()
    both = dict(zip(head.split(","), row.split(","), strict=True))
    assert both["tokens"] == "123456" and both["temperature"] == "0.7"

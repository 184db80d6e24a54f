"""What `scoremode generate` prints."""

import pytest

from scoremode.report.forms.csv import table_csv
from scoremode.report.forms.text import document_text
from scoremode.report.generation import generation_document

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
        "file       chats.jsonl, sha256 0123456789ab…",
        "base       org/model",
        "prompts    400 of p.jsonl, of which 7 had a reply that was left out",
        "sampled    temperature 0.7, top-k 40, top-p 0.9, at most 512 tokens, 3 times each, seed 5",
        "by         transformers 5.23.0 in bfloat16 on A CPU",
        "replies    1,200, 123,456 tokens",
        "           1,000 ended by the model, 198 cut at the limit",
        "           300 with generated_ids: the tokenizer's would be others",
        "left out   2, which don't read back as the tokens generated",
        "score it   scoremode kld QUANT --reference BASE --conversations chats.jsonl "
        "--score completion",
        "           3 prompts have turns that the base did not say",
    ]


def test_what_did_not_happen_is_not(record):
    record["counts"] = COUNTS | {"written": 1200, "left_out": 0, "cut": 200, "respelled": 0}
    record["prompts"] |= {"dropped_replies": 0, "with_history": 0}
    record["sampling"] |= {"temperature": 0}
    record["engine"] = {"engine": "vllm", "vllm": "0.32.0", "dtype": "bfloat16"}
    assert facts(record) == [
        "file       chats.jsonl, sha256 0123456789ab…",
        "base       org/model",
        "prompts    400 of p.jsonl",
        "sampled    the likeliest token, at most 512",
        "by         vLLM 0.32.0 in bfloat16",
        "replies    1,200, 123,456 tokens",
        "           1,000 ended by the model, 200 cut at the limit",
        "score it   scoremode kld QUANT --reference BASE --conversations chats.jsonl",
    ]


def test_the_data_are_one_row(record):
    head, row = table_csv(generation_document(record).data).splitlines()
    both = dict(zip(head.split(","), row.split(","), strict=True))
    assert both["tokens"] == "123456" and both["temperature"] == "0.7"

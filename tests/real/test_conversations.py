"""Conversations of a chat model that people know, against transformers in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scoremode.engines.torch.options import TorchOptions
from scoremode.results.folders.store import read_columns
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset

CPU = TorchOptions(device="cpu", dtype="float32")
PARIS = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
    {"role": "user", "content": "And of Italy?"},
    {"role": "assistant", "content": "Rome is the capital of Italy."},
]
RAIN = [
    "Write a haiku about rain.",
    "Soft rain on the roof\nwhispers to the sleeping leaves;\nit stops.",
]
ROWS: list[dict[str, Any]] = [
    {"messages": PARIS, "domain": "geography"},
    {
        "conversations": [
            {"from": "human", "value": RAIN[0]},
            {"from": "gpt", "value": RAIN[1]},
        ],
        "system": "You are a poet.",
        "domain": "poems",
    },
    {"prompt": "1 + 1 =", "completion": " 2, and 2 + 2 = 4", "domain": "sums"},
    {"prompt": PARIS[:1], "completion": PARIS[1:2], "domain": "geography"},
]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


def expected(tokenizer: Any, row: dict[str, Any]) -> tuple[list[int], list[int]]:
    """A row's ids and the positions that count, by transformers: what follows the tokens of each prompt
    for a reply, up to the token that ends it."""
    if isinstance(row.get("prompt"), str):
        before = tokenizer(row["prompt"])["input_ids"]
        ids = tokenizer(row["prompt"] + row["completion"])["input_ids"]
        return ids, list(range(len(before), len(ids)))
    if "conversations" in row:
        messages = [{"role": "system", "content": row["system"]}]
        roles = {"human": "user", "gpt": "assistant"}
        messages += [
            {"role": roles[m["from"]], "content": m["value"]} for m in row["conversations"]
        ]
    else:
        messages = row.get("messages") or [*row["prompt"], *row["completion"]]
    ids = tokenizer.apply_chat_template(messages, return_dict=False)
    places = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = tokenizer.apply_chat_template(
                messages[:i], add_generation_prompt=True, return_dict=False
            )
            assert ids[: len(prompt)] == prompt
            end = ids.index(tokenizer.eos_token_id, len(prompt))
            places += range(len(prompt), end + 1)
    return ids, places


def test_scores_are_those_of_transformers(smollm2, file, tmp_path):
    corpus = from_conversations_file(file, group_by="domain")
    rules = preset("chat").override(context_length=512)
    result = measure(Request(str(smollm2), corpus, rules, CPU, tmp_path))
    scores, extras = read_columns(result.folder / "scores.parquet")
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    for i, row in enumerate(ROWS):
        mine = np.flatnonzero(extras["conversation"] == i)
        ids, places = expected(tokenizer, row)
        assert scores.target[mine].tolist() == [ids[t] for t in places]
        assert scores.position[mine].tolist() == places
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        found = logits.log_softmax(-1)
        wanted = [found[t - 1, ids[t]].item() for t in places]
        np.testing.assert_allclose(scores.logprob[mine], wanted, rtol=0, atol=2e-5)
        assert set(extras["label"][mine]) == {row["domain"]}
    facts = result.record.document["corpus"]["conversations"]
    assert (facts["turns"], facts["unended"], facts["unprompted"]) == (5, 1, 0)


def test_its_gguf_file_has_the_same_conversations(smollm2, file):
    """Its template, its tokens and those that end a turn are in the file itself."""
    gguf = smollm2.with_name(f"{smollm2.name}.Q4_1.gguf")
    if not gguf.is_file():
        pytest.skip(f"needs {gguf}")
    rules = preset("chat").override(context_length=512)
    corpus = from_conversations_file(file)
    ours, theirs = (plan_text(corpus, rules, model=str(each)) for each in (smollm2, gguf))
    assert np.array_equal(ours.plan.tokens, theirs.plan.tokens)
    assert ours.plan.sha256 == theirs.plan.sha256
    assert ours.chat is not None and theirs.chat is not None
    assert ours.chat["turns"] == theirs.chat["turns"]

"""Where greedy generation of two models parts, told from one text, against generation by both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.chats.runs import TEMPLATE, chat_model
from transformers import AutoModelForCausalLM, AutoTokenizer

import scoremode

PROMPTS = (
    "The function returns", "A list of", "the class", "Names refer to", "An exception",
    "is raised when", "The module", "Use this", "If the value", "Strings are",
)  # fmt: skip
TOKENS = 24


@pytest.fixture(scope="module")
def models(demo, tmp_path_factory) -> tuple[Path, Path]:
    """The demo's model with a chat template, and the same with its weights rounded to 63 steps."""
    folder = tmp_path_factory.mktemp("models")
    base, quant = (chat_model(demo, folder / name) for name in ("base", "quant"))
    (file,) = quant.glob("*.safetensors")
    weights = load_file(file)
    for name, weight in weights.items():
        if weight.ndim == 2 and "layers" in name:
            step = weight.float().abs().amax(1, keepdim=True) / 31
            weights[name] = ((weight.float() / step).round() * step).to(weight.dtype)
    save_file(weights, file, {"format": "pt"})
    return base, quant


def generated(model: Path) -> list[list[int]]:
    """The ids that transformers generates greedily in float32 behind each prompt."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found = []
    for said in PROMPTS:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": said}],
            chat_template=TEMPLATE,
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        out = loaded.generate(ids, do_sample=False, max_new_tokens=TOKENS)
        found.append(out[0, ids.shape[1] :].tolist())
    return found


def test_replies_part_where_both_models_greedy_replies_do(models, tmp_path):
    base, quant = models
    file = tmp_path / "chats.jsonl"
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS)
    )
    scoremode.generate(
        str(base), str(tmp_path / "prompts.jsonl"), str(file),
        temperature=0, max_new_tokens=TOKENS, dtype="float32", device="cpu",
    )  # fmt: skip
    run = scoremode.kld(
        str(quant), reference=str(base), conversations=str(file), dtype="float32", device="cpu",
        output=str(tmp_path / "run"), quiet=True,
    )  # fmt: skip
    found = run.record.document["survival"]
    pairs = list(zip(generated(base), generated(quant), strict=True))
    # The first token of the base's that the other doesn't have, from 1.
    first = [
        next((n for n, (a, b) in enumerate(zip(*pair, strict=False), 1) if a != b), None)
        for pair in pairs
    ]
    lengths = [len(own) for own, _ in pairs]
    assert found["n"] == len(PROMPTS) and found["greedy"]["unlike"] == 0
    parted = [n for n in first if n is not None]
    assert found["greedy"]["parted"] == len(parted) and len(parted) not in (0, len(PROMPTS))
    same = len(PROMPTS) - len(parted)
    assert found["greedy"]["identical"]["value"] == same / len(PROMPTS)
    whole, curve = 1.0, []
    for n in range(1, max(lengths) + 1):
        at_risk = sum(
            end >= n for end in ((at or size) for at, size in zip(first, lengths, strict=True))
        )
        whole *= 1 - parted.count(n) / at_risk if at_risk else 1
        curve.append(whole)
    assert found["greedy"]["tokens"] == list(range(1, len(found["greedy"]["tokens"]) + 1))
    assert np.allclose(found["greedy"]["whole"], curve)
    assert f"half part by {found['greedy']['half_life']} tokens" in str(run)

"""What the real chat model says by itself: its mean nll is the mean entropy of its predictions.

That holds of text drawn from a model and of no other, and only if the template, the tokens, the turns
and the scores are all right. The entropies are transformers' own.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from scoremode.engines.sampling import Sampling
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.sampler import TorchSampling
from scoremode.results.folders.store import read_scores
from scoremode.runs.generate import Generation, generate
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.replies import prompts_of
from scoremode.runs.request import Request
from scoremode.text.conversations.corpus import from_conversations_file
from scoremode.text.protocol import preset

SAID = ("Write a haiku about rain.", "How do I boil an egg?", "What is a prime number?")
CPU = TorchSampling(device="cpu", dtype="float32")


def generation(base: Path, output: Path, sampling: Sampling, samples: int) -> Generation:
    rows = [{"prompt": said} for said in SAID]
    prompts = prompts_of(rows, list(SAID), "prompts", "here", "0" * 64)
    return Generation(str(base), prompts, output, CPU, sampling, samples)


@pytest.mark.large
def test_the_mean_nll_of_what_it_says_is_its_mean_entropy(smollm2, tmp_path):
    file = tmp_path / "own.jsonl"
    record = generate(generation(smollm2, file, Sampling(64), 16))
    assert record["counts"]["written"] == 48
    # Some words in tokens that the tokenizer would not choose.
    assert record["counts"]["respelled"] > 0
    corpus, options = from_conversations_file(file), TorchOptions(device="cpu", dtype="float32")
    result = measure(Request(str(smollm2), corpus, preset("chat"), options, tmp_path / "runs"))
    assert result.record.document["plan"]["scored"] == record["counts"]["tokens"]
    assert result.record.document["corpus"]["generated"]["base"] == record["base"]
    scores = read_scores(result.folder)
    plan = plan_text(corpus, preset("chat"), model=str(smollm2)).plan
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    excess = []
    for window, (start, stop) in enumerate(zip(plan.start, plan.stop, strict=True)):
        mine = scores.window == window
        ids = torch.from_numpy(plan.tokens[start:stop].astype(np.int64))
        with torch.no_grad():
            rows = model(ids[None]).logits[0, scores.position[mine] - 1].double().log_softmax(-1)
        entropy = -(rows.exp() * rows).sum(-1).numpy()
        excess.append((scores.nll[mine] - entropy).sum())
    # Sums of conversations are independent, and their mean is 0.
    z = np.sum(excess) / np.sqrt(np.square(excess).sum())
    assert abs(z) < 4
    assert np.sqrt(np.square(excess).sum()) / record["counts"]["tokens"] < 0.1


@pytest.mark.large
def test_at_temperature_0_it_says_what_transformers_has_it_say(smollm2, tmp_path):
    """Its prompt by the library's own template and tokenizer, too."""
    file = tmp_path / "greedy.jsonl"
    generate(generation(smollm2, file, Sampling(40, temperature=0), 1))
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).eval()
    for line, said in zip(file.read_text(encoding="utf-8").splitlines(), SAID, strict=True):
        row = json.loads(line)
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": said}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        found = model.generate(**ids, do_sample=False, max_new_tokens=40)
        reply = found[0, ids["input_ids"].shape[1] :]
        assert row["generated"]["tokens"] == len(reply)
        assert row["messages"][-1]["content"] == tokenizer.decode(reply, skip_special_tokens=True)
        assert (row["finish_reason"] == "stop") == (int(reply[-1]) == tokenizer.eos_token_id)

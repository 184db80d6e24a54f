"""Replies by stock vLLM: settings without it, and with it against transformers' greedy ones."""

import json
from pathlib import Path

import numpy as np
import pytest

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.sampling import Sampling, SamplingRequest, seed_of
from scoremode.engines.torch.sampler import TorchSampling
from scoremode.engines.vllm import sampler as module
from scoremode.engines.vllm.sampler import VllmSampler, VllmSampling, _Generating

TEMPLATE = (
    "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
PROMPTS = ("The same value", "is computed once", "and the result is used again")


def test_vllms_own_choices_but_for_what_would_change_a_distribution(demo):
    config = json.loads((demo / "model" / "config.json").read_text())
    settings = _Generating(demo / "model", config, 300, "model", {"gpu_memory_utilization": 0.5})
    asked = settings.arguments("cuda", room=0)
    assert asked["generation_config"] == "vllm" and asked["max_model_len"] == 300
    assert asked["skip_tokenizer_init"] and asked["gpu_memory_utilization"] == 0.5
    # Scoring's own choices: generation wants caches, batches and graphs as vLLM has them.
    names = {"max_num_batched_tokens", "max_num_seqs", "kv_cache_memory_bytes", "enforce_eager"}
    assert not names & set(asked)
    assert settings.arguments("cpu", room=0)["enforce_eager"]
    assert "max_num_seqs" not in settings.arguments("cpu", room=0)


def test_on_a_cpu_it_takes_no_more_memory_than_its_sequences_need(demo):
    config = json.loads((demo / "model" / "config.json").read_text())
    asked = _Generating(demo / "model", config, 300, "model", {}).arguments("cpu", room=0)
    # Keys and values of 2 heads of 32 in 3 layers, bfloat16.
    assert asked["kv_cache_memory_bytes"] == 2 * 2 * 32 * 3 * 2 * 300 * asked["max_num_seqs"]


def test_batches_are_what_is_written_together(monkeypatch):
    monkeypatch.setattr(module, "_TOGETHER", 3)
    asked = [SamplingRequest(np.arange(n + 1, dtype=np.int32), n) for n in range(7)]
    made = VllmSampler.__new__(VllmSampler)
    assert made.batches(asked) == [[0, 1, 2], [3, 4, 5], [6]]


def test_the_identity_names_vllm_and_what_it_is_given(demo, monkeypatch):
    monkeypatch.setattr(module, "require_plugin", lambda: None)
    monkeypatch.setattr(module, "vllm_version", lambda: "0.32.0")
    how = VllmSampling(arguments={"tensor_parallel_size": 2, "seed": 3})
    assert how.identity(open_checkpoint(str(demo / "model"))) == {
        "engine": "vllm",
        "vllm": "0.32.0",
        "dtype": "bfloat16",
        "arguments": {"seed": 3, "tensor_parallel_size": 2},
    }


_DRAWN = ("--samples-per-prompt", "4", "--max-new-tokens", "16")
_FLAGS = {
    "greedy": ("--temperature", "0", "--max-new-tokens", "24"),
    "drawn": _DRAWN,
    "again": _DRAWN,
}
# Commands of one process, each of whose stdout is a file.
_COMMANDS = """
import contextlib, json, sys
from scoremode.cli.main import main
for out, arguments in json.loads(sys.argv[1]):
    with open(f"{out}.stdout", "w") as stdout, contextlib.redirect_stdout(stdout):
        assert main(["generate", *arguments, "-o", out, "--json"]) == 0
"""


@pytest.fixture(scope="session")
def generated(engines, demo):
    """The rows and the record of one of `_FLAGS`."""

    def make(name: str) -> tuple[list[dict], dict]:
        folder: Path = engines.folder / "generated"
        names = ("again",) if name == "again" else ("greedy", "drawn")
        with engines.once(f"generated {names[0]}") as is_first:
            if is_first:
                folder.mkdir(exist_ok=True)
                (folder / "t.jinja").write_text(TEMPLATE)
                (folder / "p.txt").write_text("\n".join(PROMPTS))
                files = ["--prompts", str(folder / "p.txt"), "--engine", "vllm"]
                template = ["--chat-template", str(folder / "t.jinja"), "--dtype", "float32"]
                asked = [str(demo / "model"), *files, *template]
                commands = [(f"{folder / n}.jsonl", [*asked, *_FLAGS[n]]) for n in names]
                code, _, err = engines.run(["-c", _COMMANDS, json.dumps(commands)])
                assert code == 0, err
        out = folder / f"{name}.jsonl"
        record = json.loads(Path(f"{out}.json").read_text())
        assert json.loads(Path(f"{out}.stdout").read_text()) == record
        return [json.loads(line) for line in out.read_text().splitlines()], record

    return make


def test_greedy_replies_are_transformers(generated, demo, encode):
    rows, record = generated("greedy")
    checkpoint = open_checkpoint(str(demo / "model"))
    ends = frozenset({1})
    torch = TorchSampling("cpu", "float32").open(checkpoint, 300, Sampling(24, 0.0), ends)
    for i, row in enumerate(rows):
        ids = np.array(ids_of(encode, f"user: {PROMPTS[i]}</s>assistant: "), np.int32)
        (reply,) = torch.replies([SamplingRequest(ids, 0)])
        text = row["messages"][-1]["content"]
        assert row["generated"]["tokens"] == len(reply.ids)
        assert row["finish_reason"] == ("stop" if reply.ended else "length")
        told = row.get("generated_ids")
        said = ids_of(encode, text)[1:] + ([1] if reply.ended else []) if told is None else told
        assert tuple(said) == reply.ids
    assert record["engine"]["vllm"] and record["counts"]["written"] == len(PROMPTS)


def ids_of(encode, text: str) -> list[int]:
    """Its ids, with one BOS."""
    found = encode(text)
    return found if found[:1] == [0] else [0, *found]


def test_each_reply_has_its_own_seed(generated):
    rows, record = generated("drawn")
    assert record["counts"]["replies"] == 12 == record["counts"]["written"]
    seeds = [row["generated"]["seed"] for row in rows]
    assert seeds == [seed_of(0, p, k) for p in range(3) for k in range(4)]
    texts = {json.dumps([row.get("messages", [])[-1:], row.get("completion")]) for row in rows}
    assert len(texts) > 8


@pytest.mark.large
def test_the_same_seeds_draw_the_same_replies(generated):
    """On one machine and in one batch."""
    assert generated("again")[0] == generated("drawn")[0]

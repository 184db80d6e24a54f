"""Log-likelihood requests as tasks make them: requests/s of the torch engine with shared beginnings and
without, and of lm-evaluation-harness's own backends, in one run and one table.

A model with random weights: of Llama-3.1-8B's shape on a GPU, of a small one on a CPU. Two sets of
random ids, with the lengths and the sharing of real ones: `hellaswag`, zero-shot, four endings behind
each context; `mmlu`, five-shot, subjects with shots of their own, and four choices of one token behind
each question. Each side runs in a process of its own, twice; the second round counts. The harness's
`hf` and `vllm` run where they are installed, called with token ids (`_loglikelihood_tokens`) and with
its own settings, but for the dtype.

    python benchmarks/tasks.py [--device cuda] [--requests 2000] [--form dense] [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu import Table, make
from models import SHAPES

CPU = SHAPES["cpu"] | {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4}
SIDES = ("shared", "apart", "hf", "vllm")
SETS = ("hellaswag", "mmlu")
# Choices of a question, shots of a subject, and questions of one: MMLU's 14,042 are of 57 subjects.
CHOICES, SHOTS, OF_SUBJECT = 4, 5, 246
# Tokens of MMLU's questions with their choices, about as GPT-4's or Llama 3's tokenizer counts them:
# median and spread on a logarithmic scale; of HellaSwag's contexts and endings.
QUESTION, CONTEXT, ENDING = (85, 0.55), (55, 0.6), (20, 0.45)
VOCABULARY = 120_000


def requests(name: str, count: int) -> list[tuple[list[int], list[int], int]]:
    """About `count` contexts and continuations as ids, each with the number of its question."""
    rng = np.random.default_rng(SETS.index(name))

    def drawn(median: int, spread: float = 0.0) -> list[int]:
        length = max(2, round(median * float(np.exp(rng.normal(0, spread)))))
        return rng.integers(3, VOCABULARY, min(length, 6 * median)).tolist()

    found, before, questions = [], [], max(1, count // CHOICES)
    subjects = max(1, round(questions / OF_SUBJECT))
    for number in range(questions):
        if name == "mmlu" and number % -(-questions // subjects) == 0:
            before = [t for _ in range(SHOTS) for t in drawn(*QUESTION)]
        context = [*before, *(drawn(*QUESTION) if name == "mmlu" else drawn(*CONTEXT))]
        for choice in range(CHOICES):
            said = [3 + choice] if name == "mmlu" else drawn(*ENDING)
            found.append((context, said, number))
    return found


def run_ours(model: str, name: str, count: int, device: str, *, shared: bool) -> dict[str, Any]:
    import torch

    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.text.task_requests import TASKS, TokenRequest, plan_of_requests

    asked = [TokenRequest(*each) for each in requests(name, count)]
    rules = replace(TASKS, context_length=8_192).resolve(None)
    begin = time.perf_counter()
    planned = plan_of_requests(asked, rules, 1)
    plan, planning = planned.plan, time.perf_counter() - begin
    if not shared:
        # The same windows as an ordinary text of many windows: each in a row of its own.
        plan = replace(plan, protocol=replace(rules, text="conversations"))
    options = TorchOptions(device=device, dtype="bfloat16")
    engine = build_engine(open_checkpoint(model), options, longest=int(plan.lengths.max()))
    begin = time.perf_counter()
    schedule = engine.schedule(plan)
    planning += time.perf_counter() - begin

    def score() -> np.ndarray:
        nll = np.concatenate([part.nll for part in engine.score(plan, schedule)])
        if device == "cuda":
            torch.cuda.synchronize()
        return nll

    nll, seconds = timed(score)
    sums = -np.add.reduceat(nll, plan.offsets[:-1])[planned.window]
    facts = engine.describe()
    computed = [
        schedule.size(plan, b) for p in schedule.passes(plan) for b in schedule.batches(plan, p)
    ]
    engine.close()
    return {
        "seconds": seconds,
        "sums": sums.tolist(),
        "how": facts.get("prefixes", "apart"),
        "tokens": int(sum(computed)),
        "whole": int(plan.lengths.sum()),
        "planning": planning,
        "peak_gib": (facts["peak_bytes"] or 0) / 2**30,
        "stages": facts["seconds"],
    }


def run_harness(model: str, name: str, count: int, device: str, *, backend: str) -> dict[str, Any]:
    """The harness's own backend over the same ids."""
    asked = [(("", ""), context, said) for context, said, _ in requests(name, count)]
    if backend == "hf":
        from lm_eval.models.huggingface import HFLM

        made: Any = HFLM(model, dtype="bfloat16", batch_size="auto", device=device)
    else:
        from lm_eval.models.vllm_causallms import VLLM

        made = VLLM(model, dtype="bfloat16", batch_size="auto", max_model_len=8_192)
    answers, seconds = timed(lambda: made._loglikelihood_tokens(asked, disable_tqdm=True))
    return {"seconds": seconds, "sums": [float(a[0]) for a in answers], "how": backend}


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What the second of two calls returns, and its seconds."""
    call()
    begin = time.perf_counter()
    return call(), time.perf_counter() - begin


def run(side: str, **given: Any) -> dict[str, Any]:
    if side in ("shared", "apart"):
        return run_ours(**given, shared=side == "shared")
    return run_harness(**given, backend=side)


def child(**given: Any) -> dict[str, Any] | None:
    """What a side says in a process of its own; None where it fails, after what it wrote."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(given)], stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def measure(args: argparse.Namespace, folder: Path, table: Table) -> None:
    model = folder / args.form
    if args.device == "cpu":
        from models import make_model

        if not model.exists():
            make_model(model, CPU, args.form, "cpu")
    else:
        make(model, SHAPES["cuda"], args.form)
    # The harness's own backends need special tokens, though none of them is used.
    special = {"bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in SETS:
        given = {"model": str(model), "name": name, "count": args.requests, "device": args.device}
        base: dict[str, Any] | None = None
        for side in args.sides.split(","):
            needed = {"hf": ["lm_eval"], "vllm": ["lm_eval", "vllm"]}.get(side, [])
            if any(importlib.util.find_spec(module) is None for module in needed):
                table.add(f"{name}, {side}", "not installed")
                continue
            found = child(side=side, **given)
            if found is None:
                table.add(f"{name}, {side}", "FAILED")
                continue
            base = base or found
            words = (
                f"{len(found['sums']) / found['seconds']:,.0f} requests/s, {found['seconds']:.2f} s"
            )
            off = float(np.sqrt(np.mean((np.array(found["sums"]) - np.array(base["sums"])) ** 2)))
            more = (
                f"{found['seconds'] / base['seconds']:.2f} of the first's time, rms {off:.2g} nats"
            )
            table.add(f"{name}, {side}", words, more)
            if "tokens" in found:
                stages = {k: round(v, 2) for k, v in found["stages"].items()}
                print(
                    f"    {found['how']}; {found['tokens']:,} tokens computed of {found['whole']:,}; "
                    f"planned in {found['planning']:.2f} s; peak {found['peak_gib']:.2f} GiB; {stages}",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the model goes (default: removed)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--requests", type=int, default=2000, help="of each set")
    parser.add_argument("--form", default="dense", help="the model's format, one of models.py")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run(**json.loads(args.child))), flush=True)
        # vLLM's threads may abort a process that ends of itself, after all was said.
        os._exit(0)
    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        measure(args, folder, table)
    print()
    table.print()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

"""Conversations of unequal lengths against equal windows: tokens/s, in one run and one table.

A model with random weights as W4A16: of Llama-3.1-8B's shape on a GPU, of a small one on a CPU. The
same engine scores windows of 2048 and, of as many tokens, conversations of 60 to 2,000 tokens, most of
them short: all of their targets, and every other turn's. Each case runs twice, the second round counts.
`--alone` adds one conversation a micro-batch, for what sharing gains, and by how much scores
differ.

    python benchmarks/chats.py [--device cuda] [--chats 1000] [--alone] [--folder DIR]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu import Table
from models import SHAPES, make_model

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol, preset

LENGTH = 2048
SHORTEST, LONGEST = 60, 2000
# Wanted: of the speed of equal windows, by the tokens of all windows.
SHARE = 0.8
CPU = SHAPES["cpu"] | {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "vocab_size": 32_000,
}


def conversations(count: int, *, turns: int | None) -> Plan:
    """`count` of them, their lengths even on a logarithmic scale; every other one of their `turns` of
    so many tokens is scored, or everything."""
    rng = np.random.default_rng(1)
    lengths = np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), count)).astype(np.int64)
    stop = lengths.cumsum()
    start = stop - lengths
    ids = rng.integers(3, 32_000, int(stop[-1])).astype(np.int32)
    place = np.arange(len(ids)) - np.repeat(start, lengths)
    counted = place > 0 if turns is None else place // turns % 2 == 1
    rules = preset("chat").override(context_length=LENGTH, scored="all" if turns is None else None)
    plan = Plan(
        rules.resolve(None),
        ids,
        start,
        stop,
        np.ones(count, np.int64),
        counted=counted,
        conversation=np.arange(count, dtype=np.int32),
    )
    return plan.arranged()


def speed(engine: Any, plan: Plan, sync: Any) -> tuple[float, np.ndarray, dict[str, Any]]:
    """Tokens/s of the second of two rounds, by all tokens of the windows, and the nll."""
    schedule, seconds, nll = engine.schedule(plan), 0.0, np.empty(0)
    for _ in range(2):
        sync()
        begin = time.perf_counter()
        nll = np.concatenate([part.nll for part in engine.score(plan, schedule)])
        sync()
        seconds = time.perf_counter() - begin
    return float(plan.lengths.sum()) / seconds, nll, schedule.to_json()


def measure(args: argparse.Namespace, folder: Path, table: Table) -> None:
    import torch

    shape = CPU if args.device == "cpu" else SHAPES["cuda"]
    model = folder / "w4a16"
    if not model.exists():
        make_model(model, shape, "w4a16", args.device)

    def sync() -> None:
        if args.device != "cpu":
            torch.cuda.synchronize()

    def engine(**options: Any) -> Any:
        made = TorchOptions(device=args.device, dtype="bfloat16", **options)
        return build_engine(open_checkpoint(str(model)), made)

    everything = conversations(args.chats, turns=None)
    turns = conversations(args.chats, turns=40)
    n = max(1, int(everything.lengths.sum()) // LENGTH)
    ids = np.random.default_rng(0).integers(3, 32_000, n * LENGTH).astype(np.int32)
    equal = make_plan(ids, Protocol("benchmark", context_length=LENGTH).resolve(None))
    made = engine()
    base, _, schedule = speed(made, equal, sync)
    table.add(f"{n} windows of {LENGTH}", f"{base:,.0f} tokens/s", str(schedule))
    nll = np.empty(0)
    for name, plan in (("all targets", everything), ("every other turn", turns)):
        found, scores, schedule = speed(made, plan, sync)
        nll = scores if name == "all targets" else nll
        words = f"{args.chats} conversations, {name}"
        padded = sum(
            len(b) * int(plan.lengths[b.start : b.stop].max())
            for p in made.schedule(plan).passes(plan)
            for b in made.schedule(plan).batches(plan, p)
        )
        more = f"{found:,.0f} tokens/s, {padded / plan.lengths.sum() - 1:.1%} filled up"
        table.ratio(words, found / base, SHARE, least=True, more=more)
        print(f"    {schedule}", flush=True)
    made.close()
    if args.alone:
        made = engine(batch_windows=1)
        found, scores, _ = speed(made, everything, sync)
        made.close()
        off = float(np.abs(scores - nll).max())
        table.add("one a micro-batch", f"{found / base:.3f}", f"nll differs by at most {off:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the model goes (default: removed)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--alone", action="store_true")
    args = parser.parse_args()
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

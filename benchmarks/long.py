"""Long windows on a GPU: tokens/s and memory, whole and within a bound, in one run and one table.

A model of Llama-3.1-8B's shape as W4A16 with random weights, and windows of 32k, 64k and 128k tokens of
random ids. Each case runs in a process of its own, so that each peak is its own. Bounds are
`--max-memory`'s; the ratio is to the same window without one, from which log-probabilities differ by so
much at most. At last a window of 2^20 tokens of a small model.

    PYTHONPATH=tests python benchmarks/long.py [--folder DIR] [--lengths 32768,131072]
        [--bounds 10,14] [--without-million]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gpu import Table, make
from models import SHAPES

GIB = 1 << 30
LENGTHS = (32_768, 65_536, 131_072)
BOUNDS = (10, 14, 16)
# Wanted: of the speed without a bound; of the peak, either way.
SPEED, ESTIMATE = 0.95, 0.15
# Wanted of 128k tokens within 14 GiB.
PEAK_GIB = 14
MILLION = 1 << 20
SMALL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32_000,
}


def run(
    model: str, length: int, windows: int, bound: int | None, rounds: int, out: str
) -> dict[str, Any]:
    """In this process: rounds over the same windows; the last one's tokens/s, and the memory of all."""
    import torch

    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.errors import ScoremodeError
    from scoremode.text.plan import make_plan
    from scoremode.text.protocol import Protocol

    ids = np.random.default_rng(0).integers(3, 32_000, windows * length).astype(np.int32)
    plan = make_plan(ids, Protocol("benchmark", context_length=length).resolve(None))
    options = TorchOptions(device="cuda", max_memory=bound and bound * GIB)
    begin = time.perf_counter()
    try:
        engine = build_engine(open_checkpoint(model), options, longest=length)
        schedule = engine.schedule(plan)
    except ScoremodeError as error:
        return {"refused": str(error)}
    start, seconds, nll = time.perf_counter() - begin, [], np.empty(0)
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        try:
            nll = np.concatenate([part.nll for part in engine.score(plan, schedule)])
        except ScoremodeError as error:
            return {"refused": f"{schedule}: {error}"}
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    np.save(out, nll)
    facts = engine.describe()
    engine.close()
    return {
        "tokens_per_s": plan.lengths.sum() / seconds[-1],
        "start": start,
        "seconds": seconds,
        "stages": facts["seconds"],
        "schedule": schedule.to_json(),
        "placement": facts["placement"],
        "chunks": facts["chunks"],
        "peak": facts["peak_bytes"],
        "allocated": torch.cuda.max_memory_allocated(),
        "estimate": facts["estimated_bytes"],
    }


def child(**given: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"refused": f"exit code {done.returncode}: {done.stderr.strip()[-600:]}"}
    return json.loads(done.stdout.splitlines()[-1])


def add(table: Table, name: str, found: dict[str, Any], whole: dict[str, Any] | None) -> None:
    if "refused" in found:
        table.add(name, f"refused: {found['refused']}")
        return
    print(f"    {json.dumps(found)}", flush=True)
    chunk = found["schedule"].get("chunk_tokens")
    estimate, peak = found["estimate"] / GIB, found["peak"] / GIB
    words = f"{found['tokens_per_s']:,.0f} tokens/s, peak {peak:.2f} GiB"
    words += f" ({found['allocated'] / GIB:.2f} of tensors), {found['placement']}, "
    words += f"chunks of {chunk}" if chunk else "whole"
    table.add(name, words)
    off = estimate / peak - 1
    met = "met" if abs(off) <= ESTIMATE else "NOT MET"
    table.add(f"{name}: estimate", f"{estimate:.2f} GiB, {off:+.1%}", f"within 15 %: {met}")
    if whole is not None and "refused" not in whole:
        ratio = found["tokens_per_s"] / whole["tokens_per_s"]
        table.ratio(f"{name}: speed / whole", ratio, SPEED, least=True, more=found["differs"])


def differs(one: Path, other: Path) -> str:
    if not (one.exists() and other.exists()):
        return ""
    ours, theirs = np.load(one), np.load(other)
    ratio = np.exp(ours.mean() - theirs.mean())
    return f"differs by at most {np.abs(ours - theirs).max():.2g}, PPL ratio {ratio:.6f}"


def measure(args: argparse.Namespace, folder: Path, table: Table) -> None:
    begin = time.perf_counter()
    model = folder / "w4a16" / "model"
    model.parent.mkdir(exist_ok=True)
    make(model, SHAPES["cuda"], "w4a16")
    print(f"  model made in {time.perf_counter() - begin:.0f} s", flush=True)
    for length in args.lengths:
        windows, whole = max(1, 65_536 // length), None
        for bound in (None, *args.bounds):
            if bound == 16 and length < 131_072:
                continue
            out = folder / f"nll-{length}-{bound}.npy"
            found = child(
                model=str(model),
                length=length,
                windows=windows,
                bound=bound,
                rounds=2,
                out=str(out),
            )
            found["differs"] = differs(out, folder / f"nll-{length}-None.npy")
            name = f"{length >> 10}k" + (f" in {bound} GiB" if bound else "")
            add(table, name, found, whole)
            if bound is None:
                whole = found
            if (length, bound) == (131_072, PEAK_GIB) and "peak" in found:
                peak = found["peak"] / GIB
                table.ratio(f"{name}: peak, GiB", peak, PEAK_GIB, least=False)
    if not args.without_million:
        small = folder / "small" / "model"
        small.parent.mkdir(exist_ok=True)
        make(small, SMALL, "w4a16")
        out = folder / "nll-million.npy"
        given = {"length": MILLION, "windows": 1, "bound": 16, "rounds": 1}
        add(table, "1M, small, in 16 GiB", child(model=str(small), **given, out=str(out)), None)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where models go (default: removed)")
    parser.add_argument("--lengths", type=_numbers, default=LENGTHS)
    parser.add_argument("--bounds", type=_numbers, default=BOUNDS)
    parser.add_argument("--without-million", action="store_true")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(run(**args.child), default=float))
        return
    table, begin = Table(), time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        measure(args, folder, table)
    print(f"\n{time.perf_counter() - begin:.0f} s in all\n")
    table.print()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

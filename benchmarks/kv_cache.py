"""What a cache's format costs in time on a GPU, beside none, and whether a GPU rounds as a CPU does.

A model of Llama-3.1-8B's shape as W4A16 with random weights, 32 windows of 2048 tokens of random ids,
twice for each format; the second round counts. Then the kernel alone, on the keys of one layer.

    PYTHONPATH=tests python benchmarks/kv_cache.py [--folder DIR] [--formats "int8;q4_0-had"]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gpu import Table, make
from models import SHAPES

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.kv_cache.formats import rounded
from scoremode.engines.torch.options import TorchOptions
from scoremode.lib import fallback
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol

FORMATS = (
    *("fp8_e4m3", "fp8_e4m3-tensor", "int8", "int4-g32", "q8_0", "nvfp4"),
    *("int8-had", "k=q4_0-had,v=q4_0-had64"),
)
WINDOWS, LENGTH = 32, 2048
# Wanted: of the speed without a cache's format.
SPEED = 0.9


def speed(model: Path, plan: Plan, name: str | None) -> tuple[float, str]:
    """Tokens/s of the second round, and what computed the rounding."""
    fallback.forget()
    cache = "none" if name is None else parse_kv_cache(name)
    options = TorchOptions(device="cuda", kv_cache=cache, batch_windows=8)
    engine = build_engine(open_checkpoint(str(model)), options)
    seconds = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        list(engine.score(plan, engine.schedule(plan)))
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    engine.close()
    return plan.lengths.sum() / seconds, fallback.ran().get("KV cache", "nothing")


def alone(name: str) -> tuple[float, float, bool]:
    """Seconds of one launch, bytes/s, and whether the numbers are a CPU's, of 8 windows' keys."""
    form = parse_kv_cache(name).k
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, LENGTH, 8, 128, generator=generator).bfloat16().transpose(1, 2)
    given, scale = x.cuda(), torch.tensor([0.01])
    on_device = scale.cuda()
    same = torch.equal(rounded(given, form, on_device).cpu(), rounded(x, form, scale))
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        rounded(given, form, on_device)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000)
    best = min(times)
    return best, 2 * given.nbytes / best, same


def measure(model: Path, names: list[str], table: Table) -> None:
    ids = np.random.default_rng(0).integers(3, 32_000, WINDOWS * LENGTH).astype(np.int32)
    plan = make_plan(ids, Protocol("benchmark", context_length=LENGTH).resolve(None))
    # The first engine of a process also compiles what all of them use.
    speed(model, plan, None)
    plain, _ = speed(model, plan, None)
    table.add("none", f"{plain:,.0f} tokens/s")
    for name in names:
        found, by = speed(model, plan, name)
        table.ratio(name, found / plain, SPEED, least=True, more=f"{found:,.0f} tokens/s, {by}")
    again, _ = speed(model, plan, None)
    table.add("none, again", f"{again:,.0f} tokens/s")
    for name in dict.fromkeys(str(parse_kv_cache(name).k) for name in names):
        seconds, rate, same = alone(name)
        words = f"{seconds * 1e6:.0f} µs, {rate / 1e12:.2f} TB/s"
        table.add(f"{name} alone", words, "a CPU's numbers" if same else "NOT a CPU's numbers")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where the model goes (default: removed)")
    parser.add_argument("--formats", help="split by semicolons", default=";".join(FORMATS))
    args = parser.parse_args()
    table, begin = Table(), time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        model = (args.folder or Path(temporary)) / "w4a16" / "model"
        model.parent.mkdir(parents=True, exist_ok=True)
        make(model, SHAPES["cuda"], "w4a16")
        measure(model, args.formats.split(";"), table)
    print(f"\n{time.perf_counter() - begin:.0f} s in all\n")
    table.print()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

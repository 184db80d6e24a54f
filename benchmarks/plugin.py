"""Scoring in vLLM with the plugin against vLLM's own ways, in one run.

Random weights of a real shape (right for speed, meaningless for quality). Each side runs in a process
of its own, sides alternate, and every side gets a warm-up of one scheduler step:

- `plugin`: `ScoringLLM`, its defaults.
- `stock`: `prompt_logprobs=0, flat_logprobs=True, detokenize=False`, vLLM's fastest exact way.
- `prefill`: the same prompts without logprobs, which runs the head for one token a prompt.

On a GPU the shape is Llama-3.1-8B's, on a CPU a small trunk with a vocabulary of 131,072, where the
memory that scoring itself takes is told apart from the model's.

    python benchmarks/plugin.py [--windows 64] [--formats w4a16,fp8,nvfp4,dense] [--compiled] [-tp 1,2]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from models import SHAPES, make_model

SIDES = ("plugin", "stock", "prefill")


def prompts(windows: int, shape: dict[str, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    ids = generator.integers(3, shape["vocab_size"], (windows, shape["length"]))
    return list(ids.astype(np.int32))


def run_side(
    side: str, model: str, device: str, windows: int, rounds: int, eager: bool, ranks: int, out: str
) -> dict[str, Any]:
    shape = SHAPES[device]
    given: dict[str, Any] = {"enforce_eager": eager, "tensor_parallel_size": ranks}
    ids = prompts(windows, shape)
    begin = time.perf_counter()
    if side == "plugin":
        from scoremode.engines.vllm import ScoringLLM

        llm = ScoringLLM(model, max_model_len=shape["length"], strict=True, **given)

        def score() -> Any:
            return [s.logprob for s in llm.score(ids)]

        memory, facts, warm = llm._backend.ask, llm.describe, llm.score
    else:
        llm, score, memory, facts, warm = _stock(side, model, device, shape, given, ids)
    load = time.perf_counter() - begin
    _reset_peak()
    before = _resident()
    warm(ids[: max(1, min(8, windows))])
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        logprobs = score()
        seconds.append(time.perf_counter() - begin)
    if logprobs is not None:
        np.save(out, np.stack(logprobs))
    tokens = windows * shape["length"]
    return {
        "tokens_per_s": [tokens / s for s in seconds],
        "load_s": load,
        "transient_bytes": _peak() - before,
        "memory": memory("scoremode_memory"),
        "facts": facts(),
    }


def _stock(
    side: str, model: str, device: str, shape: dict[str, int], given: dict[str, Any], ids: Any
) -> Any:
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    from vllm import LLM, SamplingParams

    from scoremode.engines.vllm.start import EXTENSION

    step = 16_384 if device == "cuda" else 2 * shape["length"]
    settings: dict[str, Any] = {"kv_cache_memory_bytes": 8 << 30} if device == "cuda" else {}
    llm = LLM(
        model,
        max_model_len=shape["length"] + 8,
        max_num_batched_tokens=step,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        worker_extension_cls=EXTENSION,
        disable_log_stats=True,
        **settings,
        **given,
    )
    wanted = {} if side == "prefill" else {"prompt_logprobs": 0, "flat_logprobs": True}
    params = SamplingParams(max_tokens=1, detokenize=False, **wanted)  # pyright: ignore

    def run(some: Any) -> Any:
        asked = [{"prompt_token_ids": row.tolist()} for row in some]
        return llm.generate(asked, params, use_tqdm=False)

    def score() -> Any:
        outputs = run(ids)
        if side == "prefill":
            return None
        # The first position has no entry, every other one.
        return [np.array(o.prompt_logprobs.logprobs, np.float32) for o in outputs]

    return llm, score, llm.collective_rpc, lambda: llm.collective_rpc("scoremode_describe")[-1], run


def _status(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def measure_side(
    args: argparse.Namespace, side: str, model: Path, eager: bool, ranks: int
) -> dict[str, Any]:
    out = scores_file(model, side, ranks)
    out.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--side", side, "--model", str(model), "--out", str(out)]
    command += ["--windows", str(args.windows), "--rounds", str(args.rounds), "-tp", str(ranks)]
    command += ["--device", args.device] + ([] if eager else ["--compiled"])
    environment = dict(os.environ)
    # One process for all, so that both sides batch alike; VLLM_... of the caller win.
    if args.in_process:
        environment.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{side} failed")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default=None)
    parser.add_argument("--windows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--formats", default="w4a16")
    parser.add_argument("--compiled", action="store_true", help="compiled as well as eager")
    parser.add_argument("--in-process", action="store_true", help="stock's core in its own process")
    parser.add_argument("-tp", default="1", help="tensor-parallel sizes, such as 1,2")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device is None:
        import torch

        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.side:
        result = run_side(
            args.side, args.model, args.device, args.windows, args.rounds, not args.compiled,
            int(args.tp), args.out,
        )  # fmt: skip
        print(json.dumps(result, default=str))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form in args.formats.split(","):
            model = Path(folder) / form / "model"
            model.parent.mkdir()
            # In a process of its own, which leaves nothing on the device.
            maker = multiprocessing.get_context("spawn").Process(
                target=make_model, args=(model, SHAPES[args.device], form, args.device)
            )
            maker.start()
            maker.join()
            if maker.exitcode:
                raise SystemExit(f"making the {form} model failed")
            for eager in (True, False) if args.compiled else (True,):
                for ranks in (int(n) for n in args.tp.split(",")):
                    sides = args.sides.split(",")
                    results = {s: measure_side(args, s, model, eager, ranks) for s in sides}
                    rows.append((form, eager, ranks, results, differences(model, ranks)))
    report(args, rows)


def scores_file(model: Path, side: str, ranks: int) -> Path:
    return model.with_name(f"{side}-{ranks}.npy")


def differences(model: Path, ranks: int) -> dict[str, float]:
    """The largest differences of a token's log-probability: plugin to stock, and to one rank."""
    plugin, stock = (scores_file(model, side, ranks) for side in ("plugin", "stock"))
    pairs = {"plugin to stock": (plugin, stock)}
    if ranks > 1:
        for side, file in (("plugin", plugin), ("stock", stock)):
            pairs[f"{side}, {ranks} ranks to 1"] = (file, scores_file(model, side, 1))
    return {
        name: float(np.abs(np.load(one) - np.load(other)).max())
        for name, (one, other) in pairs.items()
        if one.exists() and other.exists()
    }


def report(args: argparse.Namespace, rows: list[Any]) -> None:
    print(f"\n{args.windows} windows of {SHAPES[args.device]['length']}")
    for form, eager, ranks, sides, worst in rows:
        print(f"\n{form}, {'eager' if eager else 'compiled'}, -tp {ranks}")
        best = {side: max(result["tokens_per_s"]) for side, result in sides.items()}
        for side, result in sides.items():
            memory = result["memory"][0]
            used = memory.get("device_used", memory["peak"]) / 2**30
            facts = result["facts"]
            print(
                f"  {side:8} {best[side]:10,.0f} tokens/s  load {result['load_s']:5.1f} s  "
                f"device {used:6.2f} GiB  transient {result['transient_bytes'] / 2**20:8.1f} MiB  "
                f"{facts['runner']} {facts['linear']}"
            )
        for other in ("stock", "prefill"):
            if "plugin" in best and other in best:
                print(f"  plugin / {other}: {best['plugin'] / best[other]:.3f}")
        if "plugin" in sides and "stock" in sides:
            share = sides["plugin"]["transient_bytes"] / max(1, sides["stock"]["transient_bytes"])
            print(f"  transient memory, plugin / stock: {share:.4f}")
        for name, value in worst.items():
            print(f"  largest difference of a log-probability, {name}: {value:.2e} nats")


if __name__ == "__main__":
    main()

"""Scoring on a CPU against what people would run instead, in one run.

A model of Qwen2-0.5B's shape with random weights (right for speed, meaningless for quality): dense
bf16 through transformers' own forward with all logits and a log-softmax, and the same shape as
W4A16 group 128 through scoremode. Each side runs in its own process, so that each peak is its own;
rounds alternate. `--llama-perplexity` and `--gguf` add llama.cpp where it is built, on a Q4_0 file
of the same shape; it scores half of the positions.

    python benchmarks/cpu.py [--windows 16] [--rounds 1] [--llama-perplexity BIN --gguf F --text F]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LENGTH = 2048
SHAPE = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}


def make_models(folder: Path) -> tuple[Path, Path]:
    """The dense and the W4A16 checkpoint."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from scoremode.demo.quantize import Variant, quantize_folder

    settings = dict(SHAPE)
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    dense, packed = folder / "dense", folder / "w4a16"
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(dense)
    quantize_folder(dense, packed, Variant("W4A16-g128", 4, 128))
    return dense, packed


def ids(windows: int) -> Any:
    import numpy as np

    return np.random.default_rng(0).integers(0, 150_000, windows * LENGTH).astype(np.int32)


def peak_gib() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run_transformers(folder: Path, windows: int, dtype: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    tokens = torch.from_numpy(ids(windows)).long().view(windows, LENGTH)
    total = 0.0
    begin = time.perf_counter()
    with torch.no_grad():
        for row in tokens:
            logits = model(input_ids=row[None], use_cache=False).logits[0, :-1]
            logprob = logits.float().log_softmax(-1).gather(1, row[1:, None])
            total += float(logprob.double().sum())
    seconds = time.perf_counter() - begin
    return {"tokens_per_s": tokens.numel() / seconds, "peak_gib": peak_gib(), "nll": -total}


def run_scoremode(folder: Path, windows: int, dtype: str, shares: bool) -> dict[str, Any]:
    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.text.plan import make_plan
    from scoremode.text.protocol import Protocol

    options = TorchOptions(device="cpu", dtype=dtype)  # pyright: ignore[reportArgumentType]
    engine = build_engine(open_checkpoint(str(folder)), options)
    protocol = Protocol("benchmark", context_length=LENGTH).resolve(None)
    plan = make_plan(ids(windows), protocol)
    begin = time.perf_counter()
    nll = sum(float(part.nll.sum()) for part in engine.score(plan, engine.schedule(plan)))
    seconds = time.perf_counter() - begin
    described = engine.describe()
    result = {
        "tokens_per_s": windows * LENGTH / seconds,
        "peak_gib": peak_gib(),
        "nll": nll,
        "dtype": described["dtype"],
        "seconds": described["seconds"],
    }
    if shares:
        result["shares"] = layer_shares(engine, plan)
    return result


def layer_shares(engine: Any, plan: Any) -> dict[str, float]:
    """Where a pass over two windows goes, by the profiler: shares of its time."""
    from torch.profiler import ProfilerActivity, profile

    from scoremode.text.plan import make_plan

    few = make_plan(plan.tokens[: 2 * LENGTH], plan.protocol)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        list(engine.score(few, engine.schedule(few)))
    kinds = {"attention": 0.0, "matmuls": 0.0, "the rest of the layers": 0.0}
    for event in profiler.key_averages():
        if "scaled_dot_product" in event.key or "flash_attention" in event.key:
            kinds["attention"] += event.self_cpu_time_total
        elif event.key in ("aten::mm", "aten::addmm", "aten::bmm", "mkldnn::_linear_pointwise"):
            kinds["matmuls"] += event.self_cpu_time_total
        else:
            kinds["the rest of the layers"] += event.self_cpu_time_total
    total = sum(kinds.values())
    return {kind: value / total for kind, value in kinds.items()}


def run_llama(binary: str, gguf: str, text: str) -> dict[str, Any]:
    command = [binary, "-m", gguf, "-f", text, "-c", str(LENGTH), "-b", str(LENGTH)]
    command += ["--chunks", "2", "-t", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # It times its first pass, of one chunk when the batch is as long as the context.
    found = re.search(r"([\d.]+) seconds per pass", done.stdout + done.stderr)
    if not found:
        raise SystemExit("llama-perplexity printed no seconds per pass")
    return {"tokens_per_s": LENGTH / float(found[1])}


def child(side: str, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--side", side, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument(
        "--peer-windows", type=int, help="fewer windows for transformers, whose rate is the same"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--models", type=Path, help="make the models here, and keep them")
    parser.add_argument("--dtype", default="auto", help="what scoremode computes in")
    parser.add_argument("--llama-perplexity", metavar="BIN")
    parser.add_argument("--gguf", metavar="F")
    parser.add_argument("--text", metavar="F")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side == "scoremode":
        print(json.dumps(run_scoremode(args.model, args.windows, args.dtype, shares=True)))
        return
    if args.side == "transformers":
        print(json.dumps(run_transformers(args.model, args.windows, args.dtype)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.models or Path(temporary)
        dense, packed = folder / "dense", folder / "w4a16"
        if not packed.exists():
            dense, packed = make_models(folder)
        compare(args, dense, packed)


def compare(args: argparse.Namespace, dense: Path, packed: Path) -> None:
    peer_windows = args.peer_windows or args.windows
    results: dict[str, list[dict[str, Any]]] = {}
    for _ in range(args.rounds):
        for name, side, model, dtype in (
            ("transformers bf16 dense", "transformers", dense, "bfloat16"),
            ("transformers fp32 dense", "transformers", dense, "float32"),
            ("scoremode W4A16 g128", "scoremode", packed, args.dtype),
        ):
            windows = args.windows if side == "scoremode" else peer_windows
            flags = ("--model", str(model), "--windows", str(windows), "--dtype", dtype)
            results.setdefault(name, []).append(child(side, *flags))
        if args.llama_perplexity:
            llama = run_llama(args.llama_perplexity, args.gguf, args.text)
            results.setdefault("llama-perplexity Q4_0", []).append(llama)
    peer = results["transformers bf16 dense"]
    from scoremode.engines.torch.device import choose_device

    name = choose_device("cpu", None, None).name
    print(f"{name}: {args.windows} windows of {LENGTH} ({peer_windows} for transformers)")
    print(f"{'':26}{'tokens/s':>10}{'ratio':>8}{'peak GiB':>10}{'ratio':>8}")
    best = max(r["tokens_per_s"] for r in peer)
    for name, rounds in results.items():
        speed = max(r["tokens_per_s"] for r in rounds)
        line = f"{name:26}{speed:10.1f}{speed / best:8.2f}"
        if "peak_gib" in rounds[0]:
            peak = max(r["peak_gib"] for r in rounds)
            line += f"{peak:10.2f}{peak / peer[0]['peak_gib']:8.2f}"
        print(line)
    ours = results["scoremode W4A16 g128"][-1]
    work = {k: v for k, v in ours["seconds"].items() if k != "load"}
    total = sum(work.values())
    print(f"scoremode computed in {ours['dtype']}; stages: ", end="")
    print(", ".join(f"{k} {v / total:.1%}" for k, v in work.items()))
    print("operations: " + ", ".join(f"{k} {v:.1%}" for k, v in ours["shares"].items()))


if __name__ == "__main__":
    main()

"""What a comparison costs beside a perplexity: time, memory and disk, in one run.

Models with random weights of a real shape (right for speed, meaningless for quality): a dense base and
its W4A16 group-128 variant, on a CPU of Qwen2-0.5B's shape, on a GPU of Llama-3.1-8B's with fewer
layers. Everything runs by the command line in processes of its own, in rounds that alternate:

- `ppl` of both, `reference` of the base, `kld` of the variant from it and with the base beside it;
- the reference on disk against 16-bit logits of the same positions;
- 1.2 million made-up scored tokens through all statistics.

    python benchmarks/kld.py [--windows 8] [--rounds 2] [--engine torch|vllm] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cpu import LENGTH
from cpu import SHAPE as QWEN2_05B

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rope_theta": 5e5,
    "tie_word_embeddings": False,
}


def make_models(
    folder: Path, shape: dict[str, Any], layers: int | None, device: str
) -> tuple[Path, Path]:
    """The dense base and its W4A16 variant, with a tokenizer whose words are `t0`, `t1`, …"""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    from scoremode.demo.quantize import Variant, quantize_folder

    settings = dict(shape) | ({"num_hidden_layers": layers} if layers else {})
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    torch.manual_seed(0)
    dense, packed = folder / "base", folder / "w4a16"
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.cpu().save_pretrained(dense)
    words = {f"t{i}": i for i in range(settings["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(dense / "tokenizer.json"))
    quantize_folder(dense, packed, Variant("W4A16-g128", 4, 128))
    return dense, packed


def run(
    command: str, model: Path, folder: Path, args: argparse.Namespace, *more: str
) -> dict[str, Any]:
    """One command in a process of its own: seconds of its stages, of the whole, and its peak."""
    words = [sys.executable, "-m", "scoremode", command, str(model), "-f", str(folder / "text")]
    words += ["--protocol", "disjoint", "-c", str(LENGTH), "--json", "--engine", args.engine]
    if args.engine == "torch":
        words += ["--device", args.device]
    if command != "reference":
        words += ["-o", str(folder / "runs")]
    begin = time.perf_counter()
    done = subprocess.run([*words, *more], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    record = json.loads(done.stdout)
    stages = record["engine"]["seconds"]
    return {
        "seconds": sum(v for k, v in stages.items() if k != "load"),
        "wall": record["seconds"]["score"] + record["seconds"]["write"],
        "head": stages.get("head", float("nan")),
        "process": time.perf_counter() - begin,
        "peak": record["engine"]["peak_bytes"],
        "record": record,
    }


def compare(folder: Path, args: argparse.Namespace) -> None:
    shape = QWEN2_05B if args.device == "cpu" else LLAMA_8B
    layers = args.layers or (None if args.device == "cpu" else 8)
    # In a process of its own: a child's peak is never below what its parent had at its start.
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        base, packed = other.submit(make_models, folder, shape, layers, args.device).result()
    vocabulary, width = shape["vocab_size"], shape["hidden_size"]
    ids = np.random.default_rng(0).integers(0, vocabulary, args.windows * LENGTH)
    (folder / "text").write_text(" ".join(f"t{i}" for i in ids))
    best: dict[str, dict[str, Any]] = {}
    for number in range(args.rounds):
        kept = folder / f"reference{number}"
        sides = [
            ("ppl of the base", "ppl", base, []),
            ("ppl", "ppl", packed, []),
            ("reference", "reference", base, ["-o", str(kept)]),
            ("kld, stored", "kld", packed, ["--reference", str(kept)]),
        ]
        if args.engine == "torch":
            sides.append(("kld, beside", "kld", packed, ["--reference", str(base)]))
        for name, command, model, more in sides:
            found = run(command, model, folder, args, *more)
            if name not in best or found["seconds"] < best[name]["seconds"]:
                best[name] = found
            print(f"round {number}: {name}: {found['seconds']:.2f} s, head {found['head']:.2f} s, "
                  f"scored and written in {found['wall']:.2f} s, "
                  f"process {found['process']:.1f} s, peak {found['peak'] / 2**30:.3f} GiB",
                  flush=True)  # fmt: skip
    ppl, of_base, stored = best["ppl"], best["ppl of the base"], best["kld, stored"]
    extra = (stored["seconds"] - ppl["seconds"]) / ppl["head"]
    print(f"\nkld, stored: ppl + {extra:.2f} × head  (at most 1.6)")
    if "kld, beside" in best:
        both = ppl["seconds"] + of_base["seconds"]
        rest = 1.6 * ppl["head"]
        ratio = (best["kld, beside"]["seconds"] - rest) / both
        print(f"kld, beside: {ratio:.3f} × both ppl + 1.6 × head  (at most 1.05)")
    slower = best["reference"]["seconds"] / of_base["seconds"]
    print(f"reference: {slower:.3f} × ppl of the base  (at most 1.05)")
    logits = args.windows * LENGTH * vocabulary * 4
    for name in ("kld, stored", "kld, beside"):
        if name in best:
            more_bytes = best[name]["peak"] - ppl["peak"]
            print(f"memory of {name}: {more_bytes / 2**20:+.0f} MiB to ppl's; all float32 logits of "
                  f"one model take {logits / 2**20:,.0f}")  # fmt: skip
    sizes(folder / "reference0", args.windows, vocabulary, width)
    replayed = stored["record"]["reference"]["replay"]
    print(f"replay: {replayed}")


def sizes(folder: Path, windows: int, vocabulary: int, width: int) -> None:
    """The reference on disk, and what one of 100 windows takes."""
    states = sum(f.stat().st_size for f in (folder / "states").iterdir())
    head = (folder / "head.safetensors").stat().st_size
    whole = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    positions = windows * (LENGTH - 1)
    scores = whole - states - head
    print(f"on disk: states {states / 1e9:.3f} GB, head {head / 1e9:.3f}, the rest "
          f"{scores / 1e6:.1f} MB, for {positions:,} positions of {width}")  # fmt: skip
    many = 100 * (LENGTH - 1)
    without = (states + scores) / positions * many
    logits, total = many * vocabulary * 2, without + head
    print(f"of 100 windows: {total / 1e9:.2f} GB with the head, {without / 1e9:.2f} "
          f"without; 16-bit logits take {logits / 1e9:.1f}: {logits / total:.1f} × that")  # fmt: skip


def statistics() -> None:
    """1.2 million evaluations of windows of 2048 every 512, in this process."""
    from scoremode.results.record.sections import sections
    from scoremode.results.scores import Comparison, Scores
    from scoremode.results.statistics.llama_cpp import llama_cpp_block
    from scoremode.text.plan import make_plan
    from scoremode.text.protocol import Protocol

    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 100_000, 512 * 586 + LENGTH).astype(np.int32)
    plan = make_plan(tokens, Protocol("benchmark", context_length=LENGTH, stride=512).resolve(None))
    from scoremode.results.scores import expected

    columns = expected(plan, range(len(plan)))
    n = len(columns["window"])
    base = -rng.exponential(2.0, n)
    noise = rng.normal(0, 0.2, n)
    against = Comparison(
        base_logprob=base,
        base_top1=columns["target"],
        base_top1_logprob=base,
        kld=noise**2 / 2,
        kld_reverse=noise**2 / 2,
        tv=np.ones(n),
        jsd=noise**2 / 8,
        topk_sets=rng.integers(0, 1024, n).astype(np.int16),
        topk_order=rng.integers(0, 11, n).astype(np.int8),
    )
    scores = Scores(
        **columns,
        logprob=np.minimum(base + noise, 0.0),
        top1=columns["target"],
        top1_logprob=np.minimum(base + noise, 0.0),
        against=against,
    )
    extras = {
        "token_bytes": rng.integers(1, 8, n).astype(np.uint16),
        "token_class": rng.integers(0, 7, n).astype(np.uint8),
    }
    begin = time.perf_counter()
    sections(scores, LENGTH, extras)
    llama_cpp_block(
        scores.nll, -against.base_logprob, against.kld, scores.top1 == against.base_top1
    )
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"statistics of {n:,} scored tokens: {seconds:.2f} s (at most 10), process peak "
          f"{peak:.2f} GiB (at most 2)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", choices=("all", "statistics", "comparison"), default="all")
    parser.add_argument("--folder", type=Path, help="where models and runs go (default: removed)")
    args = parser.parse_args()
    if args.part != "comparison":
        # In a process of its own, since a peak is of a process.
        if args.part == "all":
            subprocess.run([sys.executable, __file__, "--part", "statistics"], check=True)
        else:
            statistics()
    if args.part != "statistics":
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            compare(Path(folder), args)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

"""The torch engine on a GPU against stock vLLM and its own matmuls, in one run and one table.

Models of Llama-3.1's shapes with random weights in real files (right for speed, meaningless for
quality), windows of 2048. Every side runs in a process of its own. vLLM runs `prompt_logprobs=0,
flat_logprobs=True, detokenize=False`, eager and as it is by default; where it isn't installed its lines
are left out. Parts, all of them unless `--parts` names some:

- `steady`: tokens/s of the second of two rounds, every format, and vLLM's, but for GGUF.
- `bound`: the same model's matmuls, attention and head matmul alone, and shares of the stages.
- `process`: `scoremode ppl` from exec to exit, and vLLM's process for the same windows.
- `memory`: the peak by default, and the speed with passes and micro-batches twice as large.
- `line`: time and peak against the number of windows.
- `kld`: from a kept reference and with the base beside it, against `ppl`.
- `placement`: a 70B shape within 10 GiB of the device, from host memory and from disk.
- `devices`: two and four GPUs against one.

    python benchmarks/gpu.py [--parts steady,process] [--formats w4a16,…] [--windows 64] [--folder DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from models import SHAPES, make_model

LENGTH = 2048
SHAPE_70B = {
    "hidden_size": 8192,
    "intermediate_size": 28_672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "length": LENGTH,
}
# Wanted of each format: tokens/s as a multiple of vLLM's.
STEADY = {
    "w4a16": 1.08,
    "w4a16-g32-asym": 1.5,
    "nvfp4a16": 2.0,
    "fp8": 0.95,
    "dense": 1.08,
    "awq": 1.08,
    "gptq": 1.08,
    "modelopt-nvfp4": 1.08,
    "fp8-block": 1.0,
    "gpt-oss": 1.0,
}
# Wanted of formats that vLLM is not timed with: tokens/s as a share of our own with W4A16.
BESIDE_W4A16 = {"gguf-Q4_K_M": 0.95}
PARTS = ("steady", "bound", "process", "memory", "line", "kld", "placement", "devices")


class Table:
    """The lines of the result: what was measured, beside what is wanted of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str]] = []

    def add(self, name: str, value: str, wanted: str = "") -> None:
        self.rows.append((name, value, wanted))
        print(f"  {name}: {value} {f'({wanted})' if wanted else ''}", flush=True)

    def ratio(self, name: str, value: float, limit: float, *, least: bool, more: str = "") -> None:
        met = value >= limit if least else value <= limit
        sign = "≥" if least else "≤"
        words = f"{value:.3f}{f'  {more}' if more else ''}"
        self.add(name, words, f"{sign} {limit:g}: {'met' if met else 'NOT MET'}")

    def print(self) -> None:
        widths = [max(len(row[i]) for row in self.rows) for i in range(2)]
        for name, value, wanted in self.rows:
            print(f"{name:{widths[0]}}  {value:{widths[1]}}  {wanted}")


def make(folder: Path, shape: dict[str, int], form: str) -> None:
    """In a process of its own, which leaves nothing on the device."""

    if not folder.exists():
        maker = multiprocessing.get_context("spawn").Process(
            target=_make, args=(folder, shape, form)
        )
        maker.start()
        maker.join()
        if maker.exitcode:
            raise SystemExit(f"making the {form} model failed")


def _make(folder: Path, shape: dict[str, int], form: str) -> None:
    make_model(folder, shape, form, "cuda")
    words = {f"t{i}": i for i in range(shape["vocab_size"])}
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def make_large(folder: Path) -> None:
    """80 layers in 80 files of one layer's bytes each, under the names of their layer."""
    if folder.exists():
        return
    one = folder.with_name("one-layer")
    make(one, SHAPE_70B | {"num_hidden_layers": 1}, "w4a16")
    maker = multiprocessing.get_context("spawn").Process(target=_multiply, args=(one, folder))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise SystemExit("making the 70B model failed")
    shutil.rmtree(one)


def _multiply(one: Path, folder: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from safetensors.torch import load_file, save_file

    folder.mkdir()
    tensors = load_file(one / "model.safetensors")
    layer = {k: v for k, v in tensors.items() if ".layers.0." in k}
    save_file({k: v for k, v in tensors.items() if k not in layer}, folder / "outside.safetensors")
    index = dict.fromkeys((k for k in tensors if k not in layer), "outside.safetensors")

    def write(i: int) -> dict[str, str]:
        name = f"layer-{i:02}.safetensors"
        own = {k.replace(".layers.0.", f".layers.{i}."): v for k, v in layer.items()}
        save_file(own, folder / name)
        return dict.fromkeys(own, name)

    with ThreadPoolExecutor(8) as threads:
        for names in threads.map(write, range(SHAPE_70B["num_hidden_layers"])):
            index |= names
    weight_map = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map))
    config = json.loads((one / "config.json").read_text())
    config["num_hidden_layers"] = SHAPE_70B["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(one / "tokenizer.json", folder)


def text(folder: Path, windows: int, vocabulary: int = 128_256) -> Path:
    path = folder / f"text{windows}"
    if not path.exists():
        ids = np.random.default_rng(0).integers(3, vocabulary, windows * LENGTH)
        path.write_text(" ".join(f"t{i}" for i in ids))
    return path


def run_engine(
    model: str, windows: int, rounds: int, options: dict[str, Any], out: str | None = None
) -> dict[str, Any]:
    """In this process: rounds over the same windows; the last one's tokens/s and stages.

    `out`: a file for the negative log-probabilities."""
    import torch

    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.engines.torch.engine import build_engine
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.text.plan import make_plan
    from scoremode.text.protocol import Protocol

    ids = np.random.default_rng(0).integers(3, 128_256, windows * LENGTH).astype(np.int32)
    plan = make_plan(ids, Protocol("benchmark", context_length=LENGTH).resolve(None))
    engine = build_engine(open_checkpoint(model), TorchOptions(device="cuda", **options))
    schedule = engine.schedule(plan)
    seconds, before, nll = [], {}, np.empty(0)
    for _ in range(rounds):
        before = engine.describe()["seconds"]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        nll = np.concatenate([part.nll for part in engine.score(plan, schedule)])
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    if out is not None:
        np.save(out, nll)
    facts = engine.describe()
    stages = {k: v - before.get(k, 0.0) for k, v in facts["seconds"].items()}
    engine.close()
    return {
        "tokens_per_s": plan.lengths.sum() / seconds[-1],
        "seconds": seconds,
        "stages": stages,
        "peak_gib": facts["peak_bytes"] / 2**30,
        "schedule": schedule.to_json(),
        "placement": facts["placement"],
        "kernels": facts["kernels"],
        "nll": float(nll.sum()),
    }


def run_transformers(model: str, windows: int) -> dict[str, Any]:
    """transformers' own forward as it is by default, two windows at a time, weights dequantized: the
    seconds of scoring the same windows, and of loading."""
    import torch
    from transformers import AutoModelForCausalLM, Mxfp4Config

    ids = np.random.default_rng(0).integers(3, 128_256, (windows, LENGTH)).astype(np.int64)
    begin = time.perf_counter()
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        model,
        dtype=torch.bfloat16,
        device_map="cuda",
        quantization_config=Mxfp4Config(dequantize=True),
    )
    load = time.perf_counter() - begin

    def score(rows: torch.Tensor) -> torch.Tensor:
        logits = loaded(rows, use_cache=False).logits[:, :-1].float()
        return logits.log_softmax(-1).gather(-1, rows[:, 1:, None]).sum().cpu()

    with torch.no_grad():
        batches = torch.from_numpy(ids).cuda().split(2)
        score(batches[0])
        begin = time.perf_counter()
        for rows in batches:
            score(rows)
        seconds = time.perf_counter() - begin
    return {"tokens_per_s": windows * LENGTH / seconds, "load_s": load}


def run_bound(windows: int) -> dict[str, float]:
    """Seconds of an 8B model's matmuls, attention and head matmul over so many windows, alone."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    from scoremode.engines.torch.model.attention import attention_backends
    from scoremode.head.project import tile_of

    shape, device = SHAPES["cuda"], torch.device("cuda")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    hidden, inter = shape["hidden_size"], shape["intermediate_size"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    width, layers = hidden // heads, shape["num_hidden_layers"]

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device, dtype=torch.bfloat16) * 0.02

    weights = [
        random(out, wide)
        for out, wide in (
            (hidden, hidden), (kv_heads * width, hidden), (kv_heads * width, hidden),
            (hidden, hidden), (inter, hidden), (inter, hidden), (hidden, inter),
        )
    ]  # fmt: skip
    batch = 4
    x, y = random(batch * LENGTH, hidden), random(batch * LENGTH, inter)
    q = random(batch, LENGTH, heads, width).transpose(1, 2)
    k, v = (random(batch, LENGTH, kv_heads, width).transpose(1, 2) for _ in range(2))
    head = random(shape["vocab_size"], hidden)
    rows, entries = tile_of(device)
    out = torch.empty(rows * entries, device=device)

    def layer() -> None:
        for weight in weights:
            linear(y if weight.shape[1] == inter else x, weight)
        scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def heads_matmul() -> None:
        for low in range(0, len(head), entries):
            part = head[low : low + entries].T
            for begin in range(0, len(x), rows):
                block = x[begin : begin + rows]
                into = out[: len(block) * part.shape[1]].view(len(block), -1)
                torch.mm(block, part, out_dtype=torch.float32, out=into)

    def seconds(work: Any, count: int) -> float:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            work()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) / count

    batches = windows / batch
    # As long as a run takes: a GPU that is warm is slower than one that isn't.
    with torch.no_grad(), attention_backends(device):
        return {
            "layers": seconds(layer, 16 * layers) * layers * batches,
            "head": seconds(heads_matmul, 60) * batches,
        }


def child(what: str, **given: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps({"what": what, **given})]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{what} {given} failed")
    return json.loads(done.stdout.splitlines()[-1])


def engine(model: Path, windows: int, rounds: int = 2, **options: Any) -> dict[str, Any]:
    return child("engine", model=str(model), windows=windows, rounds=rounds, options=options)


def vllm(model: Path, windows: int, *, eager: bool, rounds: int = 2) -> dict[str, Any]:
    """Stock vLLM in a process of its own, and the seconds of that process."""
    file = Path(__file__).with_name("plugin.py")
    out = model.with_name("vllm.npy")
    command = [
        sys.executable,
        str(file),
        "--side",
        "stock",
        "--model",
        str(model),
        "--device",
        "cuda",
    ]
    command += ["--windows", str(windows), "--rounds", str(rounds), "--out", str(out)]
    command += [] if eager else ["--compiled"]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"vLLM failed: {done.stderr[-2000:]}")
    process = time.perf_counter() - begin
    return json.loads(done.stdout.splitlines()[-1]) | {"process_s": process}


def command(name: str, model: Path, corpus: Path, folder: Path, *more: str) -> dict[str, Any]:
    """`scoremode NAME` from exec to exit: seconds, and its record."""
    words = [sys.executable, "-m", "scoremode", name, str(model), "-f", str(corpus)]
    words += ["--protocol", "disjoint", "-c", str(LENGTH), "--json", "--device", "cuda"]
    if name != "reference":
        words += ["-o", str(folder / "runs")]
    begin = time.perf_counter()
    done = subprocess.run([*words, *more], capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(done.stderr)
    record = json.loads(done.stdout)
    stages = record["engine"]["seconds"]
    score = record["seconds"]["score"] + record["seconds"]["write"]
    return {"process_s": seconds, "record": record, "score_s": score, "stages": stages}


def _power(model: Path, windows: int) -> str:
    """What bounds the clock while an engine runs, by nvidia-smi beside it."""
    fields = "power.draw,clocks.sm,clocks_event_reasons.sw_power_cap"
    watch = subprocess.Popen(
        ["nvidia-smi", "-i", "0", f"--query-gpu={fields}", "--format=csv,noheader,nounits",
         "-lms", "200"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    engine(model, windows, rounds=1)
    watch.terminate()
    lines = [line.split(", ") for line in watch.communicate()[0].splitlines()]
    busy = [(float(power), int(clock)) for power, clock, cap in lines if cap.strip() == "Active"]
    if not busy:
        return f"never at its power limit, {max(float(line[0]) for line in lines):.0f} W at most"
    watts, clocks = np.median(busy, axis=0)
    return f"at its power limit, {watts:.0f} W and {clocks:.0f} MHz in the median"


def has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def part_steady(args: argparse.Namespace, folder: Path, table: Table) -> None:
    is_warm, own = False, {}
    for form in args.formats.split(","):
        with model_of(folder, form) as model:
            nll = model.with_name("nll.npy")
            ours = child(
                "engine", model=str(model), windows=args.windows, rounds=2, options={}, out=str(nll)
            )
            speed = own[form] = ours["tokens_per_s"]
            table.add(f"{form}: scoremode", f"{speed:,.0f} tokens/s, {ours['peak_gib']:.2f} GiB")
            if args.power:
                table.add(f"{form}: the GPU", _power(model, args.windows))
            if form == "w4a16" and "process" in args.parts:
                _process(args, folder, table, model)
            if form == "gpt-oss":
                table.add("gpt-oss: stages", _shown(ours["stages"]))
                theirs = child("transformers", model=str(model), windows=min(16, args.windows))
                words = f"{theirs['tokens_per_s']:,.0f} tokens/s, load {theirs['load_s']:.0f} s"
                table.add("gpt-oss: transformers", words)
            if form in BESIDE_W4A16 and "w4a16" in own:
                ratio = speed / own["w4a16"]
                table.ratio(f"{form}: steady / W4A16's", ratio, BESIDE_W4A16[form], least=True)
            if not has_vllm() or form.startswith("gguf-"):
                continue
            if not is_warm:
                # A machine's first start of it compiles bytecode, as an installation would have.
                vllm(model, 4, eager=True, rounds=1)
                is_warm = True
            theirs = {}
            if form in args.eager.split(","):
                theirs["eager"] = vllm(model, args.windows, eager=True)
            if form in args.compiled.split(","):
                theirs["default"] = vllm(model, args.windows, eager=False)
            best = {name: max(found["tokens_per_s"]) for name, found in theirs.items()}
            words = ", ".join(f"{name} {value:,.0f}" for name, value in best.items())
            table.ratio(
                f"{form}: steady / vLLM's best", speed / max(best.values()), STEADY[form],
                least=True, more=words,
            )  # fmt: skip
            theirs_of = -np.load(model.with_name("vllm.npy")).reshape(-1)
            off = np.load(nll).reshape(-1) - theirs_of
            words = f"rms {np.sqrt((off**2).mean()):.2e}, mean {off.mean():+.1e} nats"
            table.add(f"{form}: a token's difference from vLLM", words)
            if form == "w4a16" and "process" in args.parts:
                for (name, found), limit in zip(theirs.items(), (0.45, 0.3), strict=False):
                    # Less the second round.
                    one = found["process_s"] - args.windows * LENGTH / found["tokens_per_s"][1]
                    ratio = _seconds(table) / one
                    words = f"{one:.1f} s, of which load {found['load_s']:.1f}"
                    table.ratio(f"process / vLLM {name}", ratio, limit, least=False, more=words)


def part_process(args: argparse.Namespace, folder: Path, table: Table) -> None:
    with model_of(folder, "w4a16") as model:
        _process(args, folder, table, model)


def _process(args: argparse.Namespace, folder: Path, table: Table, model: Path) -> None:
    corpus = text(folder, args.windows)
    runs = [command("ppl", model, corpus, folder) for _ in range(args.rounds)]
    ours = min(runs, key=lambda r: r["process_s"])
    first = f"the first time {runs[0]['process_s']:.2f} s"
    table.add(_PROCESS, f"{ours['process_s']:.2f} s, {first}: {_shown(ours['stages'])}")
    table.add("process: by the record", _shown(ours["record"]["seconds"]))


_PROCESS = "process, from exec to exit"


def _seconds(table: Table) -> float:
    """Of our process, which the table has."""
    return next(float(value.split()[0]) for name, value, _ in table.rows if name == _PROCESS)


def part_bound(args: argparse.Namespace, folder: Path, table: Table) -> None:
    with model_of(folder, "w4a16") as model:
        alone = child("bound", windows=args.windows)
        ours = engine(model, args.windows)
        again = child("bound", windows=args.windows)
    bound = {k: (alone[k] + again[k]) / 2 for k in alone}
    total, stages = ours["seconds"][-1], ours["stages"]
    table.add("bound: matmuls and attention alone", f"{_shown(alone)}; after it {_shown(again)}")
    table.add("bound: stages", _shown(stages))
    table.ratio("bound / time", sum(bound.values()) / total, 0.93, least=True)
    table.ratio("decoding / time", stages["decode"] / total, 0.015, least=False)
    table.ratio("head / its matmul", stages["head"] / bound["head"], 1.1, least=False)


def part_memory(args: argparse.Namespace, folder: Path, table: Table) -> None:
    with model_of(folder, "w4a16") as model:
        usual = engine(model, args.windows)
        larger = engine(model, args.windows, batch_windows=2 * usual["schedule"]["batch_windows"])
    table.ratio("peak GiB of 8B W4A16", usual["peak_gib"], 9, least=False)
    gain = larger["tokens_per_s"] / usual["tokens_per_s"]
    words = f"{larger['peak_gib']:.2f} GiB"
    table.ratio("speed with twice the micro-batch", gain, 1.05, least=False, more=words)


def part_line(args: argparse.Namespace, folder: Path, table: Table) -> None:
    with model_of(folder, "w4a16") as model:
        found = {n: command("ppl", model, text(folder, n), folder) for n in (50, 100, 200, 400)}
    counts = np.array(list(found))
    times = np.array([r["process_s"] for r in found.values()])
    slope, start = np.polyfit(counts, times, 1)
    worst = float(np.abs(times - slope * counts - start).max())
    table.add(
        "line: seconds", ", ".join(f"{n}: {t:.2f}" for n, t in zip(found, times, strict=True))
    )
    words = f"{start:.2f} s + {slope * 1000:.2f} ms a window, ±{worst:.2f} s"
    table.add("line: start-up and slope", words)
    peaks = [r["record"]["engine"]["peak_bytes"] / 2**30 for r in found.values()]
    table.add("line: peak GiB", ", ".join(f"{p:.2f}" for p in peaks))


def part_kld(args: argparse.Namespace, folder: Path, table: Table) -> None:
    """Each command's shortest time to score and write, and where all of its rounds' seconds went."""
    rounds: list[dict[str, dict[str, Any]]] = []
    with model_of(folder, "dense") as base, model_of(folder, "w4a16") as model:
        # A machine's first, short ones compile kernels.
        _compared(base, model, text(folder, 8), folder, beside=True)
        for number in range(args.rounds):
            # Of both models in one process once, since that is long.
            is_last = number == args.rounds - 1
            corpus = text(folder, args.windows)
            rounds.append(_compared(base, model, corpus, folder, beside=is_last))
            for name, found in rounds[-1].items():
                table.add(f"round {number}: {name}", _spent(found))

    def least(seconds: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        runs = {name: [found[name] for found in rounds if name in found] for name in rounds[-1]}
        return {name: min(map(seconds, found)) for name, found in runs.items()}

    best, whole = least(lambda found: found["score_s"]), least(_scored_whole)
    words = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in best.items())
    stored, ppl, of_base = best["kld stored"], best["ppl"], best["ppl of the base"]
    table.ratio("kld stored / ppl", stored / ppl, 1.1, least=False, more=words)
    share = (best["kld beside"] - (stored - ppl)) / (ppl + of_base)
    table.ratio("kld beside, less that, / both ppl", share, 1.05, least=False)
    table.ratio("reference / ppl of the base", best["reference"] / of_base, 1.05, least=False)
    # What goes on beside the statistics must not only have moved there.
    for ours, other in (("kld stored", "ppl"), ("reference", "ppl of the base")):
        ratio = whole[ours] / whole[other]
        table.add(f"{ours} / {other}, statistics and the end included", f"{ratio:.3f}")


def _compared(
    base: Path, model: Path, corpus: Path, folder: Path, *, beside: bool
) -> dict[str, dict[str, Any]]:
    """`command`'s results by name; `beside`: with the base in the model's process as well."""
    kept = folder / "reference"
    shutil.rmtree(kept, ignore_errors=True)
    found = {
        "ppl of the base": command("ppl", base, corpus, folder),
        "reference": command("reference", base, corpus, folder, "-o", str(kept)),
        "ppl": command("ppl", model, corpus, folder),
        "kld stored": command("kld", model, corpus, folder, "--reference", str(kept)),
    }
    if beside:
        found["kld beside"] = command("kld", model, corpus, folder, "--reference", str(base))
    return found


def _scored_whole(found: dict[str, Any]) -> float:
    """Seconds from the first pass to the record, less the wait for the hashes of files."""
    seconds = found["record"]["seconds"]
    return sum(seconds.get(stage, 0.0) for stage in ("score", "write", "finish", "end"))


def _spent(found: dict[str, Any]) -> str:
    """A command's seconds by its own stages, and by those of the device: what is left of scoring is
    time in which the device had nothing to do, or something that belongs to none."""
    queued = sum(seconds for stage, seconds in found["stages"].items() if stage != "load")
    return (
        f"process {found['process_s']:.2f} s: {_shown(found['record']['seconds'])}; "
        f"device: {_shown(found['stages'])}; score + write {found['score_s']:.3f}, less the device's "
        f"{found['score_s'] - queued:.3f}"
    )


def part_placement(args: argparse.Namespace, folder: Path, table: Table) -> None:
    model = folder / "70b"
    make_large(model)
    limit = 10 << 30
    resident = engine(model, args.windows, rounds=1)
    host = engine(model, args.windows, rounds=args.rounds, max_memory=limit, place="host")
    disk = engine(model, args.windows, rounds=1, max_memory=limit, place="disk")
    for name, found in (("resident", resident), ("host", host), ("disk", disk)):
        table.add(
            f"70B {name}", f"{found['tokens_per_s']:,.0f} tokens/s, {found['peak_gib']:.2f} GiB, "
            f"{found['schedule']}, {_shown(found['stages'])}",
        )  # fmt: skip
    best = resident["tokens_per_s"]
    table.ratio("70B host / resident", host["tokens_per_s"] / best, 0.9, least=True)
    table.add("70B disk / resident", f"{disk['tokens_per_s'] / best:.3f}")
    size = sum(f.stat().st_size for f in model.glob("layer-*"))
    table.add("70B: from disk", f"{_disk_rate(model):.2f} GB/s; layers {size / 1e9:.1f} GB a pass")
    same = len({found["nll"] for found in (host, disk)})
    table.add(
        "70B: host and disk", "the same bits" if same == 1 else f"{host['nll']} {disk['nll']}"
    )


def _disk_rate(model: Path) -> float:
    """Of plain reads of files that aren't in the page cache, where the system lets us drop them."""
    files = sorted(model.glob("layer-*"))[:8]
    for file in files:
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    begin = time.perf_counter()
    total = 0
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while block := opened.read(1 << 24):
                total += len(block)
    return total / (time.perf_counter() - begin) / 1e9


def part_devices(args: argparse.Namespace, folder: Path, table: Table) -> None:
    import torch

    corpus = text(folder, 4 * args.windows)
    with model_of(folder, "w4a16") as model:
        one = command("ppl", model, corpus, folder)
        for count, wanted in ((2, 1.95), (4, 3.85)):
            if torch.cuda.device_count() < count:
                table.add(f"{count} GPUs", f"there are {torch.cuda.device_count()}")
                continue
            many = command("ppl", model, corpus, folder, "--devices", str(count))
            gain = one["score_s"] / many["score_s"]
            words = f"process {many['process_s']:.1f} s of {one['process_s']:.1f}"
            table.ratio(f"{count} GPUs / one", gain, wanted, least=True, more=words)
            same = many["record"]["metrics"]["ppl"] == one["record"]["metrics"]["ppl"]
            table.add(f"{count} GPUs: perplexity", "the same bits" if same else "DIFFERS")


def _shown(seconds: dict[str, float]) -> str:
    return ", ".join(f"{k} {v:.3f}" for k, v in seconds.items())


@contextmanager
def model_of(folder: Path, form: str) -> Iterator[Path]:
    """An 8B model of that format; the other formats' files are removed where the disk is small."""
    model = folder / form / "model"
    model.parent.mkdir(exist_ok=True)
    make(model, SHAPES["cuda"], form)
    yield model
    if form not in ("w4a16", "dense"):
        shutil.rmtree(model.parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--formats", default=",".join([*STEADY, *BESIDE_W4A16]))
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--power", action="store_true", help="also what bounds the clock, in one more run each"
    )
    parser.add_argument(
        "--compiled",
        default=",".join(STEADY),
        help="formats for which vLLM also runs as by default",
    )
    parser.add_argument(
        "--eager", default=",".join(STEADY), help="formats for which vLLM also runs eager"
    )
    parser.add_argument("--folder", type=Path, help="where models and runs go (default: removed)")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what = args.child.pop("what")
        run = {"engine": run_engine, "bound": run_bound, "transformers": run_transformers}[what]
        result = run(**args.child)
        print(json.dumps(result, default=float))
        return
    chosen = args.parts.split(",")
    if unknown := set(chosen) - set(PARTS):
        raise SystemExit(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if "steady" in chosen and "process" in chosen:
        # Steady runs have the model and the peer at hand.
        chosen.remove("process")
    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        for part in chosen:
            print(part, flush=True)
            globals()[f"part_{part}"](args, folder, table)
    print()
    table.print()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

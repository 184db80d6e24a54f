"""Print a hash of every number of a fixed set of measurements, to see whether a change moved any.

For changes that must move none: code that is taken apart, renamed, laid out anew. Before the change

    python tools/golden.py --write before.txt

and after it `--against before.txt`, on the same machine and with the same libraries, since their bits
are theirs. Lines that differ are printed, and the exit code is 1. Every number comes through the
command line, so that the tool outlives what is renamed within the package; only the random models are
made in this process, by the tests' own builders (`make_models`).

One line a measurement:

    NAME  scores=… metrics=… sections=… identity=… files=…

each the first 16 hex digits of a SHA-256:

- `scores`: name, dtype and bytes of each column of its scores.parquet, in their order (not of the file,
  whose bytes are Arrow's);
- `metrics`: that section of its record, as canonical JSON, or of `compare` its rows and tests;
- `sections`: those others that hold numbers;
- `identity`: what a run must share with an earlier one to go on with it, with the hashes of protocol
  and plan;
- `files`: what else lies in its folder, such as a reference's states, and what it exported.

`-` stands for what a measurement doesn't have.

The set: the demo's variants in bfloat16 and float32, stories260K where SCOREMODE_DATA has it, each
protocol, each way to compare with a base, mixtures of experts, quantized heads, embeddings and caches,
every preset of compressed-tensors, hybrids, softcaps, a model that runs window by window, two devices,
runs that are killed and resumed, and `compare`.

    python tools/golden.py [--only PATTERN]… [--write FILE] [--against FILE] [--keep DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

# Seconds that one command may take; on a quiet core most take three.
LIMIT = 600.0
# Commands at once.
WORKERS = 2
# Sections of a record that hold numbers, beside its metrics.
SECTIONS = ("intervals", "distribution", "breakdown", "llama_cpp", "worst", "noise_floor", "kept")
COLUMNS = ("scores", "metrics", "sections", "identity", "files")
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "pyarrow", "compressed-tensors")
# In the folder that all commands run in.
RUNS = Path("runs")
VOCABULARY = 1024  # of the demo's tokenizer, which the random models are given

TEXT = ("-f", "text.txt")
SMALL = ("-f", "small.txt")
# What would follow from the memory that happens to be free.
FIXED = ("--device", "cpu", "--batch-size", "4", "--max-memory", "256MiB")
# About 40 passes, to be killed in.
LONG = ("-f", "text.txt", "--protocol", "strided", "-c", "64", "--stride", "32", "--dtype", "float32",
        "--device", "cpu", "--batch-size", "2", "--max-memory", "2MiB")  # fmt: skip
DISJOINT = ("--protocol", "disjoint", "-c", "64")
LLAMA_CPP = ("--protocol", "llama.cpp", "-c", "64")
PROTOCOLS = ("score-mode", "score-mode-nonblank", "exl3", "exl3-s512", "exl3-compare-q", "exl3-qbench",
             "gptq", "llama.cpp", "disjoint", "strided", "hf-strided")  # fmt: skip
VARIANTS = ("W8A16", "W4A16-g32", "W4A16-channel", "W3A16-g32", "W2A16-g32", "FP8_DYNAMIC", "W8A8",
            "MXFP4A16", "NVFP4A16", "NVFP4", "W4A16-g32-AWQ", "W4A16-g32-GPTQ",
            "FP8-block64")  # fmt: skip


class Failed(Exception):
    """A command that did not do what a measurement needs of it, in a line or more."""


@dataclass(frozen=True)
class Measurement:
    """One command and what is hashed of it.

    - `words`: of the command, in the work folder, but for `-o`.
    - `needs`: measurements whose output it reads.
    - `output`: the folder of its run, or one that holds it; None for one that leaves no run.
    - `exports`: further files that it writes.
    - `is_killed`: it is ended by SIGKILL in mid-run, and then resumed.
    """

    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    output: Path | None = None
    exports: tuple[str, ...] = ()
    is_killed: bool = False


def main() -> int:
    """Exit code: 1 where a line differs from `--against`, or a measurement failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="names, such as 'kld/*'")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the lines here, too")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="lines of before: print those that differ"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="work here, in a new folder, and leave it"
    )
    args = parser.parse_args()
    before = read_lines(args.against) if args.against else None
    patterns = args.only or ["*"]
    with work_folder(args.keep) as work:
        found = measure_all(work, patterns)
    lines = {name: line for name, line in found.items() if matches(name, patterns)}
    text = "".join(f"{line}\n" for line in [header(), *(lines[n] for n in sorted(lines))])
    if args.write:
        args.write.write_text(text, encoding="utf-8")
    if before is None:
        sys.stdout.write(text)
        moved = 0
    else:
        moved = compare(before, lines, patterns)
    return 1 if moved or any(" failed: " in line for line in lines.values()) else 0


def matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


@contextlib.contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """The folder that all commands run in."""
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="scoremode-golden-") as folder:
        yield Path(folder)


def header() -> str:
    """What bits depend on, beside the code."""
    versions = " ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    return f"# {platform.machine()} {processor()}, {versions}"


def processor() -> str:
    """Its model as Linux names it; elsewhere as Python does."""
    if sys.platform != "linux":
        return platform.processor()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unnamed"


def read_lines(path: Path) -> dict[str, str]:
    """Name → line of what `--write` wrote; the header's name is `#`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: line for line in lines if line.strip()}


def compare(before: Mapping[str, str], after: Mapping[str, str], patterns: Sequence[str]) -> int:
    """Prints the lines that differ; returns how many do. A name that only one has is a difference."""
    if before.get("#") != header():
        print(f"another machine or other libraries:\n- {before.get('#')}\n+ {header()}")
    moved = 0
    for name in sorted((before.keys() | after.keys()) - {"#"}):
        old, new = before.get(name), after.get(name)
        if old == new or not matches(name, patterns):
            continue
        moved += 1
        parts = [
            a.partition("=")[0] for a, b in zip(hashes(old), hashes(new), strict=False) if a != b
        ]
        print(f"{name}: {', '.join(parts) or 'line'} differs\n- {old}\n+ {new}")
    same = sum(before.get(name) == line for name, line in after.items())
    print(f"{same} lines are the same, {moved} differ")
    return moved


def hashes(line: str | None) -> list[str]:
    """The words of a line that are `part=hash`."""
    return [word for word in (line or "").split() if "=" in word]


# What is measured.


def measurements(data: Path | None) -> list[Measurement]:
    """All of them. `data`: the folder with stories260K, if there is one."""
    found = [Measurement("demo", ("demo", "-o", "demo"))]

    def run(name: str, *words: str, needs: tuple[str, ...] = (), **more: Any) -> None:
        found.append(Measurement(name, words, needs, RUNS / name, **more))

    for name in ("model", *VARIANTS):
        model, needs = (name, ()) if name == "model" else (f"demo/models/{name}", ("demo",))
        run(f"float32/{name}", "ppl", model, *TEXT, *DISJOINT, "--dtype", "float32", *FIXED,
            needs=needs)  # fmt: skip
    for name in ("FP8_DYNAMIC", "W8A8", "NVFP4"):
        run(f"weights/{name}", "ppl", f"demo/models/{name}", *SMALL, *DISJOINT, "--arithmetic",
            "weights", "--dtype", "bfloat16", *FIXED, needs=("demo",))  # fmt: skip
    for name in PROTOCOLS:
        run(f"protocol/{name}", "ppl", "model", *SMALL, "--protocol", name, "-c", "64", "--stride",
            "48", "--dtype", "bfloat16", *FIXED)  # fmt: skip
    if data is not None:
        for dtype in ("float32", "bfloat16"):
            run(f"stories260K/{dtype}", "ppl", str(data / "stories260K"), *SMALL, *DISJOINT, "--dtype",
                dtype, *FIXED)  # fmt: skip
    _against_bases(run)
    _random_models(run)
    _several_processes(run)
    for name, runs in {
        "compare/ppl": ["float32/model", "float32/W8A16", "float32/W3A16-g32", "float32/W4A16-g32"],
        "compare/kld": ["kld/stored", "kld/stored-W2A16-g32", "kld/full-stored"],
    }.items():
        found.append(Measurement(name, ("compare", *runs, "--format", "json"), tuple(runs)))
    return found


def _against_bases(run: Any) -> None:
    """Adds references, and every way to compare with a base."""
    base = ("reference", "model")
    dtype = ("--dtype", "bfloat16")
    run("reference/stored", *base, *TEXT, *LLAMA_CPP, *dtype, *FIXED)
    run("reference/checkpoint", *base, *SMALL, *DISJOINT, *dtype, *FIXED, "--head", "checkpoint")
    run("reference/exported", *base, *SMALL, *LLAMA_CPP, *dtype, *FIXED, "--export-llama-cpp",
        "base.kld", exports=("base.kld",))  # fmt: skip
    run("reference/exported-24", *base, *SMALL, *LLAMA_CPP, *dtype, *FIXED, "--export-llama-cpp",
        "base24.kld", "--export-nats", "24", exports=("base24.kld",))  # fmt: skip
    packed, stored = "demo/models/W4A16-g32", str(RUNS / "reference/stored")
    of_stored, of_live = ("demo", "reference/stored"), ("demo",)
    kld = ("kld", packed)
    run("kld/stored", *kld, *dtype, *FIXED, "--reference", stored, needs=of_stored)
    run("kld/stored-W2A16-g32", "kld", "demo/models/W2A16-g32", *dtype, *FIXED, "--reference", stored,
        needs=of_stored)  # fmt: skip
    run("kld/stored-itself", "kld", "model", *dtype, *FIXED, "--reference", stored,
        needs=("reference/stored",))  # fmt: skip
    run("kld/full-stored", *kld, *dtype, *FIXED, "--full", "--reference", stored, needs=of_stored)
    run("kld/noise-stored", *kld, *dtype, *FIXED, "--noise-floor", "--reference", stored,
        needs=of_stored)  # fmt: skip
    run("kld/checkpoint", *kld, *dtype, *FIXED, "--reference", str(RUNS / "reference/checkpoint"),
        needs=("demo", "reference/checkpoint"))  # fmt: skip
    live = (*SMALL, *DISJOINT, *FIXED, "--reference", "model")
    run("kld/live", *kld, *live, *dtype, needs=of_live)
    run("kld/live-float32", *kld, *live, "--dtype", "float32", needs=of_live)
    run("kld/full-live", *kld, *live, *dtype, "--full", needs=of_live)
    run("kld/noise-live", *kld, *live, *dtype, "--noise-floor", "dtype", needs=of_live)
    for name in ("base", "base24"):
        of = "reference/exported" if name == "base" else "reference/exported-24"
        run(f"kld/llama.cpp-{name}", *kld, *SMALL, *LLAMA_CPP, *dtype, *FIXED, "--full", "--reference",
            f"{name}.kld", needs=("demo", of))  # fmt: skip


def _random_models(run: Any) -> None:
    """Adds runs of what `make_models` makes."""
    for name, dtypes in MODELS.items():
        for dtype in dtypes:
            run(f"model/{name}-{dtype}", "ppl", f"random/{name}", "--tokenizer", "model", *SMALL,
                *DISJOINT, "--dtype", dtype, *FIXED)  # fmt: skip
    for name in ("mixtral-NVFP4", "presets"):
        run(f"weights/{name}", "ppl", f"random/{name}", "--tokenizer", "model", *SMALL, *DISJOINT,
            "--arithmetic", "weights", "--dtype", "bfloat16", *FIXED)  # fmt: skip
    run("cache/as-declared", "ppl", "random/cache", "--tokenizer", "model", *SMALL, *DISJOINT,
        "--kv-cache", "as-declared", "--dtype", "bfloat16", *FIXED)  # fmt: skip
    # Softcapped, then not, against a base that is the other.
    for name, base in {"gemma2": "gemma4_text", "gemma4_text": "gemma2", "heads": "llama"}.items():
        run(f"kld/{name}", "kld", f"random/{name}", "--tokenizer", "model", *SMALL, *DISJOINT,
            "--dtype", "bfloat16", *FIXED, "--full", "--reference", f"random/{base}")  # fmt: skip


def _several_processes(run: Any) -> None:
    """Adds runs on two devices, and runs that are killed and resumed, each beside a whole one."""
    packed, base = "demo/models/W4A16-g32", str(RUNS / "whole/reference")
    kinds = {
        "ppl": (("ppl", packed, *LONG), ("demo",)),
        "reference": (("reference", "model", *LONG), ()),
        "kld": (("kld", packed, *LONG, "--reference", base), ("demo", "whole/reference")),
        "kld-live": (("kld", packed, *LONG, "--reference", "model"), ("demo",)),
    }
    for name, (words, needs) in kinds.items():
        run(f"whole/{name}", *words, needs=needs)
        run(f"resumed/{name}", *words, needs=needs, is_killed=True)
        run(f"devices/{name}", *words, "--devices", "2", needs=needs)


# Name of a random model → the dtypes that it is measured in.
MODELS: dict[str, tuple[str, ...]] = {
    "mixtral": ("float32", "bfloat16"),
    "mixtral-NVFP4": ("bfloat16",),
    "qwen3_moe": ("bfloat16",),
    "gpt_oss": ("bfloat16",),
    "deepseek_v3": ("float32",),
    "bamba": ("bfloat16", "float32"),
    "jamba": ("bfloat16",),
    "gemma2": ("bfloat16", "float32"),
    "gemma4_text": ("bfloat16", "float32"),
    "heads": ("bfloat16", "float32"),
    "heads-tied": ("bfloat16",),
    "presets": ("bfloat16", "float32"),
}
# Architectures that the tests have no settings of.
_GEMMA4 = {
    "num_kv_shared_layers": 1,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    "sliding_window": 7,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
}
_BAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "attn_layer_indices": [1],
}
_JAMBA = {
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "head_dim": None,
}


def make_models(folder: Path) -> None:
    """Writes the random models, each as the same seed makes it, by the tests' builders alone.

    They are the only modules of the project that are imported here.
    """
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    import torch
    from safetensors.torch import load_file, save_file
    from support import models, quantized
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    models.ARCHITECTURES |= {"gemma4_text": _GEMMA4, "bamba": _BAMBA, "jamba": _JAMBA}

    def dense(name: str, at: str | None = None, **changes: Any) -> Path:
        def change(settings: dict[str, Any]) -> None:
            settings |= {"vocab_size": VOCABULARY} | changes

        return models.make_checkpoint(
            folder / (at or name), name, dtype=torch.bfloat16, change=change
        )

    def quantize(source: Path, at: str, presets: Mapping[str, str], *, cache: bool = False) -> None:
        """A copy of `source` whose linears, by module name, have a preset's format."""
        tensors, groups, config = load_file(source / "model.safetensors"), {}, {}
        for number, (module, name) in enumerate(presets.items()):
            weight = tensors.pop(f"{module}.weight")
            drawn = torch.randn(
                64, weight.shape[1], generator=torch.Generator().manual_seed(number)
            )
            linear = quantized.LibraryLinear(
                weight, quantized.preset(name), 2 * drawn.to(weight.dtype)
            )
            tensors |= {f"{module}.{suffix}": value for suffix, value in linear.stored().items()}
            config = linear.config()
            (group,) = config["config_groups"].values()
            groups[f"group_{number}"] = group | {"targets": [module]}
        shutil.copytree(source, folder / at)
        if cache:
            config = {"quant_method": "compressed-tensors", "format": "dense"}
            config["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor",
                                         "dynamic": True, "symmetric": True}  # fmt: skip
        elif len(set(presets.values())) > 1:
            config["format"] = "mixed-precision"
        save_file(tensors, folder / at / "model.safetensors", metadata={"format": "pt"})
        models.edit_config(folder / at, quantization_config=config | {"config_groups": groups})

    for name in ("qwen3_moe", "gpt_oss", "deepseek_v3", "bamba", "jamba", "gemma2", "gemma4_text"):
        dense(name)
    wide = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    mixtral = dense("mixtral", hidden_size=64, intermediate_size=128)
    experts = [k.removesuffix(".weight") for k in names_of(mixtral) if ".experts." in k]
    quantize(mixtral, "mixtral-NVFP4", dict.fromkeys(experts, "NVFP4"))
    llama = dense("llama", **wide)
    linears = [k.removesuffix(".weight") for k in names_of(llama) if k.endswith("_proj.weight")]
    # Each linear with the next preset; five layers have 35.
    deep = dense("llama", "llama-deep", **wide, num_hidden_layers=5)
    modules = [k.removesuffix(".weight") for k in names_of(deep) if k.endswith("_proj.weight")]
    kinds = sorted(quantized.PRESETS)
    if len(kinds) > len(modules):
        raise Failed(f"{len(kinds)} presets for {len(modules)} linears")
    quantize(deep, "presets", {m: kinds[i % len(kinds)] for i, m in enumerate(modules)})
    ends = {"model.embed_tokens": "W8A16", "lm_head": "W6A16"}
    quantize(llama, "heads", ends | dict.fromkeys(linears, "W4A16"))
    tied = dense("llama", "llama-tied", **wide, tie_word_embeddings=True)
    quantize(tied, "heads-tied", {"model.embed_tokens": "W8A16"} | dict.fromkeys(linears, "W4A16"))
    quantize(llama, "cache", {}, cache=True)


def names_of(folder: Path) -> list[str]:
    """The tensors of a checkpoint of one file, sorted."""
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return sorted(file.keys())


# How it is measured.


def measure_all(work: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Name → line of the measurements that match, and of those that they need."""
    package = package_folder()
    print(f"measuring {package}", file=sys.stderr)
    text = only(package, "heldout.txt")
    shutil.copytree(text.parent / "model", work / "model")
    held = text.read_text(encoding="utf-8")
    (work / "text.txt").write_text(held[:12_000], encoding="utf-8")
    (work / "small.txt").write_text(held[:3_000], encoding="utf-8")
    data = data_folder()
    chosen = selected(measurements(data), patterns)
    if any("random/" in word for m in chosen for word in m.words):
        make_models(work / "random")
    lines = run_all(chosen, work)
    if data is None:
        lines["stories260K"] = "stories260K  skipped: no stories260K in SCOREMODE_DATA"
    return lines


def package_folder() -> Path:
    """The folder of the package that `python -m scoremode` runs. Raises Failed."""
    spec = importlib.util.find_spec("scoremode")
    if spec is None or not spec.submodule_search_locations:
        raise Failed("scoremode is not installed, nor in PYTHONPATH")
    return Path(spec.submodule_search_locations[0])


def only(folder: Path, name: str) -> Path:
    """The one file of that name below a folder. Raises Failed."""
    found = list(folder.rglob(name))
    if len(found) != 1:
        raise Failed(f"{folder}: has {len(found)} files {name}, and must have one")
    return found[0]


def data_folder() -> Path | None:
    folder = os.environ.get("SCOREMODE_DATA")
    if folder and (Path(folder) / "stories260K").is_dir():
        return Path(folder).resolve()
    return None


def selected(of: Sequence[Measurement], patterns: Sequence[str]) -> list[Measurement]:
    """Those that match or are needed by one that does. A command with several lines is named by its
    first part: `demo/W8A16` is a line of `demo`."""
    by_name = {m.name: m for m in of}
    wanted: set[str] = set()

    def want(name: str) -> None:
        if name not in wanted:
            wanted.add(name)
            for needed in by_name[name].needs:
                want(needed)

    for name in by_name:
        names = (
            [f"demo/{v}" for v in ("reference", "model", *VARIANTS)] if name == "demo" else [name]
        )
        if any(matches(n, patterns) for n in names):
            want(name)
    if not wanted:
        raise Failed(f"--only {' '.join(patterns)}: no measurement has such a name")
    return [m for m in of if m.name in wanted]


def run_all(chosen: Sequence[Measurement], work: Path) -> dict[str, str]:
    """Name → line of all of them, each once what it needs is there."""
    lines: dict[str, str] = {}
    left, done, failed = list(chosen), set[str](), set[str]()
    running: dict[Future[dict[str, str]], Measurement] = {}
    begun = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        while left or running:
            for m in [m for m in left if failed & set(m.needs)]:
                left.remove(m)
                failed.add(m.name)
                lines[m.name] = f"{m.name}  failed: needs {', '.join(failed & set(m.needs))}"
            ready = [m for m in left if done.issuperset(m.needs)]
            for m in ready[: WORKERS - len(running)]:
                left.remove(m)
                running[pool.submit(measure, m, work)] = m
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                m = running.pop(future)
                try:
                    lines |= future.result()
                    done.add(m.name)
                except Failed as error:
                    lines[m.name] = f"{m.name}  failed: {error}"
                    failed.add(m.name)
                    print(lines[m.name], file=sys.stderr)
                seconds = time.monotonic() - begun
                print(f"{seconds:5.0f} s  {len(done)} of {len(chosen)}: {m.name}", file=sys.stderr)
    return lines


def measure(m: Measurement, work: Path) -> dict[str, str]:
    """Name → line of one measurement. Raises Failed."""
    if "--devices" in m.words and (os.cpu_count() or 1) < 2:
        return {m.name: f"{m.name}  skipped: one core"}
    if m.name == "demo":
        command(m.words, work)
        runs = {"demo/reference": work / "demo/reference"}
        for record in (work / "demo/runs").glob("*/record.json"):
            source = Path(json.loads(record.read_text(encoding="utf-8"))["checkpoint"]["source"])
            runs[f"demo/{source.name}"] = record.parent
        if len(runs) != 2 + len(VARIANTS):
            raise Failed(f"the demo left {len(runs)} runs: {' '.join(sorted(runs))}")
        return {name: line_of(name, folder) for name, folder in runs.items()}
    if m.words[0] == "compare":
        folders = {need: run_in(work / RUNS / need) for need in m.needs}
        out = command([str(folders.get(w, w)) for w in m.words], work)
        for need, folder in folders.items():
            # A folder has its time in its name, which labels runs of one model.
            out = out.replace(folder.name, need)
        value = json.loads(out)
        numbers = {key: value[key] for key in ("ranked_by", "block_length", "intervals", "tests")}
        numbers["runs"] = [{k: v for k, v in row.items() if k != "folder"} for row in value["runs"]]
        return {m.name: joined(m.name, metrics=of_json(numbers))}
    assert m.output is not None
    words = [*m.words, "-o", str(m.output)]
    if m.is_killed:
        killed_in_mid_run(words, work, work / m.output)
        words.append("--resume")
    command(words, work)
    return {m.name: line_of(m.name, run_in(work / m.output), [work / file for file in m.exports])}


def started(words: Sequence[str], work: Path) -> subprocess.Popen[str]:
    """`scoremode WORDS…` as a process: one thread, no GPU, no network."""
    settings = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "scoremode", *words],
        cwd=work,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(words: Sequence[str], work: Path) -> str:
    """Runs it to its end; its standard output. Raises Failed."""
    with started(words, work) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"{' '.join(words)}: still runs after {LIMIT:.0f} s") from None
    if process.returncode:
        raise Failed(f"{' '.join(words)}: exit {process.returncode}: {err.strip()[-600:]!r}")
    return out


def killed_in_mid_run(words: Sequence[str], work: Path, output: Path) -> None:
    """Begins the command and ends it by SIGKILL once some passes are on the disk. Raises Failed."""
    code = None
    for _ in range(3):
        shutil.rmtree(output, ignore_errors=True)
        with started(words, work) as process:
            end = time.monotonic() + LIMIT
            while process.poll() is None and time.monotonic() < end:
                if len(list(output.glob("**/parts/*.parquet"))) >= 3:
                    break
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        code = process.returncode
        parts = len(list(output.glob("**/parts/*.parquet")))
        if code == -signal.SIGKILL and parts >= 3:
            return
    raise Failed(f"{' '.join(words)}: exit {code} before it was killed in mid-run")


def run_in(output: Path) -> Path:
    """The one run in `output`, or that it is. Raises Failed."""
    found = [
        p.parent for p in (output, *output.glob("*")) for p in [p / "record.json"] if p.is_file()
    ]
    if len(found) != 1:
        raise Failed(f"{output}: has {len(found)} runs, and must have one")
    return found[0]


# What is hashed.


def line_of(name: str, folder: Path, exports: Sequence[Path] = ()) -> str:
    """The line of a finished run. Raises Failed."""
    record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
    if record["status"] != "done":
        raise Failed(f"{folder}: its status is {record['status']}")
    others = {key: record[key] for key in SECTIONS if key in record}
    if "head" in others.get("kept", {}):
        # Where the checkpoint lies whose head it is, which is this work's own folder.
        others["kept"] = {**others["kept"], "head": {**others["kept"]["head"], "checkpoint": None}}
    return joined(
        name,
        scores=of_columns(folder / "scores.parquet"),
        metrics=of_json(record["metrics"]),
        sections=of_json(others),
        identity=of_json(identity_of(record)),
        files=of_files(folder, exports),
    )


def identity_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What decides whether a run may go on, but for the machine and the versions."""
    identity = {key: value for key, value in record["identity"].items() if key != "versions"}
    identity["engine"] = {
        k: v for k, v in identity["engine"].items() if k not in ("device", "torch")
    }
    return identity | {name: record[name]["sha256"] for name in ("protocol", "plan")}


def joined(name: str, **parts: str) -> str:
    return f"{name}  " + " ".join(f"{part}={parts.get(part, '-')}" for part in COLUMNS)


def of_columns(path: Path) -> str:
    """Of each column's name, dtype and bytes, in the file's order."""
    digest = hashlib.sha256()
    table = pq.read_table(path)
    for name in table.column_names:
        column = table[name].to_numpy()
        digest.update(f"{name} {column.dtype} {len(column)} ".encode() + column.tobytes())
    return digest.hexdigest()[:16]


def of_json(value: Any) -> str:
    """Of canonical JSON: keys sorted, every float with all its digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_files(folder: Path, exports: Sequence[Path]) -> str:
    """Of the bytes of all files but the record and the Scores, and of what was exported."""
    others = {"record.json", "scores.parquet"}
    files = [f for f in sorted(folder.rglob("*")) if f.is_file() and f.name not in others]
    if not files and not exports:
        return "-"
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    for file in exports:
        digest.update(f"{file.name} ".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"golden: {failure}")

"""A sweep against single commands: the time, the device's memory, and the bits of all scores.

Models of random weights in Llama-3.1-8B's shape (right for speed, meaningless for quality): a
bfloat16 base, and two each of W4A16, FP8, NVFP4A16 and GGUF Q4_K_M. Of two folders of one format the
second shares all shards but the last one with the first, by hard links; together they take 55 GB.
Then, by the command line in processes of their own:

- `reference` of the base, and `kld` of each quant against it, one after the other;
- one `kld` of all eight with `--reference` the base.

    python benchmarks/sweep.py FOLDER [--windows 100] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import models
import numpy as np
import torch
from models import SHAPES, make_model
from safetensors.torch import load_file, save_file

FORMS = ("w4a16", "fp8", "nvfp4a16", "gguf-Q4_K_M")
# So that a second model of a format takes 2 GB and not 5.
models.SHARD_BYTES = 2 * 10**9


def make_all(folder: Path, shape: dict[str, int], device: str, windows: int) -> list[Path]:
    """The base's folder `base`, with a tokenizer and a text beside, and eight quants."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "base", shape, "dense", device)
    vocabulary = shape["vocab_size"]
    tokenizer = Tokenizer(WordLevel({f"t{i}": i for i in range(vocabulary)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "base" / "tokenizer.json"))
    ids = np.random.default_rng(0).integers(0, vocabulary, windows * shape["length"])
    (folder / "text").write_text(" ".join(f"t{i}" for i in ids))
    found = []
    for form in FORMS:
        for seed in (1, 2):
            path = folder / f"{form}-{seed}"
            if form.startswith("gguf-") or seed == 1:
                make_model(path, shape, form, device, seed)
            else:
                _vary(folder / f"{form}-1", path)
            if form.startswith("gguf-"):
                (path / "model.gguf").rename(folder / f"{path.name}.gguf")
                path.rmdir()
                path = folder / f"{path.name}.gguf"
            found.append(path)
    return found


def _vary(source: Path, target: Path) -> None:
    """A model of the same files but for the last shard, where the layers' outputs are turned round."""
    target.mkdir()
    shards = sorted(source.glob("*.safetensors"))
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, target)
        elif file != shards[-1]:
            os.link(file, target / file.name)
    tensors = load_file(shards[-1])
    for name, tensor in tensors.items():
        if ".layers." in name and tensor.ndim == 2:
            bytes_ = tensor.view(torch.uint8)
            tensors[name] = bytes_.flip(0).contiguous().view(tensor.dtype)
    save_file(tensors, target / shards[-1].name)


class UsedMemory:
    """Most of the first GPU's memory in use while the block runs, in bytes, as the driver has it."""

    def __enter__(self) -> UsedMemory:
        self.most = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        query = [
            "nvidia-smi",
            "--query-gpu=memory.used",
            "--format=csv,noheader,nounits",
            "-i",
            "0",
        ]
        while shutil.which("nvidia-smi") and not self._end.wait(0.2):
            found = subprocess.run(query, capture_output=True, text=True)
            if found.returncode == 0:
                self.most = max(self.most, int(found.stdout) << 20)


def timed(name: str, *words: str) -> tuple[float, int]:
    """One command in a process of its own: its seconds, and the GPU's memory that was in use."""
    begin = time.perf_counter()
    with UsedMemory() as used:
        done = subprocess.run(
            [sys.executable, "-m", "scoremode", *words], stdout=subprocess.DEVNULL, text=True
        )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}")
    print(f"{name}: {seconds:.1f} s, {used.most / 2**30:.2f} GiB of the GPU", flush=True)
    return seconds, used.most


def records(runs: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Name of the measured model → folder and record of its run against the base."""
    found = {}
    for file in runs.glob("*/record.json"):
        record = json.loads(file.read_text())
        if record.get("reference"):
            found[Path(record["checkpoint"]["path"]).name] = (file.parent, record)
    return found


def compare(single: Path, sweep: Path, quants: list[Path]) -> None:
    """Prints stages and peaks, and raises SystemExit where scores are not the same bits."""
    ones, others = records(single), records(sweep)
    for path in quants:
        (folder, one), (other_folder, other) = ones[path.name], others[path.name]
        peaks = [r["engine"]["peak_bytes"] / 2**30 for r in (one, other)]
        print(f"{path.name}: peak {peaks[0]:.2f} and {peaks[1]:.2f} GiB, KLD "
              f"{one['metrics']['kld']['value']:.6f}")  # fmt: skip
        print(f"  single: {one['seconds']}\n  sweep:  {other['seconds']}")
        scores = [(f / "scores.parquet").read_bytes() for f in (folder, other_folder)]
        if scores[0] != scores[1]:
            raise SystemExit(f"{path.name}: other scores in {other_folder} than in {folder}")
    print(f"the scores of all {len(quants)} quants: the same bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where models and runs go; must not exist yet")
    parser.add_argument("--windows", type=int)
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape, on the CPU")
    args = parser.parse_args()
    device = "cpu" if args.tiny else "cuda"
    shape = dict(SHAPES[device])
    if args.tiny:
        shape |= {"vocab_size": 4096, "length": 256}
    if args.layers:
        shape["num_hidden_layers"] = args.layers
    begin = time.perf_counter()
    quants = make_all(args.folder, shape, device, args.windows or (4 if args.tiny else 100))
    if not args.tiny:
        torch.cuda.empty_cache()
    print(f"models made in {time.perf_counter() - begin:.0f} s", flush=True)
    single, sweep = args.folder / "single", args.folder / "sweep"
    base, kept = args.folder / "base", args.folder / "reference"
    common = ["-f", str(args.folder / "text"), "--protocol", "disjoint", "-c", str(shape["length"])]
    common += ["--tokenizer", str(base), "--device", device, "--quiet"]
    alone = [timed("reference", "reference", str(base), "-o", str(kept), *common)]
    for path in quants:
        words = ["kld", str(path), "--reference", str(kept), "-o", str(single), *common]
        alone.append(timed(path.name, *words))
    words = ["kld", *map(str, quants), "--reference", str(base), "-o", str(sweep), *common]
    seconds, most = timed("sweep", *words)
    compare(single, sweep, quants)
    total, largest = sum(s for s, _ in alone), max(used for _, used in alone)
    print(f"sweep: {seconds:.1f} s of {total:.1f} s: {seconds / total:.3f}  (at most 0.55)")
    if largest:
        print(f"the GPU's memory: {most / largest:.3f} × the largest single one  (at most 1.15)")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()

"""What `scoremode attribute` costs on a GPU, in passes of its base.

Models of an 8B Llama's shape with random weights in real files, bf16 and W4A16, which are two unlike
models: right for speed and memory, meaningless for quality. A pass is that of the base alone over the
same windows, the second of two rounds in one process. Every command runs in a process of its own.

    python benchmarks/attribution.py [--windows 16] [--max-memory 24GiB] [--parts layer,…]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu import LENGTH, Table, engine, model_of, text

# Of each part: its flags, and the passes that it may take where some are wanted.
PARTS: dict[str, tuple[list[str], float | None]] = {
    "layer": (["--by", "layer"], 40),
    "layer-alone": (["--by", "layer", "--alone"], 20),
    "module-alone": (["--by", "module", "--alone"], 150),
    "kind-alone": (["--by", "kind", "--alone"], None),
}


def attribute(base: Path, model: Path, corpus: Path, folder: Path, *more: str) -> dict[str, Any]:
    """The attribution, and `process_s` from exec to exit."""
    words = [sys.executable, "-m", "scoremode", "attribute", str(model), "-f", str(corpus)]
    words += ["--reference", str(base), "--protocol", "disjoint", "-c", str(LENGTH), "--json"]
    words += ["--device", "cuda", "-o", str(folder / "runs"), *more]
    begin = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout) | {"process_s": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--max-memory", default="24GiB")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--folder", type=Path, help="where models and runs go (default: removed)")
    args = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        with model_of(folder, "dense") as base, model_of(folder, "w4a16") as model:
            one = engine(base, args.windows)["seconds"][-1]
            table.add("a pass of the base", f"{one:.3f} s")
            table.add("a pass of the model", f"{engine(model, args.windows)['seconds'][-1]:.3f} s")
            corpus = text(folder, args.windows)
            for part in args.parts.split(","):
                flags, limit = PARTS[part]
                memory = ["--max-memory", args.max_memory]
                found = attribute(base, model, corpus, folder, *flags, *memory)
                seconds = found["seconds"]
                words = (
                    f"{seconds['attribute']:.2f} s for {len(found['units'])} units, of a process of "
                    f"{found['process_s']:.1f} s, with the run {seconds['score'] / one:.2f} more"
                )
                passes = seconds["attribute"] / one
                if limit is None:
                    table.add(f"{part}: passes", f"{passes:.3f}  {words}")
                else:
                    table.ratio(f"{part}: passes", passes, limit, least=False, more=words)
                table.add(f"{part}: peak", f"{found['peak_bytes'] / 2**30:.2f} GiB")
    print()
    table.print()


if __name__ == "__main__":
    main()

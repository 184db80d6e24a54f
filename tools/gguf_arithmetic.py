"""Compare `--arithmetic llama.cpp` with llama-perplexity, file by file.

Of each GGUF file, on one text in chunks: PPL by llama-perplexity with its defaults (float16 cache,
attention by its flash kernel), ours in `--arithmetic llama.cpp`, ours in `--arithmetic weights` in
float32, and by how much each differs from the first. How inputs are rounded is the tool's to the bit
(`tests/golden/gguf_arithmetic`), sums and all else are not: float32 sums in another order flip a code
here and there, and later layers multiply that. `--again` has llama-perplexity run once more without its
flash kernel, which says how far it is from itself; ours should be as near, and the weights' further.

    python tools/llama_cpp.py FOLDER
    python tools/gguf_arithmetic.py --perplexity FOLDER/build/bin/llama-perplexity --text TEXT FILE…
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from scoremode import measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a GGUF file")
    parser.add_argument("--perplexity", type=Path, required=True, help="the tool's program")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("-c", "--context-length", type=int, default=512)
    parser.add_argument(
        "--again", action="store_true", help="the tool without its flash kernel, too"
    )
    args = parser.parse_args()
    names = ["llama-perplexity", "llama.cpp", "weights", *(["-fa off"] if args.again else [])]
    print(f"{'file':40}" + "".join(f"{name:>20}" for name in names))
    for file in args.files:
        base = of_tool(args, file)
        found = [base, ours(args, file, "llama.cpp"), ours(args, file, "weights")]
        if args.again:
            found.append(of_tool(args, file, "-fa", "off"))
        shown = "".join(f"{value:11.4f} {value / base - 1:+8.4%}" for value in found)
        print(f"{file.name:40}{shown}", flush=True)


def of_tool(args: argparse.Namespace, file: Path, *flags: str) -> float:
    command: list[object] = [
        args.perplexity,
        "-m",
        file,
        "-f",
        args.text,
        "-c",
        args.context_length,
        *flags,
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stderr + done.stdout)
    if found is None:
        raise SystemExit(f"{file}: no final estimate of {args.perplexity}")
    return float(found[1])


def ours(
    args: argparse.Namespace, file: Path, arithmetic: Literal["llama.cpp", "weights"]
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = measure(
            file, file=args.text, protocol="llama.cpp", context_length=args.context_length,
            output=folder, arithmetic=arithmetic, dtype="float32",
        )  # fmt: skip
        return run.metrics["ppl"].value


if __name__ == "__main__":
    main()

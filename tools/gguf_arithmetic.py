"""Compare `--arithmetic llama.cpp` with llama-perplexity, file by file and token by token.

llama-perplexity scores each GGUF file on one text in chunks by its defaults (float16 cache, attention
by its flash kernel) and writes its logits. Those are the base of two of our own runs of the same file:
in `--arithmetic llama.cpp`, and in `--arithmetic weights` in float32, whose distance is what the tool's
rounding of activations costs. Of each: PPL, by how much it differs and that difference's standard
error (of paired tokens), the mean of KLD(tool, ours) over tokens, its 99.9 % point, and how often both
have the same most likely token. The file holds logprobs in 16 bits, which is a KLD below 1e-7.

How inputs are rounded is the tool's to the bit (`tests/golden/gguf_arithmetic`), sums and all else are
not: float32 sums in another order flip a code here and there, and later layers multiply that. `--again`
has llama-perplexity compare itself without its flash kernel with its own logits, which says how far it
is from itself.

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

import numpy as np

from scoremode import measure

COLUMNS = ("PPL", "relative", "±", "mean KLD", "99.9 %", "same top")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a GGUF file")
    parser.add_argument("--perplexity", type=Path, required=True, help="the tool's program")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("-c", "--context-length", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int, default=1, help="of the tool")
    parser.add_argument(
        "--again", action="store_true", help="the tool without its flash kernel, too"
    )
    args = parser.parse_args()
    print(f"{'file':32}{'arithmetic':>18}" + "".join(f"{name:>12}" for name in COLUMNS))
    for file in args.files:
        with tempfile.TemporaryDirectory() as folder:
            logits = Path(folder) / "logits"
            base = tools_ppl(args, file, logits)
            show(file, "llama-perplexity", f"{base:12.4f}")
            arithmetics: tuple[Literal["llama.cpp", "weights"], ...] = ("llama.cpp", "weights")
            for arithmetic in arithmetics:
                show(file, arithmetic, ours(args, file, arithmetic, logits, base))
            if args.again:
                show(file, "-fa off", tools_own(args, file, logits, base))


def show(file: Path, name: str, found: str) -> None:
    print(f"{file.name:32}{name:>18}{found}", flush=True)


def tools_ppl(args: argparse.Namespace, file: Path, logits: Path) -> float:
    """PPL by the tool, which writes its `logits`."""
    printed = tools_output(args, file, "-f", args.text, "--kl-divergence-base", logits)
    return number(r"Final estimate: PPL = ([\d.]+)", printed)


def tools_own(args: argparse.Namespace, file: Path, logits: Path, base: float) -> str:
    """The row of the tool without its flash kernel, by its own comparison with its `logits`."""
    flags = ("--kl-divergence", "--kl-divergence-base", logits, "-fa", "off")
    printed = tools_output(args, file, *flags)
    ppl = number(r"Mean PPL\(Q\) +: +([\d.]+)", printed)
    error = number(r"Mean ln\(PPL\(Q\)/PPL\(base\)\) +: +[-\d.]+ ± +([\d.]+)", printed)
    mean = number(r"Mean +KLD: +([-\d.]+)", printed)
    tail = number(r"99\.9% +KLD: +([-\d.]+)", printed)
    same = number(r"Same top p: +([\d.]+)", printed)
    return row(ppl, base, error, mean, tail, same / 100)


def tools_output(args: argparse.Namespace, file: Path, *flags: object) -> str:
    command = [args.perplexity, "-m", file, "-c", args.context_length, "-t", args.threads, *flags]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    return done.stderr + done.stdout


def number(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed)
    if found is None:
        raise SystemExit(f"the tool printed nothing like {pattern}")
    return float(found[1])


def ours(
    args: argparse.Namespace,
    file: Path,
    arithmetic: Literal["llama.cpp", "weights"],
    logits: Path,
    base: float,
) -> str:
    """The row of a run of ours against the tool's `logits`."""
    with tempfile.TemporaryDirectory() as folder:
        run = measure(
            file, file=args.text, reference=logits, protocol="llama.cpp", output=folder,
            context_length=args.context_length, arithmetic=arithmetic, dtype="float32", quiet=True,
        )  # fmt: skip
        low, high = run.metrics["ppl_ratio"].ci95 or (0.0, 0.0)
        tail = float(np.quantile(run.scores["kld"], 0.999))
        found = (run.metrics[name].value for name in ("ppl", "kld", "top1"))
    ppl, mean, same = found
    return row(ppl, base, (high - low) / 3.92, mean, tail, same)


def row(ppl: float, base: float, error: float, mean: float, tail: float, same: float) -> str:
    return f"{ppl:12.4f}{ppl / base - 1:+12.1e}{error:12.1e}{mean:12.2e}{tail:12.2e}{same:12.3%}"


if __name__ == "__main__":
    main()

"""The tests that a dependency's release can break, with the lowest of all that pyproject.toml allows,
or the newest that there is, also beyond what it allows: `make test-lowest`, `make test-newest`.

    python tools/bounds.py lowest|newest [--torch] [-- what pytest is given]

Everything is installed in an environment of its own, which is deleted afterwards. torch's bounds are
tested with --torch alone: its other releases may be gigabytes of CUDA for nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What touches the libraries: hub, tokenizers, templates, Arrow, the model's classes, their weights, and
# whole runs of two commands.
TESTS = (
    *("tests/cli/test_measure.py", "tests/cli/test_inspect.py"),
    *("tests/engines/torch/model", "tests/engines/torch/weights", "tests/engines/torch/passes"),
    *("tests/engines/torch/kv_cache", "tests/engines/torch/fused"),
    *("tests/engines/torch/test_gguf_llama_cpp.py", "tests/runs/generation"),
    *("tests/checkpoint/test_files.py", "tests/checkpoint/test_tokenizers.py"),
    *("tests/text/test_hub.py", "tests/text/test_tokenizer.py", "tests/text/conversations"),
    *("tests/results/folders", "tests/report/card", "tests/report/page", "tests/schemes/decoding"),
)
# Tools of the tests whose bounds are none of ours.
TOOLS = (
    "compressed-tensors",
    "gguf",
    "hatchling",
    "hypothesis",
    "markdown-it-py",
    "pytest",
    "pytest-xdist",
)


def main() -> int:
    """pytest's exit code."""
    parser = argparse.ArgumentParser(description="Tests at the bounds of dependencies.")
    parser.add_argument("bound", choices=["lowest", "newest"])
    parser.add_argument("--torch", action="store_true", help="torch at its bound, too")
    parser.add_argument("pytest", nargs="*")
    args = parser.parse_args()
    wanted = requirements(args.bound, torch=args.torch)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        python = f"{place}/bin/python"
        pip = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--upgrade"]
        # Alone first, so that nothing else's range chooses another build of it.
        subprocess.run([*pip, *(r for r in wanted if r.startswith("torch"))], check=True)
        subprocess.run([*pip, "--only-binary", ":all:", *wanted], check=True)
        listed = subprocess.run(
            [python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True
        ).stdout
        names = {Requirement(r).name.lower().replace("_", "-") for r in wanted}
        kept = [
            p for p in listed.split() if p.partition("==")[0].lower().replace("_", "-") in names
        ]
        print("with", ", ".join(kept), flush=True)
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "--numprocesses", "auto"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [*pytest, "-m", "not large", *TESTS, *args.pytest]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


def requirements(bound: str, *, torch: bool) -> list[str]:
    """What pip is told to install: each dependency at that bound, the tests' tools as pinned."""
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if "==" in line:
            pinned[Requirement(line).name.lower()] = line
    extras = PROJECT["optional-dependencies"]
    ours = [Requirement(r) for r in (*PROJECT["dependencies"], *extras["report"])]
    found = []
    for requirement in ours:
        if requirement.name == "torch" and not torch:
            found.append(pinned["torch"])
        elif bound == "lowest":
            (least,) = (s.version for s in requirement.specifier if s.operator == ">=")
            found.append(f"{requirement.name}=={least}")
        else:
            # One may want another below its newest, and pip finds what fits.
            found.append(requirement.name)
    if not torch:
        lines = (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").splitlines()
        found += [line for line in lines if not line.startswith("#")]
    return found + [pinned[name] for name in TOOLS]


if __name__ == "__main__":
    sys.exit(main())

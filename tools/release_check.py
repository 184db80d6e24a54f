"""A release's files, made and tried as a user would have them: `make release-check`.

- `files`: an sdist and a wheel of HEAD, in build/release/dist, whatever else lies in the checkout; the
  same bytes when they are built again and when the wheel is built from the tree; metadata that an index
  takes.
- `smoke`: they are installed in a bare environment of each Python that is here, and run.
- `resolved`: for every Python and system, each extra's dependencies have wheels that fit together.

Every line says what was done; the first thing that fails ends it with what was printed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "build" / "release" / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
BIN = Path(sys.executable).parent
# As uv names them: what vLLM's and torch's wheels are made for; torch's for a Mac need its release 14.
LINUX, MAC = "x86_64-manylinux_2_35", "aarch64-apple-darwin"
MAC_RELEASE = "14.0"
# Extras that there can be no wheels for.
LINUX_ALONE = {"vllm"}
# What lm-eval needs that is published as a source alone; all of it pure Python.
SOURCES = ("sqlitedict", "word2number", "rouge-score")


def main() -> None:
    """Runs the parts that are named, all without a name."""
    parser = argparse.ArgumentParser(description="A release's files, made and tried.")
    parser.add_argument("parts", nargs="*", choices=["files", "smoke", "resolved", []])
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="for smoke")
    args = parser.parse_args()
    parts = args.parts or ["files", "smoke", "resolved"]
    if "files" in parts:
        files()
    wheel, sdist = made()
    if "smoke" in parts:
        here = {version: path for version in args.pythons if (path := interpreter(version))}
        for version in args.pythons:
            if version in here:
                smoke(version, here[version], wheel, sdist)
            else:
                say(f"Python {version}: is not here, and nothing was run with it")
        if not here:
            sys.exit("release-check: none of these Pythons is here")
    if "resolved" in parts:
        resolved(wheel)


def files() -> None:
    """Builds both from HEAD as it was committed, and checks them."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "tree"
        tree.mkdir()
        archive = Path(place) / "tree.tar"
        run("git", "archive", "--output", archive, "HEAD", cwd=ROOT)
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        tracked = {p.relative_to(tree).as_posix() for p in tree.rglob("*") if p.is_file()}
        build(tree, DIST)
        wheel, sdist = made()
        with tarfile.open(sdist) as file:
            inside = {name.partition("/")[2] for name in file.getnames()} - {"PKG-INFO"}
        if strange := sorted(inside - tracked):
            sys.exit(f"release-check: {sdist.name} holds {strange}, which HEAD has not")
        build(tree, Path(place) / "again")
        build(tree, Path(place) / "of_tree", "--wheel")
        for again, original in (
            (Path(place) / "again" / wheel.name, wheel),
            (Path(place) / "again" / sdist.name, sdist),
            (Path(place) / "of_tree" / wheel.name, wheel),
        ):
            if again.read_bytes() != original.read_bytes():
                sys.exit(f"release-check: {again} is not {original}: a build has other bytes")
    run(BIN / "twine", "check", "--strict", wheel, sdist)
    for file in (wheel, sdist):
        say(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    say(
        "built from HEAD, twice with the same bytes, the wheel from sdist and tree; metadata is valid"
    )


def build(tree: Path, out: Path, *flags: str) -> None:
    """`python -m build`, whose wheel is made from its sdist unless flags say otherwise."""
    run(BIN / "python", "-m", "build", "--no-isolation", "--outdir", out, *flags, cwd=tree)


def made() -> tuple[Path, Path]:
    """The wheel and the sdist that lie there."""
    found = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    if [len(files) for files in found] != [1, 1]:
        sys.exit(f"release-check: {DIST} has no wheel with its sdist: make release-files")
    return found[0][0], found[1][0]


def interpreter(version: str) -> str | None:
    """The path of a Python of that version on this machine."""
    command = [BIN / "uv", "python", "find", "--no-python-downloads", "--no-project", version]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def smoke(version: str, python: str, wheel: Path, sdist: Path) -> None:
    """Installs the wheel in a bare environment, runs it from an empty folder, installs the sdist."""
    with tempfile.TemporaryDirectory() as place:
        env, work = Path(place) / "env", Path(place) / "work"
        work.mkdir()
        run(python, "-m", "venv", env)
        pip = [env / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        # The tests' own torch: of the newest, pip may take a build of gigabytes.
        run(*pip, "--constraint", ROOT / "constraints.txt", "torch")
        run(*pip, wheel)
        release = wheel.name.split("-")[1]
        one = "import scoremode as s; [getattr(s, n) for n in s.__all__]; print(s.__version__)"
        expect(run(env / "bin" / "python", "-c", one, cwd=work), rf"^{re.escape(release)}$")
        scoremode = env / "bin" / "scoremode"
        expect(run(scoremode, "--version", cwd=work), rf"^scoremode {re.escape(release)}$")
        details = run(scoremode, "--version", "-v", cwd=work)
        expect(details, rf"^python +{re.escape(version)}\.")
        run(scoremode, "demo", "-o", "demo", "--json", cwd=work)
        records = [json.loads(p.read_text()) for p in work.glob("demo/**/record.json")]
        models = {Path(record["checkpoint"]["path"]).name for record in records}
        if len(models) < 14 or any(record["status"] != "done" for record in records):
            sys.exit(f"release-check: the demo left {len(records)} runs, of {sorted(models)}")
        text = work / "text.txt"
        text.write_text("The quick brown fox jumps over the lazy dog. " * 200, encoding="utf-8")
        model = next(p.parent for p in sorted(work.glob("demo/**/config.json")))
        ppl = [scoremode, "ppl", model, "-f", text, "-c", "128", "-o", "runs"]
        expect(run(*ppl, cwd=work), r"^PPL +\d")
        (folder,) = (work / "runs").iterdir()
        expect(run(scoremode, "show", folder, cwd=work), r"^PPL +\d")
        run(*pip, "--no-deps", "--force-reinstall", sdist)
        expect(run(scoremode, "--version", cwd=work), rf"^scoremode {re.escape(release)}$")
        torch = re.search(r"^torch +(.*)$", details, re.MULTILINE)
        say(f"Python {version}: installed and run, {len(records)} runs; torch {torch and torch[1]}")


def resolved(wheel: Path) -> None:
    """Asks the package index what each extra would install, and installs nothing."""
    for extra in ("", *PROJECT["optional-dependencies"]):
        for platform in (LINUX, MAC):
            if platform == MAC and extra in LINUX_ALONE:
                continue
            for version in PYTHONS:
                name = f"scoremode[{extra}]" if extra else "scoremode"
                with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
                    file.write(f"{name} @ {wheel.as_uri()}\n")
                    file.flush()
                    compiled = run(
                        *(BIN / "uv", "pip", "compile", file.name, "--only-binary", ":all:"),
                        *(word for name in SOURCES for word in ("--no-binary", name)),
                        *("--no-header", "--no-annotate", "--quiet", "--no-python-downloads"),
                        *("--python-version", version, "--python-platform", platform),
                    )
                lines = compiled.split()
                shown = [p for p in lines if p.startswith(("torch==", "transformers==", "vllm=="))]
                say(f"{name}, Python {version}, {platform}: {len(lines)} wheels, {' '.join(shown)}")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command, without this checkout on any path. Ends the program where it fails."""
    dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in dropped}
    environment["MACOSX_DEPLOYMENT_TARGET"] = MAC_RELEASE
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(
            f"release-check: exit code {done.returncode} of {' '.join(words)}\n"
            f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


def expect(output: str, pattern: str) -> None:
    """Ends the program where the output has no such line."""
    if not re.search(pattern, output, re.MULTILINE):
        sys.exit(f"release-check: nothing like {pattern!r} in\n{output}")


def say(line: str) -> None:
    """Prints it at once."""
    print(line, flush=True)


if __name__ == "__main__":
    main()

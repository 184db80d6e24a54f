"""Print a hash of every number of a fixed set of measurements, and of what people read of them.

For changes that must move none: code that is taken apart, renamed, laid out anew. Before the change

    python tools/golden --write before.txt

and after it `--against before.txt`, on the same machine and with the same libraries, since their bits
are theirs. What differs is printed, down to the column of the scores, the field of the record or the
line of the text, and the exit code is 1. Everything goes through the command line and files, so that
the tool outlives what is renamed within the package, and measures older and newer trees alike; only the
random models are made by the tests' own builders.

One line a part of a measurement, NAME/PART, a tab and the first 16 hex digits of a SHA-256:

- `scores`: each column of its scores.parquet, by dtype and bytes (the file's are Arrow's), their order;
- `metrics`: that section of its record;
- `record`: all others but those that tell of the moment and the machine;
- `identity`: what a run must share with an earlier one to go on with it, with the hashes of protocol
  and plan;
- `files`: what else lies in its folder, such as a reference's states, and what it exported;
- `printed`: what the command printed.

A measurement without a run (`output/…`, `help/…`, `refused/…`) is one line: exit code, both streams,
and files that it wrote; of a report the page's data and markup. FILE.json.gz, beside FILE, holds what
was hashed.

The set: the demo's variants, each protocol, chats under several templates, pages, data sets and groups,
early ends, each way to compare with a base, all families of formats, mixtures of experts, quantized
heads, embeddings and caches, GGUF files, hybrids, softcaps, mixtures of checkpoints, shards, two
devices, runs that are killed and resumed, sweeps, attributions, and stories260K where SCOREMODE_DATA
has it; then every command's help, tables in each form, pages, cards, refusals. Tasks are measured where
lm-evaluation-harness is installed, and else skipped.

    python tools/golden [--only PATTERN]… [--write FILE] [--against FILE] [--keep DIR]
"""

from __future__ import annotations

import os

# Before torch is imported: one thread, no GPU, no network; lines of one width.
os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
               "COLUMNS": "100", "TZ": "UTC", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip

import argparse
import contextlib
import importlib.util
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from commands import Failed
from comparison import Values, compare, matches, text_of, write
from families import families
from makers import make_models, make_texts
from measurement import PARTS, Measurement
from outputs import outputs


def main() -> int:
    """Exit code: 1 where a line differs from `--against`, or a measurement failed."""
    parser = argparse.ArgumentParser(prog="golden", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="PATTERN", help="names, such as 'kld/*'")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the lines here, too")
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="lines of before: print what differs"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="work here, in a new folder, and leave it"
    )
    args = parser.parse_args()
    patterns = args.only or ["*"]
    against, target = (path and path.resolve() for path in (args.against, args.write))
    with work_folder(args.keep) as work, contextlib.chdir(work):
        values, failed = measure_all(work, patterns)
    values = {name: value for name, value in values.items() if matches(name, patterns)}
    if target:
        write(target, values)
    if against:
        differing = compare(against, values, patterns)
    else:
        differing = 0
        if not target:
            sys.stdout.write(text_of(values))
    for line in failed:
        print(line)
    return 1 if differing or failed else 0


@contextlib.contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """The folder that all commands run in."""
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="scoremode-") as folder:
        # A model in a folder `model` has the name of the folder around it, which is printed.
        work = Path(folder).resolve() / "golden"
        work.mkdir()
        yield work


def measure_all(work: Path, patterns: Sequence[str]) -> tuple[Values, list[str]]:
    """What the measurements that match make, and those that they need; and which failed, and why."""
    package = package_folder()
    print(f"measuring {package}", file=sys.stderr)
    text = only(package, "heldout.txt")
    shutil.copytree(text.parent / "model", work / "model")
    make_texts(work, text.read_text(encoding="utf-8"))
    chosen = selected([*families(data_folder()), *outputs()], patterns)
    models = {word for m in chosen for word in m.words if word.startswith("random/")}
    if models:
        begun = time.monotonic()
        names = {Path(model).name.removesuffix(".gguf") for model in models}
        make_models(work / "random", names.__contains__)
        print(f"{time.monotonic() - begun:5.0f} s  models", file=sys.stderr)
    if any(m.name.startswith("tasks/") for m in chosen):
        make_tasks(work / "tasks")
    values, failed = measure_in_order(chosen)
    if data_folder() is None:
        values["stories260K"] = "skipped: no stories260K in SCOREMODE_DATA"
    return values, failed


def measure_in_order(chosen: Sequence[Measurement]) -> tuple[Values, list[str]]:
    values: Values = {}
    failed: dict[str, str] = {}
    begun = time.monotonic()
    for count, m in enumerate(chosen, start=1):
        if missing := m.needed & failed.keys():
            failed[m.name] = f"needs {', '.join(sorted(missing))}"
        else:
            try:
                values |= m.measure()
            except Exception as error:  # noqa: BLE001  # a tree where one fails has others left
                failed[m.name] = str(error) if isinstance(error, Failed) else repr(error)
                traceback.print_exception(error, limit=-3)
        seconds = time.monotonic() - begun
        print(f"{seconds:5.0f} s  {count} of {len(chosen)}: {m.name}", file=sys.stderr)
    return values, [f"{name} failed: {why}" for name, why in failed.items()]


def package_folder() -> Path:
    """The folder of the package that is measured. Raises Failed."""
    spec = importlib.util.find_spec("scoremode")
    if spec is None or not spec.submodule_search_locations:
        raise Failed("scoremode is not installed, nor in PYTHONPATH")
    return Path(spec.submodule_search_locations[0])


def only(folder: Path, name: str) -> Path:
    """The one file of that name below a folder. Raises Failed."""
    files = list(folder.rglob(name))
    if len(files) != 1:
        raise Failed(f"{folder}: has {len(files)} files {name}, and must have one")
    return files[0]


def data_folder() -> Path | None:
    folder = os.environ.get("SCOREMODE_DATA")
    if folder and (Path(folder) / "stories260K").is_dir():
        return Path(folder).resolve()
    return None


def make_tasks(folder: Path) -> None:
    """Tasks of the harness, by the tests' builder."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from support.local_tasks import write_tasks

    write_tasks(folder)


def without_part(pattern: str) -> str:
    """The pattern of a measurement out of one of a line, which is a part of it."""
    name, _, part = pattern.rpartition("/")
    return name if part in PARTS else pattern


def selected(of: Sequence[Measurement], patterns: Sequence[str]) -> list[Measurement]:
    """Those with a line that matches, or that are needed by one; each after what it needs."""
    by_name = {m.name: m for m in of}
    chosen: dict[str, Measurement] = {}

    def choose(name: str) -> None:
        if name not in chosen:
            for needed in sorted(by_name[name].needed):
                choose(needed)
            chosen[name] = by_name[name]

    for name in by_name:
        if matches(name, [without_part(pattern) for pattern in patterns]):
            choose(name)
    if not chosen:
        raise Failed(f"--only {' '.join(patterns)}: no measurement has such a name")
    return list(chosen.values())


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        sys.exit(f"golden: {failure}")

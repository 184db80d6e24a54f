"""What all cases share: models, a text, a kept base, and what each command truly comes to."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from torture.command import Ended, Failure, check_ending, run

from scoremode.results.folders.store import RECORD, find_runs, read_record, read_scores

__all__ = ["Case", "Command", "World", "make_world", "one_of", "result_of"]


# About 20 passes of 0.03 s each: enough to be ended in.
_TEXT = ["-f", "text.txt", "--protocol", "strided", "-c", "64", "--stride", "16"]
_RUN = [*_TEXT, "--batch-size", "2", "--device", "cpu", "--max-memory", "2MiB"]
_CHARACTERS = 9_000


@dataclass(frozen=True)
class Command:
    """A command's words but for its output, the seconds that it takes and what it comes to."""

    words: tuple[str, ...]
    seconds: float
    result: str
    folder: Path

    @property
    def run(self) -> Path:
        """The folder of its finished run."""
        return self.folder if (self.folder / RECORD).exists() else next(self.folder.iterdir())


@dataclass(frozen=True)
class World:
    """A folder with `model`, `packed`, `text.txt` and `base`, and the commands to be tried in it."""

    folder: Path
    commands: dict[str, Command]

    def copied(self, name: str, to: Path) -> Path:
        """A copy of that command's finished run."""
        return Path(shutil.copytree(self.commands[name].run, to))

    def against(self, base: Path) -> list[str]:
        """The words of the comparison, with another base."""
        words = list(self.commands["kld"].words)
        words[words.index("--reference") + 1] = str(base)
        return words


Case = Callable[[Random, World, Path], str]
Way = Callable[[Random, World, Path, list[str]], Ended]


def one_of(*ways: Way) -> Case:
    """A case that goes one of these ways; each appends to its last argument what it does."""

    def case(random: Random, world: World, folder: Path) -> str:
        told: list[str] = []
        try:
            ended = random.choice(ways)(random, world, folder, told)
        except Failure as failure:
            raise Failure(f"{'; '.join(told)}: {failure}") from None
        return f"{'; '.join(told)}: {'refused' if ended.code in (1, 2, 3) else 'the same numbers'}"

    return case


def make_world(
    folder: Path, *, ranks: bool = True, run: Callable[[Sequence[str], Path], Ended] = run
) -> World:
    """Makes all of it in `folder` by `run`; `ranks`: also a command of several processes."""
    import scoremode.demo
    from scoremode.demo.quantize import Variant, quantize_folder

    assert scoremode.demo.__file__
    demo = Path(scoremode.demo.__file__).parent
    shutil.copytree(demo / "model", folder / "model")
    quantize_folder(folder / "model", folder / "packed", Variant("W4A16-g32", 4, 32))
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:_CHARACTERS]
    (folder / "text.txt").write_text(text, encoding="utf-8")
    commands = {}
    for name, words in {
        "reference": ["reference", "model", *_RUN],
        "ppl": ["ppl", "packed", *_RUN],
        "ppl-ranks": ["ppl", "packed", *_RUN, "--devices", "2"],
        "kld": ["kld", "packed", *_RUN, "--reference", "base"],
        "kld-beside": ["kld", "packed", *_RUN, "--reference", "model"],
    }.items():
        if "--devices" in words and not ranks:
            continue
        begin = time.monotonic()
        out = "base" if name == "reference" else f"true-{name}"
        check_ending(run([*words, "-o", out], folder), 0)
        seconds = time.monotonic() - begin
        found = result_of(folder / out)
        commands[name] = Command(tuple(words), seconds, found, folder / out)
    return World(folder, commands)


def result_of(output: Path) -> str:
    """A digest of all that a finished run in `output` came to: scores, metrics, states, head.

    `output` is the run's own folder, or holds it. Raises Failure where there is not one finished run,
    or anything lies about that only a run in progress has.
    """
    runs = [(output, read_record(output))] if (output / RECORD).exists() else find_runs(output)
    done = [(folder, record) for folder, record in runs if record["status"] == "done"]
    if len(done) != 1:
        raise Failure(f"{len(done)} finished runs in {output}")
    ((folder, record),) = done
    for pattern in ("**/.*.scoremode-tmp", "parts", ".lock"):
        if left := list(folder.glob(pattern)):
            raise Failure(f"a finished run has {left[0]}")
    digest = hashlib.sha256()
    for name, column in sorted(read_scores(folder).columns().items()):
        digest.update(f"{name} {column.dtype} {len(column)} ".encode() + column.tobytes())
    # Other files of a reference are its bytes; those of the Scores depend on Arrow's version alone.
    for file in sorted(f for f in folder.rglob("*") if f.suffix in (".safetensors", ".i32")):
        digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    digest.update(json.dumps(record["metrics"], sort_keys=True).encode())
    return digest.hexdigest()

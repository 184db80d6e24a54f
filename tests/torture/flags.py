"""Campaign `flags`: any command with any flags and values ends in one of the right ways.

Flags and their kinds are those of the parser itself, so that a new one is tried without being named
here. What a command then finishes is a whole run; what it refuses leaves nothing half-written.
"""

import argparse
import shutil
from pathlib import Path
from random import Random

from torture.command import Failure, check_ending, run
from torture.world import World

from scoremode.cli import main
from scoremode.errors import RunFolderError
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import find_runs

__all__ = ["case"]

_NUMBERS = ("0", "1", "2", "3", "8", "-1", "64", "65", "1000000", "2147483647", "2147483648", "1e3",
            "0.5", "32k", "90%", "nan", "inf", "-inf", "1e999", "", "x", "9" * 5000)  # fmt: skip
_WORDS = ("", "x", "main", "test", "auto", "cpu", "cuda", "cpu:1", "8MiB", "1GB", "0B", "strided",
          "llama.cpp", "gptq", "hf-strided", "exl3", "float32", "int8", "fp8", "eager", "text",
          "\u202egnihton", "\x1b[31m", "a\nb", "y" * 5000, "../..", "made/nothing")  # fmt: skip
# In the world's folder, and one that is new each time.
_PATHS = ("model", "packed", "base", "text.txt", "model/config.json", "nothing", ".", "/dev/null",
          "/dev/full", "/proc/self/mem", "-", "NEW", "NEW/sub/file")  # fmt: skip
_NEEDED = {
    "ppl": ["packed", "--text", "a b c d e f", "-c", "16"],
    "kld": ["packed", "--reference", "base"],
    "reference": ["model", "--text", "a b c d e f", "-c", "16"],
    "plan": ["packed", "-f", "text.txt", "-c", "64"],
    "verify": ["packed", "--text", "a b c d e f", "-c", "16"],
    "inspect": ["packed"],
}
_WRITING = ("ppl", "kld", "reference")


def case(random: Random, world: World, folder: Path) -> str:
    """One command; returns its words. Raises Failure."""
    # Some flags write, and the world stays as it is.
    here = folder / "world"
    for name in ("model", "packed", "base"):
        shutil.copytree(world.folder / name, here / name)
    shutil.copy(world.folder / "text.txt", here)
    words = _words(random, world, folder)
    told = " ".join(repr(w) if len(w) < 60 else repr(f"{w[:9]}…") for w in words)
    out = folder / "out"
    if words[0] in _WRITING:
        words += ["-o", str(out)]
    # Nothing here is meant to come from a network.
    ended = run(words, here, environment={"HF_HUB_OFFLINE": "1"})
    try:
        check_ending(ended, 0, 1, 2, 3, 4)
        if left := [*folder.rglob("*.scoremode-tmp"), *folder.rglob(".lock")]:
            raise Failure(f"leaves {left[0]}: {ended}")
        runs = [out] if (out / "record.json").exists() else [f for f, _ in find_runs(out)]
        for found in runs if ended.code in (0, 4) else ():
            load_run(found)
        if ended.code in (1, 2) and runs:
            raise Failure(f"refused, and leaves a run: {ended}")
    except (Failure, RunFolderError) as failure:
        raise Failure(f"{told}: {failure}") from None
    return f"{told}: exit {ended.code}"


def _words(random: Random, world: World, folder: Path) -> list[str]:
    parsers = _parsers()
    # The demo alone takes half a minute, and has few flags.
    name = random.choice([n for n in sorted(parsers) if n != "demo"])
    words = list(_NEEDED.get(name, ()))
    if name in ("show", "compare"):
        finished = [world.commands[n].run for n in ("kld", "kld-beside", "ppl")]
        words = [str(f) for f in random.sample(finished, 1 if name == "show" else 2)]
    flags = [a for a in parsers[name]._actions if a.option_strings and a.dest != "help"]
    for action in random.sample(flags, min(len(flags), random.choice([0, 1, 1, 2, 3, 5]))):
        flag = random.choice(action.option_strings)
        if action.nargs == 0:
            words.append(flag)
            continue
        value = _value(random, action, folder)
        words += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
    return [name, *words]


def _value(random: Random, action: argparse.Action, folder: Path) -> str:
    if action.choices is not None and random.random() < 0.8:
        return str(random.choice(list(action.choices)))
    if action.type is Path:
        return random.choice(_PATHS).replace("NEW", str(folder / "new"))
    if action.type is not None and random.random() < 0.9:
        return random.choice(_NUMBERS)
    return random.choice([*_WORDS, *_PATHS[:6]])


def _parsers() -> dict[str, argparse.ArgumentParser]:
    return {name: main.command_parser(name) for name in main.COMMANDS}

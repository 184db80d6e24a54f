"""Campaign `links`: what lies in a folder is no file of ours, but a link, a pipe, a device, a hole.

A case takes a finished, killed or kept run, the shards of one, or a sweep, puts something else in the
place of a file or folder of it, and uses it. Nothing outside may be read as the run's or changed, the
command ends in bounded time, and refuses in a line or comes to the very numbers of an undisturbed one;
one that only reads changes nothing at all.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from random import Random

from support.hostile_files import KINDS, put, snapshot
from torture.command import Ended, Failure, check_ending, run
from torture.world import World, one_of

from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import RECORD, find_runs

__all__ = ["case"]

_RUN = (RECORD, "scores.parquet", ".lock", "parts", "attribution-layer.json", "recipe.json")
_KEPT = (*_RUN, "states", "states/00000.safetensors", "head.safetensors", "tokens.i32")
_READING = (["show"], ["compare"], ["status"], ["check"], ["card"], ["report"])
# Made once for all cases: the shards of a run, and a sweep.
_made: dict[Path, dict[str, Path]] = {}
_making = threading.Lock()


def _read(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run or kept base, read."""
    name = random.choice(["kld", "reference"])
    here = world.copied(name, folder / "run")
    words = [*random.choice(_READING), str(here)]
    if words[0] == "report":
        words += ["-o", str(folder / "page.html")]
    _put(random, here, _KEPT if name == "reference" else _RUN, folder, [words[0]], told)
    before = snapshot(here)
    ended = _used(words, folder, folder, told)
    if snapshot(here) != before:
        raise Failure(f"reading changed the run: {ended}")
    return ended


def _base(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A kept base, compared with."""
    here = world.copied("reference", folder / "base")
    _put(random, here, _KEPT, folder, ["a base"], told)
    before = snapshot(here)
    ended = _used([*world.against(here), "-o", str(folder / "out")], world.folder, folder, told)
    if snapshot(here) != before:
        raise Failure(f"comparing changed the base: {ended}")
    return _same(ended, folder / "out", world, "kld")


def _done(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, gone on with."""
    name = random.choice(["kld", "reference"])
    own = world.copied(name, folder / "out" if name == "reference" else folder / "out" / "run")
    _put(random, own, _KEPT if name == "reference" else _RUN, folder, [f"a finished {name}"], told)
    words = [*world.commands[name].words, "-o", str(folder / "out"), "--resume"]
    return _same(_used(words, world.folder, folder, told), folder / "out", world, name)


def _killed(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A killed run, gone on with."""
    name = random.choice(["kld", "reference"])
    out = folder / "out"
    words = [*world.commands[name].words, "-o", str(out), "--resume"]

    def kill(process: "subprocess.Popen[str]") -> None:
        while len(list(out.glob("**/parts/[0-9]*"))) < 3:
            if process.poll() is not None:
                return
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)

    check_ending(run(words, world.folder, meanwhile=kill), 0, 128 + signal.SIGKILL)
    own = out if name == "reference" else next(iter(sorted(out.glob("*"))), out)
    if not (own / RECORD).exists():
        told.append("killed before its record")
    names = (RECORD, ".lock", "parts", "parts/00000.parquet", "parts/00001.parquet")
    names += ("states", "states/00000.safetensors") if name == "reference" else ()
    own.mkdir(parents=True, exist_ok=True)
    _put(random, own, names, folder, [f"a killed {name}"], told)
    return _same(_used(words, world.folder, folder, told), out, world, name)


def _merge(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """Shards, made one run."""
    made, out = _others(world), folder / "merged"
    shutil.copytree(made["shards"], folder / "shards")
    if random.random() < 0.5:
        _put(random, folder, (".merged.merging",), folder, ["merge"], told)
    else:
        shard = random.choice(sorted(f for f, _ in find_runs(folder / "shards")))
        _put(random, shard, _RUN, folder, ["merge"], told)
    ended = _used(["merge", str(folder / "shards"), "-o", str(out)], folder, folder, told)
    return _same(ended, out, world, "ppl")


def _sweep(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished sweep, run again."""
    made, out = _others(world), folder / "sweep"
    shutil.copytree(made["sweep"], out)
    runs = sorted(str(f.relative_to(out) / name) for f, _ in find_runs(out) for name in _KEPT)
    _put(random, out, ("sweep.json", *runs), folder, ["a sweep"], told)
    words = ["kld", "model", "packed", *world.commands["kld"].words[2:], "-o", str(out)]
    ended = _used(words, world.folder, folder, told, 0, 1, 3, 4)
    if ended.code == 0:
        for found, record in find_runs(out):
            if record.get("status") == "done" and not _is_spoiled(found):
                load_run(found)
    return ended


def _output(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A file that is written, beside one of the user's own."""
    here, out = world.copied("kld", folder / "run"), folder / "page"
    words = random.choice([["compare", "--format", "json"], ["report"]])
    _put(random, folder, ("page.tmp",), folder, words[:1], told)
    before = (folder / "page.tmp").lstat()
    ended = _used([*words, str(here), "-o", str(out)], folder, folder, told, 0)
    if not out.stat().st_size or (folder / "page.tmp").lstat() != before:
        raise Failure(f"the user's own file is another: {ended}")
    return ended


def _others(world: World) -> dict[str, Path]:
    """The shards of the world's `ppl`, and a sweep of its models."""
    with _making:
        if (made := _made.get(world.folder)) is None:
            made = {name: world.folder / f"links-{name}" for name in ("shards", "sweep")}
            words, out = world.commands["ppl"].words, str(made["shards"])
            for number in (1, 2):
                shard = [*words, "--shard", f"{number}/2", "-o", out]
                check_ending(run(shard, world.folder), 0)
            words, out = world.commands["kld"].words, str(made["sweep"])
            check_ending(run(["kld", "model", "packed", *words[2:], "-o", out], world.folder), 0)
            _made[world.folder] = made
        return made


case = one_of(_read, _read, _base, _done, _killed, _merge, _sweep, _output)


def _put(
    random: Random,
    here: Path,
    names: tuple[str, ...],
    folder: Path,
    words: list[str],
    told: list[str],
) -> None:
    name, kind = random.choice(names), random.choice(KINDS)
    (here / name).parent.mkdir(exist_ok=True)
    put(here / name, kind, folder / "outside")
    told += [*words, f"{kind} for {name}"]


def _used(words: list[str], where: Path, folder: Path, told: list[str], *codes: int) -> Ended:
    """Runs a command; what lies outside must be what it was."""
    before = snapshot(folder / "outside")
    ended = run(words, where)
    if snapshot(folder / "outside") != before:
        raise Failure(f"changed what lies outside: {ended}")
    check_ending(ended, *(codes or (0, 1, 3)))
    return ended


def _same(ended: Ended, output: Path, world: World, name: str) -> Ended:
    """Raises Failure where a command that ended well came to other numbers than an undisturbed one."""
    if ended.code == 0:
        true = world.commands[name].run
        runs = [output] if (output / RECORD).exists() else [f for f, _ in find_runs(output)]
        wanted = json.loads((true / RECORD).read_text(encoding="utf-8"))["metrics"]
        found = [load_run(one)[0].document["metrics"] for one in runs if not _is_spoiled(one)]
        if wanted not in found or any(one != wanted for one in found):
            raise Failure(f"other numbers: {ended}")
    return ended


def _is_spoiled(folder: Path) -> bool:
    """Tells whether a run was left alone, with what was put there in it, beside the one made anew."""
    return any((folder / name).is_symlink() or not (folder / name).is_file() for name in _RUN[:2])

"""Campaign `damage`: files of a run are changed behind its back; it is refused, or nothing is lost.

A case takes a finished run, a kept base or a killed run, damages one file of it, and uses it. The
command must refuse in a line, or come to the very numbers of undamaged files.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from random import Random
from typing import Any

from torture.command import Ended, Failure, check_ending, run
from torture.world import World, one_of, result_of

__all__ = ["case", "damage_a_file"]


def _compare(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, compared."""
    true = world.commands["kld"].run
    told += ["compare", damage_a_file(random, world.copied("kld", folder / true.name))]
    words = ["compare", true.name, str(world.commands["kld-beside"].run)]
    words += ["--format", "json"]
    wanted = run(words, true.parent)
    check_ending(wanted, 0)
    ended = run(words, folder)
    check_ending(ended, 0, 1, 3)
    if ended.code == 0 and (found := _numbers(ended)) != _numbers(wanted):
        raise Failure(f"other numbers: {found}")
    return ended


def _show(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, held against a gate that it does not meet."""
    true = world.commands["kld"].run
    told += ["show", damage_a_file(random, world.copied("kld", folder / true.name))]
    words = ["show", true.name, "--max-kld", "0", "--json"]
    wanted = run(words, true.parent)
    ended = run(words, folder)
    check_ending(ended, 1, 4)
    if ended.code == 4 and ended.out != wanted.out:
        raise Failure(f"another record: {ended}")
    return ended


def _kept(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A kept base, compared with on its own text."""
    words = list(world.commands["kld"].words)
    words = [*words[:2], *words[words.index("--batch-size") :]]
    told.append("its own text")
    return _beside_damaged_base(random, world, folder, told, words)


def _done(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, gone on with."""
    name = random.choice(["kld", "reference"])
    command, out = world.commands[name], folder / "out"
    own = world.copied(name, out if name == "reference" else out / "run")
    told += [f"a finished {name}", damage_a_file(random, own)]
    ended = run([*command.words, "-o", str(out), "--resume"], world.folder)
    return _same_or_refused(ended, out, command.result)


def _base(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A kept base, compared with."""
    return _beside_damaged_base(random, world, folder, told, list(world.commands["kld"].words))


def _beside_damaged_base(
    random: Random, world: World, folder: Path, told: list[str], words: list[str]
) -> Ended:
    told += ["a base", damage_a_file(random, world.copied("reference", folder / "base"))]
    words[words.index("--reference") + 1] = str(folder / "base")
    ended = run([*words, "-o", str(folder / "out")], world.folder)
    return _same_or_refused(ended, folder / "out", world.commands["kld"].result)


def _killed(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A killed run, gone on with."""
    name = random.choice(["ppl", "kld", "reference"])
    command, out = world.commands[name], folder / "out"
    words = [*command.words, "-o", str(out), "--resume"]
    own = out if name == "reference" else None
    wanted = random.randint(1, 8)

    def kill(process: "subprocess.Popen[str]") -> None:
        while len(list(out.glob("**/parts/*.parquet"))) < wanted:
            if process.poll() is not None:
                return
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)

    check_ending(run(words, world.folder, meanwhile=kill), 0, 128 + signal.SIGKILL)
    # On a machine that is too busy it has not come to write anything.
    made = own or next(iter(out.glob("*")), out)
    told += [f"a killed {name}", damage_a_file(random, made) if made.exists() else "nothing there"]
    ended = run(words, world.folder)
    return _same_or_refused(ended, out, command.result)


case = one_of(_compare, _show, _base, _kept, _killed, _done)


def _same_or_refused(ended: Ended, output: Path, result: str) -> Ended:
    check_ending(ended, 0, 1, 3)
    if ended.code == 0 and result_of(output) != result:
        raise Failure(f"another result: {ended}")
    return ended


def _numbers(ended: Ended) -> Any:
    """All numbers that compare prints, without the words beside them."""

    def numbers(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: n for k, v in value.items() if (n := numbers(v)) not in (None, {}, [])}
        if isinstance(value, list):
            return [n for v in value if (n := numbers(v)) not in (None, {}, [])]
        return value if isinstance(value, float) else None

    return numbers(json.loads(ended.out))


def damage_a_file(random: Random, folder: Path) -> str:
    """Damages one file under `folder`; returns what it did."""
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    file = random.choice(files)
    name = file.relative_to(folder)
    way = random.choice(["bit", "bit", "bit", "cut", "longer", "gone", "another", "zeros"])
    content = bytearray(file.read_bytes())
    if way == "bit" and content:
        at = random.randrange(8 * len(content))
        content[at // 8] ^= 1 << at % 8
        file.write_bytes(content)
        return f"bit {at} of {name} flipped"
    if way == "cut":
        size = random.randrange(len(content) + 1)
        file.write_bytes(content[:size])
        return f"{name} cut from {len(content)} to {size} bytes"
    if way == "longer":
        file.write_bytes(content + random.randbytes(random.randint(1, 99)))
        return f"{name} made longer"
    if way == "another":
        other = random.choice([f for f in files if f.suffix == file.suffix])
        file.write_bytes(other.read_bytes())
        return f"{other.relative_to(folder)} over {name}"
    if way == "zeros" and content:
        at = random.randrange(len(content))
        file.write_bytes(content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :])
        return f"zeros at {at} of {name}"
    file.unlink()
    return f"{name} gone"

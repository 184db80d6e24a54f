"""Campaign `forged`: one value of a record is another, and its seal is made anew.

Whoever edits a record can seal it, too. Its scores, states, head and tokens still say what they are, so
a number that follows from them must stay what it was, or the edit is refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from torture.command import Ended, Failure, check_ending, run
from torture.world import World, one_of

from scoremode.reference.writer import reference_sha256
from scoremode.results.folders.store import RECORD, seal_of

__all__ = ["case", "forge"]

# What no other file of the run says again.
_UNTOLD = (
    *("command", "created", "finished", "seconds", "versions", "engine", "checkpoint", "schedule"),
    *("schema", "schema_version", "sha256", "status", "reference"),
)
_METRICS = ("ppl", "nll", "ppl_base", "ppl_ratio", "kld", "kld_reverse", "top1", "delta_p")


def _show(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, shown."""
    true = _record(world.commands["kld"].run)
    copy = world.copied("kld", folder / "run")
    told += ["show", forge(random, copy)]
    ended = run(["show", str(copy), "--json"], folder)
    return _same(ended, lambda: _metrics(json.loads(ended.out)), _metrics(true))


def _compare(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, compared with another."""
    other = world.commands["kld-beside"].run
    true = _record(world.commands["kld"].run)["metrics"]
    copy = world.copied("kld", folder / "run")
    told += ["compare", forge(random, copy)]
    ended = run(["compare", str(copy), str(other), "--by", "ppl", "--format", "json"], folder)

    def found() -> Any:
        rows = json.loads(ended.out)["runs"]
        return next(row["ppl"] for row in rows if row["folder"] == str(copy))

    return _same(ended, found, true["ppl"])


def _base(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A kept base, compared with, of a text that it keeps itself or that is named."""
    base = world.copied("reference", folder / "base")
    words = world.against(base)
    if random.random() >= 0.5:
        words = ["kld", "packed", "--reference", str(base)]
        words += ["--batch-size", "2", "--device", "cpu", "--max-memory", "2MiB"]
    told += [f"a base, {' '.join(words[:4])}…", forge(random, base)]
    ended = run([*words, "-o", str(folder / "out")], world.folder)
    true = _record(world.commands["kld"].run)
    return _same(ended, lambda: _metrics(_record(next((folder / "out").iterdir()))), _metrics(true))


def _done(random: Random, world: World, folder: Path, told: list[str]) -> Ended:
    """A finished run, gone on with."""
    name = random.choice(["kld", "ppl", "reference"])
    command, out = world.commands[name], folder / "out"
    copy = world.copied(name, out if name == "reference" else out / "run")
    true = _record(copy)
    told += [f"a finished {name}", forge(random, copy)]
    words = [*command.words, "-o", str(folder / "out"), "--resume", "--json"]
    ended = run(words, world.folder)
    return _same(ended, lambda: _metrics(json.loads(ended.out)), _metrics(true))


def _record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / RECORD).read_text(encoding="utf-8"))


def _metrics(record: dict[str, Any]) -> dict[str, Any]:
    return {name: record["metrics"][name] for name in _METRICS if name in record["metrics"]}


def _same(ended: Ended, found: Any, wanted: Any) -> Ended:
    check_ending(ended, 0, 1, 2, 3)
    if ended.code == 0 and (numbers := found()) != wanted:
        raise Failure(f"{numbers}, not {wanted}: {ended}")
    return ended


case = one_of(_show, _compare, _base, _done)


def forge(random: Random, folder: Path) -> str:
    """Changes one value of the record in `folder`, and seals it; returns what it did."""
    record = _record(folder)
    places = [p for p in _leaves(record) if p[0] not in _UNTOLD]
    # Every section as often as any other, however long it is.
    section = random.choice(sorted({p[0] for p in places}))
    *parents, last = random.choice([p for p in places if p[0] == section])
    inside: Any = record
    for key in parents:
        inside = inside[key]
    before = inside[last]
    others = [inside[k] for k in _keys(inside) if type(inside[k]) is type(before)]
    while inside[last] == before:
        inside[last] = _changed(random, before, others)
    if "kept" in record and random.random() < 0.8:
        kept = record["kept"]
        kept["sha256"] = reference_sha256(record["plan"]["sha256"], kept["states"], kept["head"])
    record["sha256"] = seal_of(record)
    (folder / RECORD).write_text(json.dumps(record), encoding="utf-8")
    path = ".".join(str(key) for key in (*parents, last))
    return f"{path} from {str(before)[:40]} to {str(inside[last])[:40]}"


def _changed(random: Random, value: Any, others: list[Any]) -> Any:
    """Another of nearly the same kind, `others` being its neighbours'."""
    if random.random() < 0.2:
        return random.choice([None, 0, -1, "", [], {}, True, "x"])
    if random.random() < 0.3:
        return random.choice(others)
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + random.choice([-1, 1, value, 1000])
    if isinstance(value, float):
        return value * random.choice([0.5, 0.999, 1.001, -1.0])
    if isinstance(value, str) and value:
        at = random.randrange(len(value))
        return value[:at] + random.choice("0123456789abcdef") + value[at + 1 :]
    return "x"


def _keys(value: Any) -> Any:
    return value.keys() if isinstance(value, dict) else range(len(value))


def _leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, (dict, list)) and value:
        for key in _keys(value):
            yield from _leaves(value[key], (*path, key))
    elif path:
        yield path

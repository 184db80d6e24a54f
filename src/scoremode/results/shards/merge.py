"""Shards of a run made one run: checked, joined, and written whole or not at all."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from scoremode import __version__
from scoremode.errors import InvalidMeasurement, RunFolderError, UsageError
from scoremode.results.folders.finished import read_verified
from scoremode.results.folders.paths import check_folder
from scoremode.results.folders.store import SCORES, Columns, RunFolder, read_columns
from scoremode.results.gates import Compared, Gates
from scoremode.results.record.checks import check_described, check_done, checked_record
from scoremode.results.record.definition import Done
from scoremode.results.record.model import TorchEngine, VllmEngine
from scoremode.results.record.section import decode, misfit
from scoremode.results.record.sections import now, sections
from scoremode.results.scores import Scores
from scoremode.results.shards.checks import OpenedShard, check_shards, open_shard, shard_folders
from scoremode.results.statistics.divergence import CONFIDENT, worst_tokens

# Of a shard alone, or made anew.
_OWN = ("shard", "worst", "scores", "sha256")


def merged_record(
    shards: Sequence[OpenedShard],
    scores: Scores,
    extras: Columns,
    sha256: str,
    command: Sequence[str],
    label: str | None = None,
) -> dict[str, Any]:
    """The record of the run that all `shards`, in their order, are of.

    - `scores`, `extras`: of the merged file, whose bytes have that `sha256`.
    - `command`: what the user typed to merge them; `label`: what the user calls the model, None for
      what the first shard says.

    Raises InvalidMeasurement where a mean is not finite.
    """
    records = [each.record.document for each in shards]
    first, typed = records[0], shards[0].record
    identity = {name: value for name, value in first["identity"].items() if name != "shard"}
    written: dict[str, Any] = {"name": SCORES, "rows": len(scores), "sha256": sha256}
    if typed.scores.token_text:
        written["token_text"] = True
    record = {
        **{name: value for name, value in first.items() if name not in _OWN},
        **sections(
            scores,
            typed.protocol.context_length,
            extras,
            confident=identity.get("confident", CONFIDENT),
            record=first,
        ),
        "status": "done",
        "finished": now(),
        "command": list(command),
        "identity": identity,
        "engine": _engine([record["engine"] for record in records]),
        "seconds": _sums([record["seconds"] for record in records]),
        "scores": written,
        "merged": {"shards": [_entry(each) for each in shards]},
    }
    if label is not None:
        record["label"] = label
    if begun := [each["created"] for each in records if "created" in each]:
        record["created"] = min(begun)
    if scores.against is not None:
        record["worst"] = _worst(records, scores)
    if "reference" in first:
        record["reference"] = _reference([record["reference"] for record in records])
    return record


def _entry(each: OpenedShard) -> dict[str, Any]:
    """What the merged record says of one shard."""
    record, document = each.record, each.record.document
    return {
        "number": record.shard.number,
        "run": each.folder.resolve().name,
        "record_sha256": record.sha256,
        "scores_sha256": record.scores.sha256,
        **{n: document["shard"][n] for n in ("passes", "of_passes", "windows", "targets")},
        "device": document["engine"]["device"],
        "processes": max(1, len(document["engine"].get("devices") or ())),
        "command": record.command or [],
        **{name: document[name] for name in ("created", "finished") if name in document},
        "seconds": document["seconds"],
    }


def _engine(engines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first shard's with the work of all; `devices` tells of each process apart."""
    first = engines[0]
    found = {
        **first,
        "tokens": sum(engine["tokens"] for engine in engines),
        "seconds": _sums([engine["seconds"] for engine in engines]),
        "peak_bytes": max(engine["peak_bytes"] for engine in engines),
    }
    if len(engines) > 1 or "devices" in first:
        names = ("tokens", "seconds", "peak_bytes")
        found["devices"] = [
            {"shard": number, **process}
            for number, engine in enumerate(engines, 1)
            for process in engine.get("devices")
            or [{"name": engine["device"]["name"]} | {name: engine[name] for name in names}]
        ]
    return found


def _sums(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in seconds:
        for name, value in each.items():
            total[name] += value  # pyright: ignore[reportArgumentType]
    return {name: round(float(value), 3) for name, value in total.items()}


def _worst(records: Sequence[Mapping[str, Any]], scores: Scores) -> list[dict[str, Any]]:
    """The worst targets of all, each with the text that its shard has of it: one of the ten worst of
    all is one of the ten worst of its shard."""
    assert scores.against is not None
    told = {
        (entry["window"], entry["position"]): entry
        for record in records
        for entry in record.get("worst", ())
    }
    return [
        told.get((entry["window"], entry["position"]), {}) | entry
        for entry in worst_tokens(scores, scores.against)
    ]


def _reference(sections: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = dict(sections[0])
    for name in ("replay", "replay_at_load"):
        if name in found:
            found[name] = _replay([section[name] for section in sections if section.get(name)])
    engines = [section.get("engine") or {} for section in sections]
    # Of one that ran beside the model in each shard.
    if found.get("kind") == "model" and not any(
        misfit(each, TorchEngine | VllmEngine) for each in engines
    ):
        found["engine"] = _engine(engines)
    return found


def _replay(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How far all rows that were replayed are from what is stored; None where none was."""
    if not found:
        return None
    rows = np.array([each["rows"] for each in found], np.float64)
    rms = np.array([each["rms"] for each in found], np.float64)
    squares = float((rows * rms**2).sum())
    return {
        "rows": int(rows.sum()),
        "bitwise": all(each["bitwise"] for each in found),
        "rms": float(np.sqrt(squares / max(1.0, rows.sum()))),
        "worst": max(each["worst"] for each in found),
    }


def merge(
    paths: Sequence[Path],
    output: Path,
    *,
    gates: Gates | None = None,
    label: str | None = None,
    command: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> Done:
    """Makes of the shards that `paths` name or hold the run of all of them; returns its record.

    - `output`: the run's own folder, which must not be there yet.
    - `gates`: limits that a comparison is held against; `label`: what the user calls the model, None
      for what the first shard says; both for the record.
    - `notify`: is told of each run in a folder of runs that is left out.

    Its scores and every metric are those of one process's run to the bit. Raises RunFolderError where
    the shards are not all of one run, or a file is not what it was, UsageError for a run named twice
    and for gates without a base.
    """
    _check_output(output)
    shards = [open_shard(folder) for folder in shard_folders(paths, notify)]
    shards.sort(key=lambda each: (each.shard.of, each.shard.number))
    check_shards(shards)
    _check_release(shards[0])
    with _whole_folder(output) as folder:
        sha256 = folder.join(_tables(shards))
        try:
            rows = sum(each.record.shard.targets for each in shards)
            scores, extras = read_columns(folder.path / SCORES, sha256, rows)
            record = merged_record(shards, scores, extras, sha256, command, label)
            if gates and scores.against is None:
                raise UsageError(
                    f"{shards[0].folder}: has no base, which a gate on KLD, ratio or top-1 needs"
                )
            if gates:
                record["gates"] = [gate.to_json() for gate in gates.judge(decode(record, Compared))]
            folder.write_record(record)
            # As everybody will read it, and with the same doubts.
            merged = check_done(folder.path, checked_record(folder.path))
            check_described(folder.path, merged, *read_verified(folder.path, merged))
        except (InvalidMeasurement, RunFolderError) as error:
            # By the name that it would have had.
            named = str(error).replace(str(folder.path), str(output))
            raise RunFolderError(f"the shards make no run: {named}") from None
    return merged


def _check_output(output: Path) -> None:
    check_folder(output)
    if output.exists():
        raise RunFolderError(
            f"-o {output}: is there already: a merged run goes to a folder of its own, which must not "
            "exist"
        )


def _tables(shards: Sequence[OpenedShard]) -> Iterator[Any]:
    """The Arrow tables of all shards, in their order. Raises RunFolderError for other columns than the
    first one has."""
    schema = None
    for each in shards:
        for table in each.tables():
            schema = schema or table.schema
            if not table.schema.equals(schema):
                names = sorted({*table.schema} ^ {*schema}, key=str)
                raise RunFolderError(
                    f"{each.folder / SCORES}: has other columns than {shards[0].folder / SCORES}: "
                    f"{names[0]}"
                )
            yield table


def _check_release(shard: OpenedShard) -> None:
    """Raises RunFolderError where the numbers would be made by other code than one process makes them
    by."""
    here = {"scoremode": __version__} | {n: metadata.version(n) for n in ("numpy", "pyarrow")}
    for name, own in here.items():
        if (theirs := (shard.record.versions or {}).get(name)) != own:
            raise RunFolderError(
                f"{shard.folder}: was scored with {name} {theirs}, and here is {own}: merge with the "
                "versions that scored, for the same bits"
            )


@contextmanager
def _whole_folder(output: Path) -> Iterator[RunFolder]:
    """A folder beside `output` that becomes it when the block ends well; what a killed merge left of
    one is removed first."""
    building = output.absolute().with_name(f".{output.name}.merging")
    if building.is_symlink():
        raise RunFolderError(f"{building}: is a link, not what a merge has left: remove it")
    if building.exists():
        RunFolder.open(building).discard()
    folder = RunFolder.create(building)
    try:
        yield folder
    except BaseException:
        folder.discard()
        raise
    folder.drop_parts()
    folder.close()
    try:
        # An empty folder that came meanwhile would be replaced.
        building.rename(output)
    except OSError as error:
        raise RunFolderError(f"-o {output}: cannot be written: {error.strerror}") from None

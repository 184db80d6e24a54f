"""Shards of a run made one run: checked, joined, and written whole or not at all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from scoremode import __version__
from scoremode.errors import InvalidMeasurement, RunFolderError, UsageError
from scoremode.results.folders.finished import read_verified
from scoremode.results.folders.output import check_folder
from scoremode.results.folders.store import SCORES, RunFolder, read_columns
from scoremode.results.gates import Gates
from scoremode.results.record.checked import checked_record
from scoremode.results.record.described import check_described
from scoremode.results.shards.alike import check_shards
from scoremode.results.shards.merged import merged_record
from scoremode.results.shards.opened import OpenedShard, open_shard, shard_folders

__all__ = ["merge"]


def merge(
    paths: Sequence[Path],
    output: Path,
    *,
    gates: Gates | None = None,
    command: Sequence[str] = (),
    notify: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Makes of the shards that `paths` name or hold the run of all of them; returns its record.

    - `output`: the run's own folder, which must not be there yet.
    - `gates`: limits that a comparison is held against, for the record.
    - `notify`: is told of each run in a folder of runs that is left out.

    Its scores and every metric are those of one process's run to the bit. Raises RunFolderError where
    the shards are not all of one run, or a file is not what it was, UsageError for a run named twice
    and for gates without a base.
    """
    _check_output(output)
    shards = [open_shard(folder) for folder in shard_folders(paths, notify)]
    shards.sort(key=lambda each: (each.shard.of, each.shard.number))
    check_shards(shards)
    _check_release(shards[0].folder, shards[0].record)
    with _whole_folder(output) as folder:
        sha256 = folder.join(_tables(shards))
        try:
            rows = sum(each.record["shard"]["targets"] for each in shards)
            scores, extras = read_columns(folder.path / SCORES, sha256, rows)
            record = merged_record(shards, scores, extras, sha256, command)
            if gates and scores.against is None:
                raise UsageError(
                    f"{shards[0].folder}: has no base, which a gate on KLD, ratio or top-1 needs"
                )
            if gates:
                record["gates"] = [gate.to_json() for gate in gates.judge(record)]
            folder.write_record(record)
            # As everybody will read it, and with the same doubts.
            record = checked_record(folder.path)
            check_described(folder.path, record, *read_verified(folder.path, record))
        except (InvalidMeasurement, RunFolderError) as error:
            # By the name that it would have had.
            named = str(error).replace(str(folder.path), str(output))
            raise RunFolderError(f"the shards make no run: {named}") from None
    return record


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


def _check_release(folder: Path, record: dict[str, Any]) -> None:
    """Raises RunFolderError where the numbers would be made by other code than one process makes them
    by."""
    here = {"scoremode": __version__} | {n: metadata.version(n) for n in ("numpy", "pyarrow")}
    for name, own in here.items():
        if (theirs := record.get("versions", {}).get(name)) != own:
            raise RunFolderError(
                f"{folder}: was scored with {name} {theirs}, and here is {own}: merge with the "
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

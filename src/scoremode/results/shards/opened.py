"""A finished shard, read back: its record, believed as far as it agrees with itself and its scores."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.results.folders.columns import row_groups
from scoremode.results.folders.expanded import run_folders
from scoremode.results.folders.store import RECORD, SCORES, read_columns, read_record
from scoremode.results.record.checked import check_seal, checked_record
from scoremode.results.record.described import check_identity
from scoremode.results.scores import check_values
from scoremode.text.shard import Shard

__all__ = ["OpenedShard", "open_shard", "shard_folders"]


@dataclass(frozen=True, eq=False)
class OpenedShard:
    """A shard that is done: its `folder`, and its checked `record`."""

    folder: Path
    record: dict[str, Any]

    @property
    def shard(self) -> Shard:
        section = self.record["shard"]
        return Shard(section["number"], section["of"])

    @property
    def windows(self) -> range:
        return range(*self.record["shard"]["windows"])

    @property
    def title(self) -> str:
        """Its folder and which one it is, for messages."""
        return f"{self.folder} (shard {self.shard})"

    def tables(self) -> Iterator[Any]:
        """Arrow tables of its scores with all columns beside them, one a row group of its file.

        Raises RunFolderError where the file is not the one that its record was made of, or where its
        scores are others than the record has.
        """
        path, said = self.folder / SCORES, self.record["scores"]["sha256"]
        targets = self.record["shard"]["targets"]
        scores, _ = read_columns(path, said, targets)
        if len(scores) != targets:
            raise RunFolderError(f"{path}: has {len(scores)} scores, and its record {targets}")
        try:
            check_values(scores)
        except InvalidMeasurement as error:
            raise RunFolderError(f"{path}: {error}") from None
        # By window, then position: as they were scored.
        order = scores.window.astype(np.int64) << 32 | scores.position
        if not (np.diff(order) > 0).all():
            raise RunFolderError(f"{path}: its scores are not in the order of their windows")
        found, own = np.unique(scores.window), self.windows
        if not np.array_equal(found, np.arange(own.start, own.stop)):
            raise RunFolderError(
                f"{path}: has {len(found)} windows from {found.min(initial=-1)} to "
                f"{found.max(initial=-1)}, and its record {own.start} to {own.stop - 1}"
            )
        yield from row_groups(path, said, targets)


def open_shard(folder: Path) -> OpenedShard:
    """The finished shard in `folder`. Raises RunFolderError where there is none, and where its record
    was changed or contradicts itself."""
    record = checked_record(folder, sealed=False)
    _check_status(folder, record)
    file = folder / RECORD
    check_seal(record, file)
    check_identity(file, record)
    section, plan = record["shard"], record["plan"]
    shard = Shard(section["number"], section["of"])
    if shard.number > shard.of or record["identity"].get("shard") != shard.to_json():
        raise RunFolderError(
            f"{file}: its shard is {shard}, and its identity's {record['identity'].get('shard')}"
        )
    passes = shard.among(section["of_passes"])
    if section["passes"] != [passes.start, passes.stop]:
        raise RunFolderError(
            f"{file}: its passes are {section['passes']}, and shard {shard} of "
            f"{section['of_passes']} has {[passes.start, passes.stop]}"
        )
    begin, end = section["windows"]
    if not begin < end <= plan["windows"] or section["targets"] > plan["scored"]:
        raise RunFolderError(
            f"{file}: its windows are {begin} to {end} with {section['targets']} targets, of a plan "
            f"of {plan['windows']} windows with {plan['scored']}"
        )
    return OpenedShard(folder, record)


def _check_status(folder: Path, record: dict[str, Any]) -> None:
    status, shard = record["status"], record.get("shard")
    if status == "shard":
        return
    if shard is None:
        raise RunFolderError(f"{folder}: is no shard: its run was made without --shard")
    reason = f" ({record['reason']})" if record.get("reason") else ""
    more = "; the same command with --resume goes on with it" if status == "running" else ""
    raise RunFolderError(
        f"{folder}: shard {shard['number']}/{shard['of']} is not done: its status is "
        f"{status!r}{reason}{more}"
    )


def shard_folders(paths: Sequence[Path], notify: Callable[[str], None]) -> list[Path]:
    """The shards' folders that `paths` name or hold: what is named is taken as it is, and of what lies
    in a folder the shards, done or not; `notify` is told of each run that is left out.

    Raises RunFolderError for a folder that holds none, UsageError for a run that is named twice.
    """
    named, found = {str(path) for path in paths}, []
    for folder in run_folders(paths, notify, unfinished=True):
        if str(folder) in named or "shard" in read_record(folder):
            found.append(folder)
        else:
            notify(f"left out: {folder}: is no shard")
    if not found:
        raise RunFolderError(f"{paths[0]}: holds no shard")
    return found

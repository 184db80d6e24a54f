"""Finished shards, read back and held against each other: together they must be all of one run.

A shard's record is believed as far as it agrees with itself and its scores. A shard resumes only with
the same headers, plan, engine settings, kind of device and versions; the shards of one run must share
these as well, and what a run knows when it is done: the hashes of its model's and its base's files,
scales that it measured, the micro-batches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.results.folders.paths import run_folders
from scoremode.results.folders.store import RECORD, SCORES, read_columns, read_record
from scoremode.results.folders.tables import row_groups
from scoremode.results.record.checks import check_identity, check_seal, checked_record
from scoremode.results.record.definition import Record, ShardDone
from scoremode.results.record.section import first_difference, shortened
from scoremode.results.scores import check_values
from scoremode.results.shards import Shard


@dataclass(frozen=True, eq=False)
class OpenedShard:
    """A shard that is done: its `folder`, and its checked `record`."""

    folder: Path
    record: ShardDone

    @property
    def shard(self) -> Shard:
        return Shard(self.record.shard.number, self.record.shard.of)

    @property
    def windows(self) -> range:
        return range(*self.record.shard.windows)

    @property
    def title(self) -> str:
        """Its folder and which one it is, for messages."""
        return f"{self.folder} (shard {self.shard})"

    def tables(self) -> Iterator[Any]:
        """Arrow tables of its scores with all columns beside them, one a row group of its file.

        Raises RunFolderError where the file is not the one that its record was made of, or where its
        scores are others than the record has.
        """
        path, said = self.folder / SCORES, self.record.scores.sha256
        targets = self.record.shard.targets
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
    if not isinstance(record, ShardDone):
        _refuse_status(folder, record)
    file = folder / RECORD
    check_seal(record, file)
    check_identity(file, record.document)
    section, plan = record.shard, record.plan
    shard = Shard(section.number, section.of)
    said = record.document["identity"].get("shard")
    if shard.number > shard.of or said != shard.to_json():
        raise RunFolderError(f"{file}: its shard is {shard}, and its identity's {said}")
    passes = shard.among(section.of_passes)
    if section.passes != (passes.start, passes.stop):
        raise RunFolderError(
            f"{file}: its passes are {list(section.passes)}, and shard {shard} of "
            f"{section.of_passes} has {[passes.start, passes.stop]}"
        )
    begin, end = section.windows
    if not begin < end <= plan.windows or section.targets > plan.scored:
        raise RunFolderError(
            f"{file}: its windows are {begin} to {end} with {section.targets} targets, of a plan "
            f"of {plan.windows} windows with {plan.scored}"
        )
    return OpenedShard(folder, record)


def _refuse_status(folder: Path, record: Record) -> NoReturn:
    if not (shard := record.shard):
        raise RunFolderError(f"{folder}: is no shard: its run was made without --shard")
    reason = f" ({record.reason})" if record.reason else ""
    more = "; the same command with --resume goes on with it" if record.status == "running" else ""
    raise RunFolderError(
        f"{folder}: shard {shard.number}/{shard.of} is not done: its status is "
        f"{record.status!r}{reason}{more}"
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


# By the first of these that differs a stranger is told: the protocol before the plan that it makes.
_SECTIONS = ("protocol", "corpus", "tokenizer", "plan", "checkpoint", "reference", "calibration")
# Where things lie, and what two names of one thing are: no score is of it.
_PLACES = ("name", "source", "label", "path", "files_at", "auto_tokenizer")
# What a base that is opened anew says of this time.
_OF_A_BASE = ("replay", "replay_at_load", "engine")
# What an engine says of its work, of its memory, and of what gives the same bits.
_OF_A_RUN = (
    *("tokens", "seconds", "peak_bytes", "estimated_bytes", "devices", "placement"),
    *("kernels", "fused", "experts", "chunks"),
)


def check_shards(shards: Sequence[OpenedShard]) -> None:
    """Raises RunFolderError unless these, by their numbers, are all shards of one run.

    In this order: one that is there twice, a stranger, one that is missing, windows that two shards
    or none has.
    """
    for one, other in pairwise(shards):
        if one.shard == other.shard:
            raise RunFolderError(
                f"{one.folder} and {other.folder}: both are shard {one.shard}: name one of them"
            )
    for other in shards[1:]:
        _check_alike(shards[0], other)
    of, numbers = shards[0].shard.of, {each.shard.number for each in shards}
    if missing := [number for number in range(1, of + 1) if number not in numbers]:
        named = ", ".join(f"{number}/{of}" for number in missing[:8])
        more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise RunFolderError(
            f"{shards[0].folder}: its run has {of} shards, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: {named}{more}"
        )
    _check_windows(shards)


def _check_alike(first: OpenedShard, other: OpenedShard) -> None:
    if first.shard.of != other.shard.of:
        raise RunFolderError(
            f"{first.title} and {other.title}: are shards of runs that were cut into other numbers of "
            "them"
        )
    one, two = first.record.document, other.record.document
    for section in _SECTIONS:
        _compare(first, other, section, _of_section(one, section), _of_section(two, section))
    _compare(first, other, "identity", _identity(one), _identity(two))
    _compare(first, other, "engine", _engine(one), _engine(two))
    batches = [each.record.shard.batches_sha256 for each in (first, other)]
    if batches[0] != batches[1]:
        _refuse_schedule(first, other, "micro-batches are not those of")


def _compare(first: OpenedShard, other: OpenedShard, section: str, one: Any, two: Any) -> None:
    if found := first_difference(section, two, one):
        field, theirs, ours = found
        raise RunFolderError(
            f"{other.title}: is of another run than {first.title}: its {field} is "
            f"{shortened(str(theirs))}, and the other's {shortened(str(ours))}"
        )


def _of_section(document: Mapping[str, Any], section: str) -> Any:
    found = document.get(section)
    if section == "reference" and found is not None:
        found = {name: value for name, value in found.items() if name not in _OF_A_BASE}
    return _without_places(found)


def _without_places(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_places(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {k: _without_places(v) for k, v in value.items() if k not in _PLACES}


def _identity(document: Mapping[str, Any]) -> dict[str, Any]:
    """The identity but for which shard it is of, and for the memory of its devices: what follows from
    that is the schedule, which is compared by itself."""
    identity = {name: value for name, value in document["identity"].items() if name != "shard"}
    identity["engine"] = _without_memory(identity["engine"])
    base = identity.get("reference")
    if base is not None and "engine" in base:
        identity["reference"] = base | {"engine": _without_memory(base["engine"])}
    return identity


def _without_memory(engine: Mapping[str, Any]) -> dict[str, Any]:
    device = {k: v for k, v in engine["device"].items() if k != "memory_bytes"}
    return {**engine, "device": device}


def _engine(document: Mapping[str, Any]) -> dict[str, Any]:
    engine = _without_memory(document["engine"])
    return {name: value for name, value in engine.items() if name not in _OF_A_RUN}


def _check_windows(shards: Sequence[OpenedShard]) -> None:
    """Raises RunFolderError where neighbours overlap or leave windows out, which only those of other
    schedules do."""
    edge, before = 0, None
    for each in shards:
        if each.windows.start != edge:
            _refuse_schedule(before or shards[-1], each, "windows don't go on where those end of")
        edge, before = each.windows.stop, each
    if edge != (windows := shards[0].record.plan.windows):
        raise RunFolderError(
            f"{shards[-1].title}: ends at window {edge}, and the run has {windows} windows"
        )


def _refuse_schedule(first: OpenedShard, other: OpenedShard, words: str) -> None:
    said = [_schedule_words(each) for each in (other, first)]
    raise RunFolderError(
        f"{other.title}: its {words} {first.title}: its schedule is {said[0]}, the other's {said[1]}: "
        "give all shards the same --batch-size, --max-memory and --devices"
    )


def _schedule_words(each: OpenedShard) -> str:
    schedule, windows = each.record.document["schedule"], each.windows
    named = ", ".join(f"{name} {value}" for name, value in schedule.items())
    return f"{named} (windows {windows.start} to {windows.stop - 1})"

"""What the shards of one run must share, and that together they are all of it.

A shard resumes only with the same headers, plan, engine settings, kind of device and versions; the
shards of one run must share these as well, and what a run knows when it is done: the hashes of its
model's and its base's files, scales that it measured, the micro-batches.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scoremode.errors import RunFolderError
from scoremode.results.record.differences import first_difference
from scoremode.results.record.shape import shortened
from scoremode.results.shards.opened import OpenedShard

__all__ = ["check_shards"]

# By the first of these that differs a stranger is told: the protocol before the plan that it makes.
_SECTIONS = ("protocol", "corpus", "tokenizer", "plan", "checkpoint", "reference", "calibration")
# Where things lie, and what two names of one thing are: no score is of it.
_PLACES = ("name", "source", "path", "files_at", "auto_tokenizer")
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
    for section in _SECTIONS:
        _compare(first, other, section, *(_of_section(s.record, section) for s in (first, other)))
    _compare(first, other, "identity", *(_identity(s.record) for s in (first, other)))
    _compare(first, other, "engine", *(_engine(s.record) for s in (first, other)))
    batches = [each.record["shard"]["batches_sha256"] for each in (first, other)]
    if batches[0] != batches[1]:
        _refuse_schedule(first, other, "micro-batches are not those of")


def _compare(first: OpenedShard, other: OpenedShard, section: str, one: Any, two: Any) -> None:
    if found := first_difference(section, two, one):
        field, theirs, ours = found
        raise RunFolderError(
            f"{other.title}: is of another run than {first.title}: its {field} is "
            f"{shortened(str(theirs))}, and the other's {shortened(str(ours))}"
        )


def _of_section(record: Mapping[str, Any], section: str) -> Any:
    found = record.get(section)
    if section == "reference" and found is not None:
        found = {name: value for name, value in found.items() if name not in _OF_A_BASE}
    return _without_places(found)


def _without_places(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_places(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    return {k: _without_places(v) for k, v in value.items() if k not in _PLACES}


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """The identity but for which shard it is of, and for the memory of its devices: what follows from
    that is the schedule, which is compared by itself."""
    identity = {name: value for name, value in record["identity"].items() if name != "shard"}
    identity["engine"] = _without_memory(identity["engine"])
    base = identity.get("reference")
    if base is not None and "engine" in base:
        identity["reference"] = base | {"engine": _without_memory(base["engine"])}
    return identity


def _without_memory(engine: Mapping[str, Any]) -> dict[str, Any]:
    device = {k: v for k, v in engine["device"].items() if k != "memory_bytes"}
    return {**engine, "device": device}


def _engine(record: Mapping[str, Any]) -> dict[str, Any]:
    engine = _without_memory(record["engine"])
    return {name: value for name, value in engine.items() if name not in _OF_A_RUN}


def _check_windows(shards: Sequence[OpenedShard]) -> None:
    """Raises RunFolderError where neighbours overlap or leave windows out, which only those of other
    schedules do."""
    edge, before = 0, None
    for each in shards:
        if each.windows.start != edge:
            _refuse_schedule(before or shards[-1], each, "windows don't go on where those end of")
        edge, before = each.windows.stop, each
    if edge != (windows := shards[0].record["plan"]["windows"]):
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
    schedule, windows = each.record["schedule"], each.windows
    named = ", ".join(f"{name} {value}" for name, value in schedule.items())
    return f"{named} (windows {windows.start} to {windows.stop - 1})"

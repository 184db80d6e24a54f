"""The state of runs as a table, with what is to be said of single ones below it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scoremode.report.forms.document import Column, Document, Facts, Table, data, words
from scoremode.report.layout import printable

__all__ = ["status_document"]


def status_document(states: Sequence[Mapping[str, Any]]) -> Document:
    """The document of what `results.folders.status` says of each run."""
    table = Table(_columns(states), tuple(_row(state) for state in states))
    said = []
    for state in states:
        if problem := state.get("problem"):
            said.append((_name(state), problem))
        if command := state.get("resume"):
            said.append((_name(state), f"goes on with: {command}"))
    shown = table.filled()
    # Of a sweep that was ended all models that wait have the same to say.
    facts = tuple(dict.fromkeys(said))
    return Document((shown, Facts(facts)) if facts else (shown,), table)


def _name(state: Mapping[str, Any]) -> str:
    """What is said is of a run's folder, or of a sweep's, or of the model that has none."""
    return _last(state["model"] if state["state"] == "failed" else state["folder"])


def _last(path: str) -> str:
    """The last part of a path, which tells it from its neighbours; a `model.gguf` needs its folder's
    name for that."""
    place = Path(path)
    if place.name.lower() == "model.gguf" and place.parent.name:
        return printable(f"{place.parent.name}/{place.name}")
    return printable(place.name or path)


def _shown(form: str) -> Callable[[Mapping[str, Any]], str]:
    """A metric with half of its interval's width behind it, the larger half."""

    def show(metric: Mapping[str, Any]) -> str:
        value, ends = metric["value"], metric["ci95"]
        text = f"{value:{form}}"
        if ends is None or not value:
            return text
        half = max(ends[1] - value, value - ends[0]) / abs(value)
        return f"{text} ±{100 * half:.2g} %"

    return show


def _metric(head: str, key: str, form: str) -> Column:
    return Column(
        head,
        key,
        _shown(form),
        lambda metric: (metric["value"], *(metric["ci95"] or (None, None))),
        ("", "_low", "_high"),
    )


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


_COLUMNS = (
    Column("run", "folder", _last),
    words("state", "state"),
    Column("model", "model", _last),
    data("reference"),
    data("protocol"),
    data("text"),
    Column(
        "windows",
        "windows",
        lambda both: f"{both[0]:,} of {both[1]:,}",
        lambda both: both,
        ("", "_planned"),
    ),
    Column("a second", "windows_per_second", lambda rate: f"{rate:.3g}"),
    Column("left", "seconds_left", _duration),
    _metric("PPL", "ppl", ".4f"),
    _metric("PPL / base", "ppl_ratio", ".4f"),
    _metric("KLD", "kld_nats", ".5f"),
)


def _columns(states: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """The columns, with a heading for protocol and text where runs of several are shown: without, one
    would take their numbers for comparable."""
    several = {key for key in ("protocol", "text") if len({s[key] for s in states if key in s}) > 1}
    return tuple(words(c.key, c.key) if c.key in several else c for c in _COLUMNS)


def _state(state: Mapping[str, Any]) -> str:
    """Such as `running` or `running, shard 2/4`; of a shard that is done `shard 2/4`."""
    if (shard := state.get("shard")) is None:
        return state["state"]
    begin = "" if state["state"] == "shard" else f"{state['state']}, "
    return f"{begin}shard {shard}"


def _row(state: Mapping[str, Any]) -> tuple[Any, ...]:
    found = state.get("estimates") or {}
    return (
        state["folder"],
        _state(state),
        state.get("model"),
        state.get("reference"),
        state.get("protocol"),
        state.get("text"),
        (state["windows"], state["of"]) if "windows" in state else None,
        state.get("windows_per_second"),
        state.get("seconds_left"),
        found.get("ppl"),
        found.get("ppl_ratio"),
        found.get("kld"),
    )

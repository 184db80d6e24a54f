"""Documents of a ladder: its steps beside the one before and beside the top, and what one would run."""

import shlex
from collections.abc import Mapping
from typing import Any

from scoremode.report.document import (
    Column,
    Document,
    Facts,
    Table,
    Verdict,
    data,
    interval,
    measured,
    metric_of,
    without_interval,
    words,
)
from scoremode.results.ladder import FILE_NOISE, KINDS, alarms_of
from scoremode.results.statistics.agreement import MIN_TARGETS

# Of each side: heading and key's beginning.
_BEFORE, _TOP = "before", "top"


def _side(of: str, what: str) -> tuple[Column, ...]:
    """Columns of what a step is beside `what`: the step before, or the top."""
    return (
        measured(f"KLD, {what}", f"kld_{of}_nats", ".4g", importance=9),
        interval(".3g", importance=7),
        measured("TV", f"tv_{of}_share", ".4g", importance=5),
        interval(".3g", importance=2),
        measured("top-1", f"top1_{of}_share", ".2%", importance=6),
        interval(".2%", importance=2),
        measured("PPL ratio", f"ppl_ratio_{of}", ".5f", "×", importance=6),
        interval(".5f", importance=2),
    )


_COLUMNS = (
    words("step", "step", 9),
    words("after", "before", 4),
    data("kind"),
    data("status"),
    words("computed in", "computed", 3),
    *_side(_BEFORE, "step before"),
    *_side(_TOP, "top"),
    measured("of the whole", "share", ".1%", importance=8),
    interval(".1%", importance=6),
    words("alarm", "alarm", 8),
    data("reason"),
)
_NAMED = 5
_BEHIND = len(_side(_BEFORE, ""))


def ladder_document(value: Mapping[str, Any]) -> Document:
    """The document of a ladder's manifest with its findings."""
    found = value["findings"]
    lines = {line["step"]: line for line in found["steps"]}
    rows = tuple(_row(step, lines.get(step["name"])) for step in value["steps"][1:])
    table = Table(_COLUMNS, rows)
    done = [
        row for row, step in zip(rows, value["steps"][1:], strict=True) if step["name"] in lines
    ]
    ends = _NAMED + _BEHIND
    behind = range(ends + _BEHIND, len(_COLUMNS))
    before = _part([*range(_NAMED), *range(_NAMED, ends), *behind], done)
    top = _part([0, *range(ends, ends + _BEHIND)], done)
    parts = [before, top, Facts(tuple(_facts(value, found)))]
    return Document(tuple(parts), table, Verdict(found["verdict"], not alarms_of(found)))


def _part(columns: list[int], rows: list[tuple[Any, ...]]) -> Table:
    """Some columns of all, of the steps that are done."""
    cut = Table(
        tuple(_COLUMNS[i] for i in columns), tuple(tuple(row[i] for i in columns) for row in rows)
    )
    return cut.filled()


def _row(step: Mapping[str, Any], line: Mapping[str, Any] | None) -> tuple[Any, ...]:
    if line is None:
        empty = (None,) * (2 * _BEHIND + 3)
        return (step["name"], None, None, step["status"], None, *empty, step["reason"])
    share = metric_of(line["added"]["share"])
    judged = line["judged"]
    alarm = judged["words"] if judged and judged["alarm"] else None
    return (
        step["name"],
        line["before"],
        line["kind"],
        step["status"],
        _computed(line["engine"]),
        *_cells(line["against_before"]),
        *_cells(line["against_top"]),
        share,
        share and share.ci95,
        alarm,
        None,
    )


def _cells(side: Mapping[str, Any]) -> list[Any]:
    cells: list[Any] = []
    for key in ("kld", "tv", "top1", "ppl_ratio"):
        metric = metric_of(side[key])
        cells += [metric, metric and metric.ci95]
    return cells


def _computed(engine: Mapping[str, Any]) -> str:
    """The dtype that a step computes in, and what does, such as `bfloat16, vllm decode`."""
    if engine["engine"] == "replay":
        return "llama.cpp itself"
    own = [] if engine["engine"] == "torch" else [engine["engine"], engine["phase"]]
    return ", ".join(filter(None, (engine["dtype"], " ".join(filter(None, own)))))


def _facts(value: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("model", value["model"]),
        ("top", f"{value['base']} in float32"),
        ("text", f"{found['corpus']['name']}, {found['protocol']['name']}, "
         f"{found['plan']['windows']:,} windows, {found['plan']['scored']:,} targets"),
    ]  # fmt: skip
    for noise in found["noise"]:
        kld = metric_of(noise["against_before"]["kld"])
        assert kld is not None
        how = ", ".join(filter(None, (noise["engine"]["dtype"], noise["engine"]["attention"])))
        how = "as llama.cpp's file holds it" if noise["name"] == FILE_NOISE else how
        facts.append(
            ("rounding", f"KLD {kld.value:.4g} nats of {noise['before']} from itself ({how})")
        )
    facts += without_interval(
        metric
        for line in found["steps"]
        for side in ("against_before", "against_top")
        if (metric := metric_of(line[side]["kld"])) is not None
    )
    facts += _not_as_rounding(found)
    for status in ("left out", "failed"):
        facts += [
            (status, f"{step['name']}: {step['reason']}")
            for step in value["steps"]
            if step["status"] == status
        ]
    facts += [("gate", _gate(gate)) for gate in value.get("gates", ())]
    if "folder" in value:
        facts.append(("ladder", f"{value['folder']}: each step's run, and ladder.json"))
    return facts


def _not_as_rounding(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows on steps that are there to be held against rounding, and aren't."""
    rows = []
    for line in found["steps"]:
        name, judged = line["step"], line["judged"]
        if judged is not None and line["kind"] != KINDS[name]:
            rows.append(("no rounding", f"{name}: {judged['words']}"))
        elif judged is None and line["kind"] == "rounding":
            few = f"{found['plan']['scored']:,} targets, and at least {MIN_TARGETS} tell rounding"
            rows.append(("not judged", f"{name}: {few}"))
    return rows


def _gate(gate: Mapping[str, Any]) -> str:
    flag = f"--{gate['name'].replace('_', '-')} {gate['limit']:g}"
    return f"{flag}: {'met' if gate['met'] else 'not met'} by the last step, {gate['value']:.6g}"


def foreseen_document(value: Mapping[str, Any]) -> Document:
    """The document of what a ladder would run."""
    columns = (
        words("step", "step"),
        words("after", "before"),
        words("left out", "left_out"),
        Column("command", "command"),
        Column("against the step before", "after_command"),
        words("in", "python"),
    )
    rows, facts = [], []
    for step in (*value["steps"], value["noise"]):
        commands = [step[key] and shlex.join(step[key]) for key in ("command", "after_command")]
        rows.append(
            (step["step"], step["before"], step["left_out"], *commands, step["python"]),
        )
        if step["left_out"]:
            facts.append((step["step"], f"left out: {step['left_out']}"))
            continue
        where = f" (by {step['python']})" if step["python"] else ""
        facts.append((step["step"], f"{commands[0]}{where}"))
        if commands[1]:
            facts.append(("", str(commands[1])))
    return Document((Facts(tuple(facts)),), Table(columns, tuple(rows)))

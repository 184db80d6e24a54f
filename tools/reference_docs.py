"""Writes what docs/ has of the code itself: command line, Python API, record, metrics, charts.

    python tools/reference_docs.py

docs/cli.md is made of the commands' parsers, docs/api.md of signatures and docstrings,
docs/record.schema.json and the table in docs/record.md of the record's types, the two tables in
docs/statistics.md of METRICS, that in docs/report.md of the page's charts, the first of docs/formats.md
of the libraries. A test holds all of them against what this makes.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import msgspec

import scoremode
from scoremode.cli.main import COMMANDS, command_class, command_parser
from scoremode.engines import vllm
from scoremode.lib.json import json_text
from scoremode.report.page.charts import CHARTS
from scoremode.report.page.comparison import FRONTIERS
from scoremode.report.page.figures import PERCENTILE_WORDS, TAIL_WORDS
from scoremode.results.metrics import METRICS
from scoremode.results.record.definition import (
    SCHEMA,
    SCHEMA_VERSION,
    SECTIONS,
    STATUSES,
    AnyStatus,
    needed_by,
)
from scoremode.schemes.resolve import LIBRARIES, METHODS
from scoremode.spec.flag import Flag

DOCS = Path(__file__).parent.parent / "docs"


def written() -> dict[str, str]:
    """Name of a file in docs/ → its text as it is to be."""
    return {
        "cli.md": command_line(),
        "api.md": api(),
        "record.schema.json": json_text(record_schema()),
        "record.md": _with_tables("record.md", "| section | needed in |", record_table()),
        "statistics.md": _with_tables(
            "statistics.md", _METRIC_HEAD, metric_table(base=False), metric_table(base=True)
        ),
        "formats.md": _with_tables("formats.md", "| you see |", format_table()),
        "report.md": _with_tables("report.md", "| chart | as |", chart_table()),
    }


def _with_tables(name: str, head: str, *tables: str) -> str:
    """A page with its tables that begin so replaced by these, in their order."""
    page, new = (DOCS / name).read_text("utf-8"), iter(tables)
    made, count = re.subn(rf"{re.escape(head)}.*\n(?:\|.*\n)*", lambda _: next(new), page)
    assert count == len(tables), f"docs/{name}: has not {len(tables)} tables {head}"
    return made


# --- docs/cli.md

_CLI = """# Command line

All commands with all their flags, as `scoremode COMMAND --help all` prints them; `scoremode COMMAND
--help` has those that most calls need. A flag may be written with underscores, too. Exit codes:
[gate.md](gate.md#exit-codes).
"""
_COMPLETION = """## Completion

A script makes your shell complete commands, flags, their values, models and files. Print it again
after an upgrade:

- bash: `scoremode --print-completion bash > ~/.local/share/bash-completion/completions/scoremode`
- zsh: `scoremode --print-completion zsh > ~/.zfunc/_scoremode`, and in `.zshrc`, before `compinit`,
  `fpath=(~/.zfunc $fpath)`
- fish: `scoremode --print-completion fish > ~/.config/fish/completions/scoremode.fish`
"""


def command_line() -> str:
    rows = ((f"[`{name}`](#{name})", command_class(name).summary) for name in COMMANDS)
    sections = (part for name in COMMANDS for part in _command(name))
    return _page([_CLI, _table(("command", ""), rows), _COMPLETION, *sections])


def _command(name: str) -> Iterator[str]:
    command, parser = command_class(name), command_parser(name)
    yield f"## {name}"
    yield _prose(command.about)
    yield _code("", *command.examples)
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if "--help" not in a.option_strings]
        if actions:
            plain = ("positional arguments", "options")
            title = "" if group.title in plain else f"**{_prose(str(group.title))}**"
            about = _prose(group.description or "")
            yield f"{title}: {about}" if about else title
            yield _table(
                ("flag", ""), ((_spelled(a), _prose(a.help or "", parser, a)) for a in actions)
            )


def _spelled(action: argparse.Action) -> str:
    """A flag's names with its value, as code."""
    choices = "{" + ",".join(map(str, action.choices or ())) + "}"
    value = str(action.metavar or (choices if action.choices else action.dest.upper()))
    if not action.option_strings:
        return f"`{value}`"
    shown: dict[Any, str] = {0: "", "?": f"[{value}]", "+": f"{value} …"}
    value = shown.get(action.nargs, value)
    names = action.option_strings
    return ", ".join(f"`{name} {value}`" if value else f"`{name}`" for name in names)


# --- docs/api.md

_API = """# Python API

All that `import scoremode` has, and [`ScoringLLM`](#scoringllm) for programs that score in vLLM
themselves; [python.md](python.md) has examples. Everything else is private, and may change with any
release.
"""


def api() -> str:
    members = {name: getattr(scoremode, name) for name in scoremode.__all__}
    errors = {n: v for n, v in members.items() if _is_error(v)}
    # In the order of their module.
    public = sorted(members.keys() - errors.keys(), key=lambda name: _line(members[name]))
    classes = [name for name in public if inspect.isclass(members[name])]
    functions = [name for name in public if name not in classes]
    parts = [_API, "## Functions"]
    for name in functions:
        parts += _function(f"scoremode.{name}", members[name], level=3)
    parts.append("## Results")
    for name in classes:
        parts += _class(name, members[name])
    parts += ["## Exceptions", "Each is a `ScoremodeError`, with a message of one line."]
    rows = (
        (f"`{n}`", str(e.exit_code), _prose(_doc(e).split("\n\n")[0])) for n, e in errors.items()
    )
    parts.append(_table(("exception", "exit code", ""), rows))
    parts += ["## In vLLM", "`from scoremode.engines.vllm import ScoringLLM` ([vllm.md](vllm.md))."]
    for name in reversed(vllm.__all__):
        parts += _class(name, getattr(vllm, name))
    return _page(parts)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def _line(value: Any) -> int:
    return inspect.getsourcelines(inspect.unwrap(value))[1]


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"### {name}"
    if is_dataclass(kind):
        own = [f for f in fields(kind) if not f.name.startswith("_")]
        yield _code("python", *(f"{f.name}: {_type(f.type)}" for f in own))
    else:
        yield _code("python", _call(name, inspect.signature(kind)))
    yield _prose(_doc(kind))
    for member, value in vars(kind).items():
        if member.startswith("_"):
            continue
        if isinstance(value, property | cached_property):
            get = value.func if isinstance(value, cached_property) else value.fget
            assert get is not None
            yield f"#### {name}.{member}"
            yield _code("python", f"{member}: {_type(inspect.signature(get).return_annotation)}")
            yield _prose(_doc(value))
        elif inspect.isfunction(value):
            yield from _function(f"{name}.{member}", value, level=4)


def _function(name: str, function: Callable[..., Any], *, level: int) -> Iterator[str]:
    """A function; keywords that are flags are a table, those that `measure` has as well their names."""
    signature = inspect.signature(function)
    own = inspect.signature(inspect.unwrap(function)).parameters
    spec: Mapping[str, Flag[Any, Any]] = getattr(function, "flags", {})
    keywords = [p for n, p in signature.parameters.items() if n in spec and n not in own]
    shown = [p for p in signature.parameters.values() if p not in keywords and p.name != "self"]
    if keywords:
        shown.append(inspect.Parameter("keywords", inspect.Parameter.VAR_KEYWORD))
    yield f"{'#' * level} {name.removeprefix('scoremode.')}"
    yield _code("python", _call(name, signature.replace(parameters=shown)))
    yield _prose(_doc(function))
    measured: Mapping[str, Flag[Any, Any]] = scoremode.measure.__dict__["flags"]
    shared = [
        p.name
        for p in keywords
        if function is not scoremode.measure
        and p.name in measured
        and measured[p.name].help == spec[p.name].help
    ]
    rows = (
        (
            f"`{p.name}`",
            # A bar would end the cell.
            f"`{_type(p.annotation).replace(' | ', ' or ')}`",
            f"`{str(p.default) if isinstance(p.default, Path) else p.default!r}`",
            _prose(_help(spec[p.name], spec)),
        )
        for p in keywords
        if p.name not in shared
    )
    yield _table(("keyword", "type", "default", ""), rows)
    if shared:
        as_there = "as in [`measure`](#measure)"
        yield f"Keywords {as_there}: {', '.join(f'`{name}`' for name in shared)}."


def _help(flag: Flag[Any, Any], spec: Mapping[str, Flag[Any, Any]]) -> str:
    """A flag's help, in which others are keywords."""
    names = {spelled: f"`{other.name}`" for other in spec.values() for spelled in other.names}
    text = flag.help.replace("%%", "%")
    return re.sub(r"--?[a-z][\w-]*", lambda found: names.get(found[0], found[0]), text)


def _call(name: str, signature: inspect.Signature) -> str:
    """A call as a `def` has it, on several lines where one is too short."""
    parameters, mark = [], False
    for p in signature.parameters.values():
        if p.kind == p.KEYWORD_ONLY and not mark:
            parameters.append("*")
        mark = mark or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        words = f"{stars}{p.name}"
        if p.annotation is not p.empty:
            words += f": {_type(p.annotation)}"
        if p.default is not p.empty:
            shown = "…" if callable(p.default) else repr(p.default)
            words += f" = {shown}" if p.annotation is not p.empty else f"={shown}"
        parameters.append(words)
    returned = signature.return_annotation
    end = f" -> {_type(returned)}" if returned not in (signature.empty, None) else ""
    line = f"{name}({', '.join(parameters)}){end}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {words},\n" for words in parameters) + f"){end}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"numpy\.ndarray\[.*?numpy\.dtype\[numpy\.(\w+)\]\]", r"NDArray[\1]", text)
    text = text.replace("NDArray[numpy.", "NDArray[")
    # Python 3.14 writes it so itself.
    text = re.sub(r"^Optional\[(.*)\]$", r"\1 | None", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def _doc(value: Any) -> str:
    assert value.__doc__, value
    return inspect.cleandoc(value.__doc__)


# --- The record

_STATUS = (
    "`running`, `done`, `shard` (a [shard](devices.md#what-a-shard-is) that is done: no whole "
    "run, and without metrics), or `invalid` with a `reason`"
)


def record_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a whole record, of every status."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA}, version {SCHEMA_VERSION}",
        "description": "What scoremode measured, how, with what result. A record that fits may still "
        "be refused: its sha256 must be its contents', and its numbers those of scores.parquet.",
        **_with_shared_sections(msgspec.json.schema(AnyStatus)),
    }


def _with_shared_sections(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with each section described once, under `$defs`, and named where a status has it."""
    shared = schema["$defs"]
    for kind in get_args(AnyStatus):
        properties = shared[kind.__name__]["properties"]
        for name in SECTIONS:
            section = shared.setdefault(name, properties[name])
            assert section == properties[name], f"{name} of {kind.__name__} differs"
            properties[name] = {"$ref": f"#/$defs/{name}"}
    return schema


def record_table() -> str:
    """The table of a record's sections in Markdown."""
    rows = [("`status`", "all", _STATUS)]
    for name, kind in SECTIONS.items():
        needed = needed_by(name)
        where = "all" if needed == STATUSES else ", ".join(needed)
        rows.append((f"`{name}`", where, _meaning(kind)))
    return _table(("section", "needed in", "what it says"), rows) + "\n"


def _meaning(kind: Any) -> str:
    """The description in a type, at whatever depth of unions it stands."""
    for meta in getattr(kind, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    return next((words for inner in get_args(kind) if (words := _meaning(inner))), "")


# --- The metrics

_METRIC_HEAD = "| metric | better | |"


def metric_table(*, base: bool) -> str:
    """The table of the metrics that need a base, or of those that don't; a family is a row."""
    rows: dict[str, tuple[str, ...]] = {}
    for metric in METRICS:
        if metric.base == base:
            name = metric.family or f"`{metric.key}`"
            rows.setdefault(name, (name, metric.better or "", metric.words))
    return _table(("metric", "better", ""), rows.values()) + "\n"


# --- The charts


def chart_table() -> str:
    """The table of the page's charts, in its order."""
    rows = [
        (kind.title, "chart", kind.caption) for kind in FRONTIERS.values() if kind.own is not None
    ]
    rows += [(title, "chart", words) for title, words in (PERCENTILE_WORDS, TAIL_WORDS)]
    for kind in CHARTS.values():
        form = "chart" if kind.draw else "table" if kind.tabled else "data alone"
        rows.append((kind.title, form, kind.words))
    return _table(("chart", "as", "how to read it"), ((t, f, _prose(w)) for t, f, w in rows)) + "\n"


# --- The formats

_DENSE = ("safetensors without a quantization", "yes", "as stored")
_PICKLES = "weights only as `.bin`, `.pt`, `.pth`"


def format_table() -> str:
    """The table of what is read: a row a library, and those that are refused by name."""
    refused = ", ".join(f"`{name}`" for name in METHODS)
    no = "no, refused by name; try `--engine vllm`, which takes what vLLM loads"
    rows = [_DENSE, *(library.about for library in LIBRARIES), (f"{refused}, another", no, "")]
    rows.append((_PICKLES, "no: pickles are never loaded; save them as safetensors", ""))
    return _table(("you see", "read", "computed"), rows) + "\n"


# --- Markdown


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _code(language: str, *lines: str) -> str:
    return "\n".join((f"```{language}", *lines, "```"))


def _table(head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    """A table; nothing of no rows."""
    lines = ["|" + "|".join(f" {cell} " if cell else " " for cell in row) + "|" for row in rows]
    first = "|" + "|".join(f" {cell} " if cell else " " for cell in head) + "|"
    return "\n".join([first, "|" + "---|" * len(head), *lines]) if lines else ""


def _prose(
    text: str, parser: argparse.ArgumentParser | None = None, action: argparse.Action | None = None
) -> str:
    """A help text or a docstring: flags as code, pages as links, no marks of Markdown's by chance."""
    if parser is not None and action is not None:
        text = parser._get_formatter()._expand_help(action)
    pieces = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(pieces), 2):
        plain = re.sub(r"[*|<\[\]]", r"\\\g<0>", pieces[i])
        plain = re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", r"[\1](\1\2)", plain)
        pieces[i] = re.sub(r"(?<![\w-])--?[a-z][\w-]*", r"`\g<0>`", plain)
    return "".join(pieces)


if __name__ == "__main__":
    for name, text in written().items():
        (DOCS / name).write_text(text, encoding="utf-8")

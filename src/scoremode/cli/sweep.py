"""`scoremode sweep`: many models, texts and protocols against one base, as a file describes them.

Nothing is defined twice: each key of a file is a flag of `scoremode kld`, and its value is read as that
is; a file is one such command for each text under each protocol.

A file may come from a stranger, and running it is no consent to all that it asks for: what runs code
comes from the command line alone, and nothing is written outside the file's own folder.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, exit_code_of, model_of, print_result, rendered
from scoremode.cli.measure import Kld
from scoremode.cli.screen import Session
from scoremode.errors import ScoremodeError, UsageError, escaped, line_of, words_of
from scoremode.spec.engine import Engine
from scoremode.spec.flag import Flag, Group, PathName, Switch
from scoremode.spec.run import Form, Quiet
from scoremode.spec.values import object_of

if TYPE_CHECKING:
    from scoremode.results.gates import Gate, Gates
    from scoremode.results.record.definition import Done
    from scoremode.runs.request import Request
    from scoremode.runs.sweep.manifest import Ended, Outcome, SweepRequest

__all__ = [
    "Sweep",
    "definitions",
    "print_foreseen",
    "print_outcome",
    "read_sweep_file",
    "requests_of",
    "sweep_of",
    "swept",
]

_KEYS = ("base", "models", "output", "texts", "protocols", "flags")
# tomllib keeps or copies every beginning of a dotted key: one of 20,000 parts takes 1.5 GB, or minutes
# in braces.
_MOST_PARTS = 32
_MOST_BYTES = 1 << 17
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*"""
_LONG_KEY = rf"(?:^|[{{,])[ \t\[]*(?:{_PART}){{{_MOST_PARTS}}}"
_CONSENT = Group(
    "consent",
    "permissions that FILE can't give, since it may come from somebody else; they apply to all "
    "models",
)


class Sweep(Command):
    called = "sweep"
    summary = "measure the models, texts and protocols that a file lists"
    about = (
        "Measures every model of a TOML file under each of its texts and protocols "
        "(docs/sweep.md): the base runs once, each model's weights are loaded once, and all are "
        "ranked. Rerun the same command to resume, or to run what is new. Exit code 1: a run "
        "failed, all others finished; 4: a gate was not met."
    )
    examples = (
        "scoremode sweep sweep.toml --dry-run",
        "scoremode sweep sweep.toml -o results",
    )
    file: Flag[str | Path, Path] = Flag("the sweep, as TOML", "FILE", read=Path, positional=True)
    output: PathName = Flag(
        "write everything to DIR (default: the folder that FILE names, inside its own)",
        "DIR",
        read=Path,
        spelled="--output-path",
        also=("-o",),
    )
    trust_remote_code: Switch = Engine.trust_remote_code.but(
        help="run code that comes with the models", group=_CONSENT
    )
    engine_arg: Flag[Sequence[str] | None, list[str]] = Engine.engine_arg.but(
        help="pass a keyword to vllm.LLM, as with scoremode kld; some keywords import code",
        group=_CONSENT,
    )
    dry_run = Switch(
        "list runs to do and runs done, with sources, bytes and time, without running anything",
        switch=True,
    )
    form = Form("the manifest and the rankings")
    quiet: Switch = Quiet.quiet.but(group=None)

    def run(self, session: Session) -> int:
        consent = {"trust_remote_code": self.trust_remote_code, "engine_arg": self.engine_arg}
        specs = [Kld.of(**given) for given in read_sweep_file(self.file, consent, self.output)]
        pairs = requests_of(specs, session)
        request = sweep_of(specs[0], pairs, session)
        if self.dry_run:
            return print_foreseen(request, session, self.form, quiet=self.quiet)
        outcome = swept(request, session, quiet=self.quiet)
        return print_outcome(outcome, pairs[0].gates, session, self.form, quiet=self.quiet)


def requests_of(specs: Sequence[Kld], session: Session) -> "list[Request]":
    """The request of each spec; where the session has no command line, its own is in the records."""
    requests = []
    for spec in specs:
        own = copy(session)
        own.command = session.command or ("scoremode", *spec.words())
        requests.append(spec.request(own))
    return requests


def read_sweep_file(
    file: Path, consent: Mapping[str, Any] | None = None, output: Path | None = None
) -> list[dict[str, Any]]:
    """The keywords of `Kld` for each text and protocol of a TOML file, whose paths are relative to it.

    - `consent`: flags that only a command line may give, for all of them.
    - `output`: the folder that all goes to, instead of the file's own choice.

    Raises UsageError, naming what is wrong.
    """
    spec = _spec(file)
    try:
        place = _output(spec.pop("output", file.stem), file) if output is None else str(output)
        return definitions({**spec, "output": place}, file.parent, consent)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    # Nested too deep to be told, or a number of too many digits.
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{file}: {words_of(error, named=False)}") from None


def _spec(file: Path) -> dict[str, Any]:
    """A TOML file's content. Raises UsageError."""
    import tomllib

    from scoremode.lib.files import read_regular

    try:
        text = read_regular(file, _MOST_BYTES).decode()
        if found := re.search(_LONG_KEY, text, re.MULTILINE):
            line = text.count("\n", 0, found.start()) + 1
            raise UsageError(f"{file}, line {line}: its key has more than {_MOST_PARTS} parts")
        return tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{file}: not readable: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: is not TOML: {words_of(error, named=False)}") from None


def _output(name: Any, file: Path) -> str:
    """The folder that a file itself names. Raises UsageError for one outside the file's folder."""
    if not isinstance(name, str) or "\0" in name:
        raise UsageError(f"its output is {name!r}, no folder's name")
    place = file.parent / name
    is_plain = not Path(name).is_absolute() and ".." not in Path(name).parts
    # A link that came with the file may lead anywhere; Path.resolve raises for one in a circle.
    target, folder = (Path(os.path.realpath(path)) for path in (place, file.parent))
    if not is_plain or not target.is_relative_to(folder):
        raise UsageError(
            f"its output {name!r} is not inside the file's own folder: give -o {name} on the command "
            "line to write there"
        )
    return str(place)


def definitions(
    spec: Mapping[str, Any], folder: Path | None = None, consent: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The keywords of `Kld` for each text under each protocol, or for each of several kept references.

    - `spec`: `base`, `models`, `output`, `texts`, `protocols`, `flags`; a text or protocol is a mapping
      of flags, or a file's or a protocol's name.
    - `folder`: that of the file which `spec` was read from: its paths but `output` are relative to it,
      and it can't give the flags in `consent`. None for what a caller's own program says.

    Raises UsageError.
    """
    if unknown := [key for key in spec if key not in _KEYS]:
        raise UsageError(f"has {unknown[0]}, which is none of {', '.join(_KEYS)}")
    bases, models = _names(spec, "base", folder), _models(spec, folder)
    allowed = {name: flag for name, flag in Kld.flags.items() if flag.in_sweep}
    of = {
        part: {n: f for n, f in allowed.items() if f.part == part} for part in ("text", "protocol")
    }
    texts = [_section("texts", _table(t, "file"), of["text"], folder) for t in _list(spec, "texts")]
    protocols = [
        _section("protocols", _table(p, "protocol"), of["protocol"], folder)
        for p in _list(spec, "protocols")
    ]
    flags = spec.get("flags", {})
    if not isinstance(flags, Mapping):
        raise UsageError("its flags aren't a table")
    # A seed may be that of the windows that are drawn, whatever the text.
    taken = (of["text"].keys() - {"seed"} if texts else set()) | (
        of["protocol"].keys() if protocols else set()
    )
    common = _section("flags", flags, {n: f for n, f in allowed.items() if n not in taken}, folder)
    if len(bases) > 1 and texts:
        raise UsageError("has several bases, each kept with its text, and texts as well")
    for base in bases if len(bases) > 1 else ():
        if not (Path(base) / "record.json").is_file():
            raise UsageError(f"has several bases, of which {base} isn't a kept reference")
    (first, *further), labels = [name for name, _ in models], [label for _, label in models]
    named: dict[str, Any] = {"model": first, "further_models": further}
    if any(label is not None for label in labels):
        named["label"] = labels
    place = str(spec.get("output", "runs"))
    return [
        {
            **named,
            "reference": base,
            "output": place,
            **common,
            **(consent or {}),
            **text,
            **protocol,
        }
        for base in bases
        for text in texts or [{}]
        for protocol in protocols or [{}]
    ]


def _models(spec: Mapping[str, Any], folder: Path | None) -> list[tuple[str, str | None]]:
    """Models and their labels: of `{model = NAME, label = TEXT}`, and of a name alone without one."""
    value = spec.get("models")
    entries = value if isinstance(value, list | tuple) else [value]
    tables = [e if isinstance(e, Mapping) else {"model": e} for e in entries]
    for table in tables:
        if unknown := [key for key in table if key not in ("model", "label")]:
            raise UsageError(f"its models have {unknown[0]}, which is neither model nor label")
        if not isinstance(table.get("label"), str | None):
            raise UsageError(f"its models have label = {table['label']!r}, which is no text")
    names = _names({"models": [table.get("model") for table in tables]}, "models", folder)
    return [(name, table.get("label")) for name, table in zip(names, tables, strict=True)]


def _names(spec: Mapping[str, Any], key: str, folder: Path | None) -> list[str]:
    """Models, as they are found from `folder`; what isn't there is the hub's."""
    value = spec.get(key)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names or not all(isinstance(n, str) for n in names):
        raise UsageError(f"has no {key}: a model's name, or a list of names")
    for name in names:
        if not name or name.startswith("-") or "\0" in name:
            raise UsageError(f"its {key} has {name!r}, which isn't a model's name")
    return [_found(name, folder) for name in names]


def _found(name: str, folder: Path | None) -> str:
    if folder is None:
        return name
    place = _no_flag(str(folder / name))
    if os.path.exists(place):  # noqa: PTH110
        return place
    if any(c in name for c in "*?[") and ":" not in name:
        import glob

        # The folder's own name is no pattern.
        return _no_flag(str(Path(glob.escape(str(folder))) / name))
    return place if name.startswith(("./", "../", "~")) else name


def _no_flag(path: str) -> str:
    """A path that no parser takes for a flag: `./--trust-remote-code` loses its beginning as a Path."""
    return f"./{path}" if path.startswith("-") else path


def _list(spec: Mapping[str, Any], key: str) -> list[Any]:
    value = spec.get(key, [])
    if isinstance(value, str | Mapping):
        return [value]
    if not isinstance(value, Sequence):
        raise UsageError(f"its {key} aren't a list")
    return list(value)


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {name: str(value) if isinstance(value, Path) else value}


def _section(
    section: str,
    values: Mapping[str, Any],
    allowed: Mapping[str, Flag[Any, Any]],
    folder: Path | None,
) -> dict[str, Any]:
    """A table's flags and their values. Raises UsageError for a key that is none, or not here."""
    result = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        flag = Kld.flags.get(name)
        if folder is not None and flag is not None and flag.consent:
            raise UsageError(
                f"its {section} have {key}, and consent to run code comes from the command line "
                f"alone: scoremode sweep FILE {flag.spelled}"
                + f" {flag.metavar}"
                * (not flag.switch)
            )
        if flag is None or name not in allowed:
            raise UsageError(f"its {section} have {key}, which isn't a flag of a sweep's {section}")
        if flag.path and folder is not None:
            value = _relative(flag, value, folder)
        _check(section, flag, value)
        result[name] = value
    return result


def _relative(flag: Flag[Any, Any], value: Any, folder: Path) -> Any:
    if isinstance(value, list):
        return [_relative(flag, each, folder) for each in value]
    if not isinstance(value, str) or value == "-":
        return value
    return _found(value, folder) if flag.path == "file or hub" else str(folder / value)


def _check(section: str, flag: Flag[Any, Any], value: Any) -> None:
    """Raises UsageError for a value of a type that no flag takes."""
    import datetime

    if isinstance(value, list | tuple):
        for each in value:
            _check(section, flag, each)
    elif not (
        value is None
        or (isinstance(value, str | int | float | Path | datetime.date) and "\0" not in str(value))
        or (isinstance(value, Mapping) and flag.read is object_of)
    ):
        raise UsageError(f"its {section} have {flag.spelled[2:]} = {value!r}, which no flag takes")


def sweep_of(spec: Kld, pairs: "Sequence[Request]", session: Session) -> "SweepRequest":
    """The sweep of the models that the flags name. Raises UsageError."""
    from scoremode.runs.sweep.manifest import SweepRequest

    if spec.llama_cpp_block:
        raise UsageError(
            "--llama-cpp-block: takes one MODEL; scoremode show prints it for each run"
        )
    if spec.shard is not None:
        raise UsageError(
            f"--shard {spec.shard}: is of one model's run: give one MODEL, or each machine models of "
            "its own"
        )
    if session.ranks is not None:
        raise UsageError("--devices: several models take turns in one process: give one MODEL")
    models = (model_of(spec), *spec.further_models)
    labels = _labels(models, spec.label or [])
    return SweepRequest(models, tuple(pairs), pairs[0].output, session.command, labels)


def _labels(models: Sequence[str], labels: Sequence[str | None]) -> dict[str, str]:
    """The labels of those models that have one. Raises UsageError for another number of them than of
    models, and for a label of several models or of a finished run."""
    if labels and len(labels) != len(models):
        raise UsageError(
            f"--label {next(filter(None, labels))}: {len(labels)} labels for {len(models)} models: "
            "give one for each, in their order"
        )
    from scoremode.checkpoint.model_files import models_in

    found = {name: text for name, text in zip(models, labels, strict=False) if text is not None}
    for name, text in found.items():
        is_here = os.path.exists(name)  # noqa: PTH110  Path.exists raises for a name too long
        if len(models_in(Path(name))) > 1 if is_here else any(c in name for c in "*?["):
            raise UsageError(f"--label {text}: {name} stands for several models")
        if os.path.exists(os.path.join(name, "record.json")):  # noqa: PTH110, PTH118
            raise UsageError(f"--label {text}: {name} is a finished run, which has its own label")
    return found


def swept(request: "SweepRequest", session: Session, *, quiet: bool) -> "Outcome":
    """`run_sweep`, with progress and a line for every run that ends on stderr."""
    from scoremode.runs.sweep.sweep import run_sweep

    outcome = run_sweep(
        request,
        tell=partial(_tell, session, quiet),
        progress=session.screen.progress,
        notify=session.screen.line,
        stage=session.screen.stage,
    )
    session.screen.clear()
    return outcome


def _tell(session: Session, quiet: bool, ended: "Ended") -> None:
    entry = ended.entry
    # What went wrong with a model is told by the name that it was given by.
    name = entry["model"] if ended.result is None else ended.label
    name += f" ({ended.under})" * bool(ended.under)
    if entry["status"] == "left out":
        line = f"{name}: left out: is a finished run of another text or protocol"
    elif ended.result is None:
        assert entry["error"] is not None
        # An error of a folder begins with the folder's name, which is said already.
        line = f"{name}: error: {entry['error'].removeprefix(entry['model'] + ': ')}"
        if quiet:
            print(f"scoremode: {escaped(line)}", file=sys.stderr)
    else:
        line = f"{name}: {_numbers(ended.result.whole)}"
    session.screen.line(f"{line} ({ended.number} of {ended.count})")


def _numbers(record: "Done") -> str:
    kld, ratio = record.metrics["kld"], record.metrics["ppl_ratio"]
    spread = f" ± {(kld.ci95[1] - kld.ci95[0]) / 2:.2g}" if kld.ci95 else ""
    return f"KLD {kld.value:.4g}{spread} nats, PPL / base ×{ratio.value:.5f}"


def print_outcome(
    outcome: "Outcome",
    gates: "Gates | None",
    session: Session,
    form: str,
    *,
    quiet: bool,
    margin: float | None = None,
    junit: Path | None = None,
) -> int:
    """Prints the ranking of each text and protocol, in the form that was asked for; returns the exit
    code: 1 where an entry failed, 4 where one missed a gate. `margin`: of the verdicts; `junit`: the
    file for the gates."""
    from scoremode.results.comparison.ranking import ranking

    found: list[dict[str, Any] | None] = []
    failed = outcome.failed
    judged = [gates.judge(r.whole) if gates and r else [] for r in outcome.results]
    of_pairs: list[list[tuple[str, Gate]]] = [[] for _ in outcome.manifest["pairs"]]
    for entry, label, own in zip(outcome.manifest["entries"], outcome.labels, judged, strict=True):
        of_pairs[entry["pair"]] += [(label, gate) for gate in own]
    for pair in range(len(of_pairs)):
        # A run may have been given beside its model.
        folders = {
            result.folder.resolve(): result.folder
            for entry, result in zip(outcome.manifest["entries"], outcome.results, strict=True)
            if entry["pair"] == pair and result is not None
        }
        try:
            found.append(ranking([*folders.values()], margin=margin) if folders else None)
        except ScoremodeError as error:
            failed += 1
            found.append(None)
            print(f"scoremode: {line_of(error)}", file=sys.stderr)
    session.screen.clear()
    if form == "json":
        from scoremode.lib.json import json_text

        if gates:
            found = [
                value and value | {"gates": [{"label": of} | gate.to_json() for of, gate in own]}
                for value, own in zip(found, of_pairs, strict=True)
            ]
        value = {"sweep": outcome.manifest, "comparisons": found}
        # ASCII: a model's name may hold what does something to a terminal.
        sys.stdout.write(json_text(value, ascii_only=True).rstrip("\n") + "\n")
    elif not quiet:
        shown = [(v, own) for v, own in zip(found, of_pairs, strict=True) if v]
        _print_tables(shown, form)
        if shown and form == "table":
            import shlex

            folder = shlex.quote(str(outcome.folder))
            print(f"\nmore      scoremode report {folder} -o report.html")
    code = _gates_code(outcome, judged)
    if junit is not None:
        from scoremode.report.junit import Case, gate_cases, write_junit

        cases: list[Case] = []
        entries = zip(outcome.manifest["entries"], outcome.labels, judged, strict=True)
        for entry, label, own in entries:
            if entry["error"] is not None:
                cases.append(Case(entry["model"], "measured", entry["error"], "error"))
            cases += gate_cases(own, label)
        write_junit(junit, "scoremode kld", cases)
    if failed:
        words = f"{failed} of {len(outcome.results)} runs failed, as said above"
        others = f"; {outcome.folder} has the others" * any(outcome.results)
        print(f"scoremode: error: {words}{others}", file=sys.stderr)
        return ScoremodeError.exit_code
    return code


def _print_tables(
    found: "Sequence[tuple[dict[str, Any], Sequence[tuple[str, Gate]]]]", form: str
) -> None:
    """Prints the rankings with their gates, one below the other; as CSV the rankings in one table."""
    from scoremode.report.compare import compare_document, rankings_table
    from scoremode.report.rendering import table_csv

    if form == "csv" and len(found) > 1:
        sys.stdout.write(table_csv(rankings_table([value for value, _ in found])))
    else:
        sys.stdout.write("\n".join(rendered(compare_document(*each), form) for each in found))


def _gates_code(outcome: "Outcome", judged: "Sequence[Sequence[Gate]]") -> int:
    gates: list[Gate] = []
    names: list[str] = []
    pairs = outcome.manifest["pairs"]
    for entry, label, own in zip(outcome.manifest["entries"], outcome.labels, judged, strict=True):
        pair = pairs[entry["pair"]]
        under = f" ({pair['corpus']}, {pair['protocol']})" * (len(pairs) > 1)
        gates += own
        names += [label + under] * len(own)
    return exit_code_of(gates, names)


def print_foreseen(request: "SweepRequest", session: Session, form: str, *, quiet: bool) -> int:
    """Prints what a sweep would do."""
    from scoremode.report.runs import foreseen_document
    from scoremode.runs.sweep.dry_run import foresee

    session.screen.stage("looking for finished runs")
    value = foresee(request)
    print_result(session, value, foreseen_document, form, quiet=quiet)
    return 0

"""`scoremode card`: the results of runs for a model card, with the commands that measure them again.

A command is made of what a run's record says. Model, base, text and protocol are the record's values;
what tunes the engine is what its own command line had, or where that names none of it, as a sweep's,
what the engine says of itself. A file of the measuring machine is called by the last part of its path,
such as `wiki.test.raw`.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, Measurement
from scoremode.cli.measure import Kld
from scoremode.cli.screen import Session
from scoremode.errors import ScoremodeError, UsageError
from scoremode.spec.flag import Flag, Name, PathName, Switch
from scoremode.spec.run import Margin, Runs

if TYPE_CHECKING:
    from msgspec import UnsetType

    from scoremode.report.card.content import Group
    from scoremode.results.folders.finished import FinishedRun
    from scoremode.results.record.definition import Done
    from scoremode.results.record.model import Checkpoint
    from scoremode.results.record.text import Calibration, Conversations, Corpus

__all__ = ["Card", "card", "groups_of", "joined", "reproduction"]

_SINGLE_RUNS = (["ppl"], ["kld"], ["reference"])
_USUAL_TEXT = "wikitext wikitext-2-raw-v1 test"
# Flags by their names; what is None is left away.
_Given = dict[str, Any]


class Card(Runs, Margin, Command):
    called = "card"
    summary = "make Markdown and the hub's metadata for a model card"
    about = (
        "Prints the block of Markdown that goes into a model card: the runs ranked, their base, "
        "the protocol, and the command that repeats them; one table per plan. Reads records and "
        "scores only."
    )
    examples = (
        "scoremode card runs",
        "scoremode card runs --write DIR --repo org/model-GGUF",
        "scoremode card runs --push org/model-GGUF",
    )
    write: PathName = Flag(
        "write it to DIR/README.md, replacing an earlier block, with the hub's model-index in its "
        "front matter, and .eval_results/*.yaml beside it",
        "DIR",
        read=Path,
    )
    repo: Name = Flag(
        "with --write: name the hub model that DIR belongs to, to write the runs' records "
        "too, and to link results to them",
        "REPO",
    )
    push: Name = Flag(
        "show what would change in the model REPO on the hub, ask, and open a pull request", "REPO"
    )
    yes: Switch = Flag("with --push: don't ask", switch=True)

    def run(self, session: Session) -> int:
        self._check()
        session.screen.stage("reading the runs")
        from scoremode.results.folders.paths import run_folders

        groups = groups_of(run_folders(self.runs, session.screen.line), self.margin)
        session.screen.clear()
        if self.push is not None:
            return self._push(self.push, groups, session)
        if self.write is None:
            sys.stdout.write(_block(groups))
        else:
            self._write(self.write, groups, session)
        return 0

    def _check(self) -> None:
        if self.push is not None and self.write is not None:
            raise UsageError("--push and --write: give one of them")
        if self.repo is not None and self.write is None:
            raise UsageError(f"--repo {self.repo}: needs --write DIR")
        if self.yes and self.push is None:
            raise UsageError("--yes: needs --push REPO")
        if self.push is not None and not self.yes and not sys.stdin.isatty():
            raise UsageError(f"--push {self.push}: there is no terminal to ask on: give --yes")
        for repo in filter(None, (self.push, self.repo)):
            from scoremode.lib.hub import check_repo

            check_repo(repo)

    def _write(self, folder: Path, groups: "Sequence[Group]", session: Session) -> None:
        from scoremode.report.card.repository import README, card_files, read_readme, write_files

        model = self.repo.rpartition("/")[2] if self.repo else folder.resolve().name
        files = card_files(
            groups,
            read_readme(folder),
            name=str(folder / README),
            model=model,
            address_of=_addresses(self.repo),
        )
        write_files(folder, files)
        for path in files:
            session.screen.line(f"wrote {folder / path}")
        _tell_left_out(session, files)

    def _push(self, repo: str, groups: "Sequence[Group]", session: Session) -> int:
        from scoremode.report.card.repository import (
            README,
            card_files,
            changes,
            open_request,
            remote_readme,
        )

        session.screen.stage(f"reading {repo} on the hub")
        readme, commit = remote_readme(repo)
        files = card_files(
            groups,
            readme,
            name=f"{repo}'s {README}",
            model=repo.rpartition("/")[2],
            address_of=_addresses(repo),
        )
        session.screen.clear()
        print(changes(files, readme))
        _tell_left_out(session, files)
        if not self.yes:
            session.screen.line(
                "a record has the command line and the paths of the machine that measured"
            )
            if not session.agrees(f"Open a pull request with these {len(files)} files on {repo}?"):
                return 1
        session.screen.stage(f"opening a pull request on {repo}")
        url = open_request(
            repo, files, commit, "Perplexity and KL divergence, measured with scoremode"
        )
        session.screen.clear()
        print(url)
        return 0


def card(folders: Sequence[Path]) -> str:
    """The block for the finished runs in `folders`. Raises UsageError, RunFolderError."""
    return _block(groups_of(folders))


def groups_of(folders: Sequence[Path], margin: float | None = None) -> "list[Group]":
    """The runs by plan and base, each group ranked, in the order in which they were named; `margin`:
    of the verdicts."""
    from scoremode.report.card.content import Group
    from scoremode.results.comparison.ranking import check_folders, ranked
    from scoremode.results.folders.finished import open_run

    check_folders(folders)
    runs = [open_run(folder) for folder in folders]
    for run in runs:
        if run.record.protocol.text == "requests":
            raise UsageError(
                f"{run.folder}: answers tasks, and a card has perplexity and divergence of texts: "
                "scoremode show RUN --format markdown gives its table"
            )
    groups = []
    for members in _grouped(runs):
        value = ranked(members, margin=margin)
        by_folder = {str(run.folder): run.record for run in members}
        records = [by_folder[row["folder"]] for row in value["runs"]]
        group = Group(value, records, ())
        commands = joined([reproduction(record) for _, record in group.published])
        groups.append(replace(group, commands=commands))
    return groups


def _grouped(runs: "Sequence[FinishedRun]") -> "list[list[FinishedRun]]":
    """Runs that may stand in one table: of a plan, a softmax, and one base. A run without a base goes
    to the first of its plan's tables."""
    found: dict[tuple[object, ...], dict[object, list[FinishedRun]]] = {}
    for run in runs:
        record = run.record
        plan = record.plan.sha256, record.engine.vocabulary, run.targets_sha256
        base = record.reference.sha256 if record.reference and run.kld is not None else None
        found.setdefault(plan, {}).setdefault(base, []).append(run)
    groups = []
    for bases in found.values():
        alone = bases.pop(None, [])
        tables = list(bases.values()) or [[]]
        tables[0] = [*tables[0], *alone]
        groups += tables
    return groups


def _block(groups: "Sequence[Group]") -> str:
    from scoremode.report.card.content import card_block

    return card_block(groups)


def _addresses(repo: str | None) -> Callable[[str], str] | None:
    from scoremode.report.card.repository import address

    return None if repo is None else partial(address, repo)


def _tell_left_out(session: Session, files: dict[str, str]) -> None:
    if not any(path.startswith(".eval_results/") for path in files):
        session.screen.line(
            "no .eval_results: the text is no data set on the hub, and these need its id"
        )


def reproduction(record: "Done") -> list[str]:
    """The words of the command, without folders: its run goes to where runs go."""
    recorded = _recorded(record)
    is_served = record.engine.device.type == "server"
    # Of a served model the config and the tokenizer are all that the command needs.
    own = record.tokenizer.source if is_served else _own_source(record.checkpoint)
    name, revision = _model(own)
    reference = record.reference
    given: _Given = {"revision": revision}
    if reference:
        source = reference.checkpoint.source if reference.checkpoint else reference.source
        given["reference"], given["reference_revision"] = _model(source)
        if reference.kind == "stored" and reference.source.startswith(("hub:", "https://")):
            given["reference"], given["reference_revision"] = reference.source, None
    given |= _mixture(record.checkpoint) | ({} if is_served else _tokenizer(record))
    given |= _protocol(record.protocol.name)
    given |= _text(record.corpus, recorded) | _calibration(record.calibration)
    given |= _measured_by(record) if recorded is None else _tuning(recorded)
    if is_served:
        # Where it ran is nobody else's to ask.
        given["base_url"] = "http://HOST:PORT/v1"
    return ["scoremode", "kld" if reference else "ppl", name, *_words(given)]


def joined(commands: Sequence[Sequence[str]]) -> list[list[str]]:
    """Commands that differ in nothing but their model as one, where the command takes several."""
    alike = {(*command[:2], *command[3:]) for command in commands}
    if len(alike) > 1 or len(commands) < 2 or commands[0][1] != Kld.called:
        return [list(command) for command in commands]
    first = commands[0]
    return [[*first[:2], *(command[2] for command in commands), *first[3:]]]


def _words(given: _Given) -> list[str]:
    """Flags as a user would type them."""
    words: list[str] = []
    for name, value in given.items():
        # A list only where a flag is given several times.
        for each in value if isinstance(value, list) else [value]:
            flag = "-f" if name == "file" else Kld.flags[name].spelled
            if each is None:
                continue
            if isinstance(each, bool):
                words.append(flag if each else f"--no-{flag[2:]}")
            elif name == "text" or str(each).startswith("-"):
                words.append(f"{flag}={each}")
            else:
                words += [flag, str(each)]
    return words


def _model(source: str) -> tuple[str, str | None]:
    """A model by a name that means the same elsewhere, and its revision on the hub."""
    from scoremode.lib.hub import on_hub

    if found := on_hub(source):
        return found[0], found[1] or None
    return _last(source), None


def _own_source(checkpoint: "Checkpoint") -> str:
    """The model's source, of a mixture without what it takes from others."""
    return (checkpoint.mixture or checkpoint).source


def _mixture(checkpoint: "Checkpoint") -> _Given:
    taken = checkpoint.mixture.taken if checkpoint.mixture else []
    swaps = [f"{take.pattern}={_model(take.source)[0]}" for take in taken if not take.is_base]
    return {"keep_dense": [take.pattern for take in taken if take.is_base], "swap": swaps}


def _last(path: str) -> str:
    name = Path(path).name or path
    # Not a flag.
    return f"./{name}" if name.startswith("-") else name


def _tokenizer(record: "Done") -> _Given:
    """The tokenizer where it is not the model's own."""
    source, own = record.tokenizer.source, _own_source(record.checkpoint)
    name, of = _model(source)
    if source in (own, record.checkpoint.path) or (name, of) == _model(own):
        return {}
    return {"tokenizer": name}


def _protocol(protocol: str) -> _Given:
    """The preset, and the flags that its name says were changed."""
    name, *changes = protocol.split("+")
    # What is scored without the flag: conversations by `chat`.
    given: _Given = {"protocol": None if name in ("score-mode", "chat") else name}
    for change in changes:
        field, _, value = change.partition("=")
        field = {"max-windows": "limit", "scored": "score"}.get(field, field)
        given[field.replace("-", "_")] = value
    return given


def _text(corpus: "Corpus", recorded: Measurement | None) -> _Given:
    """The text: by its own name, by that on the hub, or by its file's."""
    from msgspec import UNSET

    from scoremode.lib.hub import on_hub
    from scoremode.text.presets import TEXTS

    source, name, chats = corpus.source or "", corpus.name, corpus.conversations
    given: _Given = {}
    named = TEXTS.get(corpus.preset or "")
    if named is not None:
        given["preset"] = named.name
        if on_hub(source):
            revision = _model(source)[1]
            given["dataset_revision"] = revision if revision != named.revision else None
        else:
            given["dataset_file"] = _last(source)
    elif on_hub(source):
        if name != _USUAL_TEXT:
            repo, revision = _model(source)
            dataset, *parts = name.split(" ")
            given["conversations" if chats else "dataset"] = dataset or repo
            given["dataset_config"] = parts[0] if len(parts) > 1 else None
            given["split"] = parts[-1] if parts and parts[-1] != "test" else None
            given["dataset_revision"] = revision
    elif source == "argument":
        if recorded is not None and recorded.text is not None:
            given["text"] = recorded.text
        else:
            given["file"] = "TEXT"
    elif chats:
        given["conversations"] = _last(source)
    elif corpus.rows is not None:
        given["dataset_file"] = _last(source)
    else:
        files = [file.source for file in corpus.files or ()]
        given["file"] = [_last(file) for file in files or [source or name]]
    if chats:
        given |= _chats(chats)
    elif named is None and corpus.rows is not None:
        # The first records have it in their command line alone.
        field = corpus.text_field or (recorded.text_field if recorded else None)
        given["text_field"] = field if field != "text" else None
    group_by = corpus.group_by or None
    if named is None or group_by != named.group_by:
        given["group_by"] = group_by
    given["num_samples"] = corpus.row_limit
    # Else the protocol's own may be one that draws windows.
    return given if corpus.row_seed is UNSET else given | {"seed": corpus.row_seed}


def _calibration(found: "Calibration | UnsetType") -> _Given:
    """The text that was looked for in the scored one."""
    from scoremode.lib.hub import on_hub

    if not found:
        return {}
    source = found.source
    field = {"calibration_field": found.text_field if found.text_field != "text" else None}
    if not on_hub(source):
        return {"calibration": _last(source)} | field
    repo, revision = _model(source)
    dataset, *parts = found.name.split(" ")
    return {
        "calibration": dataset or repo,
        **field,
        "calibration_config": parts[0] if len(parts) > 1 else None,
        "calibration_split": parts[-1] if parts and parts[-1] != "train" else None,
        "calibration_revision": revision,
    }


def _chats(chats: "Conversations") -> _Given:
    """Conversations, by what their section says."""
    skipped: _Given = {"skip_bad_rows": chats.bad_rows or None}
    if (template := chats.template) is None:
        return skipped
    import json

    arguments = template.arguments
    return {
        "chat_template": _last(template.source) if template.given else None,
        "chat_template_kwargs": json.dumps(arguments) if arguments else None,
        "chat_date": template.date,
        **skipped,
    }


def _recorded(record: "Done") -> Measurement | None:
    """The spec of the record's own command, None where it isn't a single run's."""
    from scoremode.cli.main import parsed_command
    from scoremode.results.record.sections import command_of

    words = command_of(record)
    if words[1:2] not in _SINGLE_RUNS:
        return None
    try:
        spec = parsed_command(words[1:])
    except (ScoremodeError, SystemExit):
        # Another release's, or one that is cut.
        return None
    assert isinstance(spec, Measurement)
    return spec


def _measured_by(record: "Done") -> _Given:
    """The engine's flags by what the record says of it, where no command line has them: a sweep's are
    in its file."""
    from scoremode.engines.kv_formats import AS_DECLARED, is_declared
    from scoremode.results.record.model import HttpEngine, VllmEngine

    engine = record.engine
    sure = record.thresholds.confident if record.thresholds else 0.9
    given: _Given = {
        "full": True if "jsd" in record.metrics else None,
        "draft": (record.identity and record.identity.draft) or None,
        "confident": sure if sure != 0.9 else None,
    }
    if isinstance(engine, HttpEngine):
        return given | {"engine": "http", "top_logprobs": engine.top}
    if isinstance(engine, VllmEngine):
        given["engine"] = "vllm"
        for name in ("tensor_parallel_size", "pipeline_parallel_size"):
            given[name] = size if (size := getattr(engine, name)) != 1 else None
    else:
        cache = engine.kv_cache_dtype if engine.arithmetic != "llama.cpp" else None
        given["arithmetic"] = engine.arithmetic
        given["batch_size"] = engine.batch_windows
        given["kv_cache"] = AS_DECLARED if cache and is_declared(cache) else cache
    return given | {"dtype": engine.dtype}


def _tuning(recorded: Measurement) -> _Given:
    """The flags of the run's own command that change how scores are computed."""
    return {
        name: value
        for name, flag in sorted(recorded.flags.items())
        if flag.moves_score and (value := getattr(recorded, name)) != flag.default
    }

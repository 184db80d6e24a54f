"""A sweep's request, and its manifest, `sweep.json`: what is done of it and what is still to do.

The manifest is written whole at every step, and believed only where it is sealed.
"""

import fcntl
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from scoremode.errors import RunFolderError
from scoremode.lib.files import take, write_text
from scoremode.lib.json import json_text
from scoremode.results.folders.paths import MANIFEST
from scoremode.results.folders.store import RECORD, manifest_in, seal_of
from scoremode.results.labels import Named, labels_of, model_of
from scoremode.results.record.checks import checked_record
from scoremode.results.record.section import Section
from scoremode.results.record.sections import now
from scoremode.runs.request import Request, Result

SCHEMA = "scoremode.sweep"
SCHEMA_VERSION = 1

Status = Literal["waiting", "running", "done", "failed", "left out"]


class Pair(TypedDict):
    """A text under a protocol.

    - `corpus`: the text's name; `protocol`: the protocol's; `protocol_sha256`: of all its rules.
    - `reference`: the base's folder, relative to the manifest's where it lies in it, or its file of
      logits; None until it is there.
    """

    corpus: str
    protocol: str
    protocol_sha256: str
    reference: str | None


class Entry(TypedDict):
    """A model under one pair.

    - `model`: as the user named it, of a pattern one that it stands for; `pair`: an index of `pairs`.
    - `status`: `waiting`, `running`, `done`, or `failed`, which the next call tries again; `left out`
      of a finished run that is of another pair.
    - `folder`: the run's, relative to the manifest's where it lies in it; None before it is done.
    - `error`: the line that says why it failed, else None.
    - `asked`: sha256 of model, plan, base and options, by which the next call finds the run; None
      before it is done, and where a finished run was given as the model.
    """

    model: str
    pair: int
    status: Status
    folder: str | None
    error: str | None
    asked: str | None


class Manifest(TypedDict):
    """A sweep, as its last call wanted it.

    - `created`: when the first call began; `updated`: when this was written; both ISO 8601, UTC.
    - `command`: the last call's.
    - `base`: as the user named it; `revision`: of a base on the hub, or None.
    - `models`: as the user named them, patterns included; `labels`: of those that the user calls
      something.
    - `entries`: every model under every pair, in the order in which they run.
    - `sha256`: of all the rest.
    """

    schema: str
    schema_version: int
    created: str
    updated: str
    command: list[str]
    base: str
    revision: str | None
    models: list[str]
    labels: NotRequired[dict[str, str]]
    pairs: list[Pair]
    entries: list[Entry]
    sha256: str


@contextmanager
def held(folder: Path, what: str = "sweep") -> Iterator[None]:
    """Makes the folder of a sweep, or of `what`, and holds it: raises RunFolderError while another one
    writes into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be a {what}'s folder: {error.strerror}") from None
    try:
        try:
            take(descriptor)
        except BlockingIOError:
            raise RunFolderError(f"{folder}: another {what} is writing into it") from None
        yield
    finally:
        os.close(descriptor)


class _Header(Section, frozen=True, kw_only=True):
    """The fields of a manifest that are read before its entries."""

    schema: str
    schema_version: int
    entries: list[Any]
    sha256: str


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of the sweep in `folder`, None where there is none.

    Raises RunFolderError for what is no manifest, or not as it was written.
    """
    file = folder / MANIFEST
    found = manifest_in(file, "sweep", SCHEMA, SCHEMA_VERSION, _Header)
    if found is None:
        return None
    if seal_of(found) != found["sha256"] or not all(map(_is_entry, found["entries"])):
        raise RunFolderError(
            f"{file}: was changed after it was written: remove it, and the runs in {folder} are found "
            "by themselves"
        )
    return cast(Manifest, found)


def unfinished(folder: Path) -> list[dict[str, Any]] | None:
    """The models of a sweep that have no run to look at, as `status` tells of runs; None without sweep.

    Each with `folder`, the sweep's, `state` (`waiting` or `failed`), `label`, `model`, `reference`,
    `protocol`, `text`, and the `problem`: of one that waits, that nobody works on the sweep, and then
    the command to `resume` it by. Raises RunFolderError as `read_manifest` does.
    """
    if (manifest := read_manifest(folder)) is None:
        return None
    left, resume = None, None
    if not _is_held(folder):
        left, resume = "was ended with models left", shlex.join(manifest["command"]) or None
    found, labels = [], manifest.get("labels", {})
    for entry in manifest["entries"]:
        if entry["status"] in ("waiting", "failed"):
            pair = manifest["pairs"][entry["pair"]]
            found.append(
                {
                    "folder": str(folder),
                    "state": entry["status"],
                    "label": Named.typed(entry["model"], labels.get(entry["model"], "")).name,
                    "model": entry["model"],
                    "reference": manifest["base"],
                    "protocol": pair["protocol"],
                    "text": pair["corpus"],
                    "problem": entry["error"] or left,
                    "resume": None if entry["error"] else resume,
                }
            )
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it sealed, whole or not at all. Raises RunFolderError."""
    manifest["sha256"] = seal_of(cast(dict[str, Any], manifest))
    write_text(folder / MANIFEST, json_text(cast(dict[str, Any], manifest)))


def placed(folder: Path, path: Path) -> str:
    """A path as the manifest in `folder` has it: relative where it lies inside."""
    own, other = folder.resolve(), path.resolve()
    return str(other.relative_to(own)) if other.is_relative_to(own) else str(other)


def _is_held(folder: Path) -> bool:
    """Tells whether a sweep writes into `folder`; one that begins meanwhile is not turned away."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() == Entry.__annotations__.keys()


@dataclass(frozen=True)
class SweepRequest:
    """Models to be measured against one base.

    - `models`: as the user named them: models, patterns, finished runs' folders.
    - `pairs`: a request for each text and protocol, whose model is put in; the `reference` of each is
      the base, a kept reference or a file of logits.
    - `output`: the folder that all goes to.
    - `labels`: of models that the user calls something.
    """

    models: tuple[str, ...]
    pairs: tuple[Request, ...]
    output: Path
    command: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ended:
    """One entry that has ended: with its run, with the error that it names, or left out.

    - `label`: what its model is called beside the others.
    - `under`: its text and protocol, where there are several.
    """

    entry: Entry
    label: str
    under: str
    number: int
    count: int
    result: Result | None


@dataclass(frozen=True)
class Outcome:
    """The result of a sweep: its manifest, what the models of its entries are called, and their runs,
    None where there is none."""

    folder: Path
    manifest: Manifest
    labels: list[str]
    results: list[Result | None]

    @property
    def failed(self) -> int:
        return sum(entry["status"] == "failed" for entry in self.manifest["entries"])


Tell = Callable[[Ended], None]


class Board:
    """The entries of a sweep, model by model, and what became of each; `tell` gets those that end."""

    def __init__(self, request: SweepRequest, models: Sequence[str], tell: Tell):
        self._folder, self._tell = request.output, tell
        earlier = read_manifest(request.output)
        self._earlier = [] if earlier is None else earlier["entries"]
        self.models, self._pairs = list(models), len(request.pairs)
        self.labels = labels_in(request, models)
        self._under = titles(request.pairs)
        self._results: dict[int, Result | None] = {}
        first = request.pairs[0]
        self.manifest: Manifest = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "created": now() if earlier is None else earlier["created"],
            "updated": now(),
            "command": list(request.command),
            "base": str(first.reference),
            "revision": first.reference_revision,
            "models": list(request.models),
            "labels": dict(request.labels),
            "pairs": [_pair(pair) for pair in request.pairs],
            "entries": [_entry(m, p) for m in models for p in range(len(request.pairs))],
            "sha256": "",
        }

    def write(self) -> None:
        self.manifest["updated"] = now()
        write_manifest(self._folder, self.manifest)

    def reference(self, pair: int, path: Path) -> None:
        """Notes where the base of a pair is."""
        self.manifest["pairs"][pair]["reference"] = placed(self._folder, path)
        self.write()

    def earlier(self, asked: str) -> Path | None:
        """The folder of the run that an earlier call made of the same, if it is there."""
        for entry in self._earlier:
            if (
                entry["asked"] == asked
                and entry["status"] == "done"
                and entry["folder"] is not None
            ):
                return self._folder / entry["folder"]
        return None

    def begin(self, model: int, pair: int) -> None:
        self._entry(model, pair)["status"] = "running"
        self.write()

    def done(self, model: int, pair: int, result: Result, asked: str | None = None) -> None:
        folder = placed(self._folder, result.folder)
        self._end(model, pair, result, {"status": "done", "folder": folder, "asked": asked})

    def failed(self, model: int, pair: int, line: str) -> None:
        self._end(model, pair, None, {"status": "failed", "error": line})

    def leave_out(self, model: int, pair: int) -> None:
        """Notes that a finished run is of another pair."""
        self._end(model, pair, None, {"status": "left out"})

    def outcome(self) -> Outcome:
        labels = [label for label in self.labels for _ in range(self._pairs)]
        results = [self._results[i] for i in range(len(labels))]
        return Outcome(self._folder, self.manifest, labels, results)

    def _entry(self, model: int, pair: int) -> Entry:
        return self.manifest["entries"][model * self._pairs + pair]

    def _end(
        self, model: int, pair: int, result: Result | None, change: Mapping[str, str | None]
    ) -> None:
        entry, index = self._entry(model, pair), model * self._pairs + pair
        if index in self._results:
            return
        entry.update(change)  # pyright: ignore[reportCallIssue, reportArgumentType]
        self._results[index] = result
        self.write()
        under = self._under[pair] if self._pairs > 1 else ""
        count = len(self.manifest["entries"])
        self._tell(Ended(entry, self.labels[model], under, len(self._results), count, result))


def labels_in(request: SweepRequest, models: Sequence[str]) -> list[str]:
    """The labels of a sweep's models beside each other and their base."""
    base = str(request.pairs[0].reference)
    named = [_named(model, request.labels.get(model, "")) for model in models]
    return labels_of(named, _named(base))


def _named(model: str, label: str = "") -> Named:
    if os.path.isfile(os.path.join(model, RECORD)):  # noqa: PTH113, PTH118
        # What is wrong with a run is said by who takes it.
        with suppress(RunFolderError):
            return model_of(checked_record(Path(model)))
    return Named.typed(model, label)


def titles(pairs: Sequence[Request]) -> list[str]:
    """Text and protocol of each pair; of texts with one name, where they are from."""
    named = [(pair.corpus.name, pair.protocol.name) for pair in pairs]
    return [
        f"{name if named.count((name, protocol)) == 1 else pair.corpus.source}, {protocol}"
        for pair, (name, protocol) in zip(pairs, named, strict=True)
    ]


def _pair(request: Request) -> Pair:
    protocol = request.protocol
    return {
        "corpus": request.corpus.name,
        "protocol": protocol.name,
        "protocol_sha256": protocol.sha256,
        "reference": None,
    }


def _entry(model: str, pair: int) -> Entry:
    return {
        "model": model,
        "pair": pair,
        "status": "waiting",
        "folder": None,
        "error": None,
        "asked": None,
    }

"""The inputs of a recorded run, found again: where the record says they lay, or where the user says.

A record names paths of the machine that wrote it, and things on the hub. A path is used where there is
something; the hub is asked only where the user wants that. A record's text becomes the flags again that
ask for it, and these are read as a command's are.
"""

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from scoremode.checkpoint.model_files import ModelFiles, resolve_model, resolve_tokenizer
from scoremode.errors import CorpusError
from scoremode.lib.hub import on_hub
from scoremode.results.record.definition import Record
from scoremode.results.record.model import CheckpointFiles, Reference, TakenModules
from scoremode.results.record.model import Tokenizer as TokenizerSection
from scoremode.results.record.sections import command_of
from scoremode.results.record.text import Calibration as CalibrationSection
from scoremode.spec.text import Calibration, Text
from scoremode.text.protocol import Protocol

CheckpointPlace = CheckpointFiles | TakenModules
_COMMIT = re.compile(r"[0-9a-f]{40}")
# How a command shows a long text that was given in Python.
_LENGTH_ALONE = re.compile(r"<\d+ characters>")


class Unreachable(Exception):
    """Something that can't be looked at here, with the reason and what would help."""


@dataclass(frozen=True)
class Sources:
    """The places that a user gives in place of the record's.

    - `model`, `tokenizer`, `reference`: of the checkpoint, its tokenizer, the base.
    - `files`: of the text, one or several as in the run.
    - `fetch`: whether the hub may be asked for what the record took from there.
    - `directory`: the folder that the record's command ran in, which relative places are relative to.
    """

    model: str | None = None
    tokenizer: str | None = None
    reference: str | None = None
    files: tuple[Path, ...] = ()
    fetch: bool = False
    directory: str | None = None
    _found: dict[str, ModelFiles] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def at(self, place: str) -> str:
        """Resolves a place that the record names: relative to its directory, if it has one."""
        is_there = self.directory in (None, str(Path.cwd()))
        return place if is_there else str(Path(str(self.directory)) / place)

    def data_set(self, source: str) -> tuple[str, str] | None:
        """The repository and the commit of a data set that a record found on the hub; None of a path.
        Raises Unreachable where the hub may not be asked."""
        if (found := on_hub(source)) and not self.fetch:
            raise Unreachable(
                f"{source}: --fetch gets it from the hub, or --file PATH says where a copy lies"
            )
        return found

    def file(self, source: str) -> Path:
        """The file of a text that the record names. Raises Unreachable."""
        path = Path(self.at(source))
        if not os.path.isfile(path):  # noqa: PTH113  Path.is_file raises for a name too long
            raise Unreachable(f"there is no {path} here: --file PATH says where it lies")
        return path

    def model_files(self, place: str, commit: str | None = None) -> ModelFiles:
        """The files of a model, found once. Raises CheckpointError."""
        if place not in self._found:
            self._found[place] = resolve_model(place, commit)
        return self._found[place]

    def checkpoint(self, section: CheckpointPlace, given: str | None, flag: str) -> ModelFiles:
        """The files of the checkpoint that `section` describes, `given` by the user or the record's;
        may fetch it. Raises Unreachable, CheckpointError."""
        if given is not None:
            return self.model_files(given)
        path, source = self.at(section.path or section.source), section.source
        if isinstance(section, CheckpointFiles) and section.mixture:
            source = section.mixture.source
        if os.path.exists(path):  # noqa: PTH110  Path.exists raises for a name too long
            return self.model_files(path)
        if (found := on_hub(source)) is None or not _COMMIT.fullmatch(found[1]):
            raise Unreachable(f"there is no {path} here: {flag} PATH says where it lies")
        if not self.fetch:
            raise Unreachable(
                f"there is no {path} here: --fetch gets {source} from the hub, or {flag} PATH says "
                "where it lies"
            )
        return self.model_files(*found)

    def other(self, take: TakenModules) -> ModelFiles:
        """The files of a checkpoint that a mixture takes modules from, given what the record says of
        it. Raises Unreachable, CheckpointError."""
        if take.is_base:
            return self.checkpoint(take, self.reference, "--reference")
        try:
            return self.checkpoint(take, None, "")
        except Unreachable:
            raise Unreachable(
                f"there is no {take.path} here, from which {take.pattern} was taken"
            ) from None

    def base(self, section: Reference) -> Path:
        """A place of the kept base or the file of logits that a record's `reference` names."""
        return Path(self.reference or self.at(section.path or section.source))

    def tokenizer_of(
        self, section: TokenizerSection, checkpoint: CheckpointPlace, *, is_base: bool = False
    ) -> ModelFiles:
        """The files of a tokenizer, given what the record says of it and of its checkpoint, a base's
        with `is_base`: one that was the checkpoint's own is where this is. Raises Unreachable,
        CheckpointError."""
        given, flag = (self.reference, "--reference") if is_base else (self.model, "--model")
        if self.tokenizer is not None and not is_base:
            return resolve_tokenizer(self.tokenizer)
        own = self.at(section.source)
        if section.source in (checkpoint.path, checkpoint.source):
            return self.checkpoint(checkpoint, given, flag)
        if os.path.exists(own):  # noqa: PTH110
            return resolve_tokenizer(own)
        if given is not None:
            return self.model_files(given)
        raise Unreachable(f"there is no {own} here: --tokenizer PATH says where it lies")


def protocol_of(record: Record) -> Protocol:
    """The protocol that a record describes. Raises CorpusError for one of another release's."""
    known = {each.name for each in fields(Protocol)}
    rules = {name: value for name, value in record.document["protocol"].items() if name != "sha256"}
    if strange := sorted(rules.keys() - known):
        raise CorpusError(f"its protocol has {strange[0]}, which this release doesn't know")
    return Protocol(**rules)


def text_flags(record: Record, sources: Sources) -> Text:
    """The flags that ask for the text of a record, all rows of it. Raises Unreachable, UsageError."""
    section = record.corpus
    source, chats = section.source or section.name, section.conversations
    given: dict[str, Any] = {"group_by": section.group_by or None}
    # The flag that names a file of it.
    flag = "dataset_file" if section.rows is not None else "file"
    if chats:
        flag, template = "conversations", chats.template
        given["skip_bad_rows"] = chats.bad_rows
        if template is not None:
            given["chat_template_kwargs"] = template.arguments
            given["chat_date"] = template.date
            if template.given:
                given["chat_template"] = sources.at(template.source)
    elif flag == "dataset_file":
        given["text_field"] = section.text_field or None
    if preset := section.preset:
        flag = "dataset_file"
        given = {**given, "preset": preset, "text_field": None}
    if sources.files:
        given[flag] = list(sources.files) if flag == "file" else str(sources.files[0])
    elif hub := sources.data_set(source):
        repo, given["dataset_revision"] = hub
        if not preset:
            given["conversations" if chats else "dataset"] = repo
            given["dataset_config"], given["split"] = _split_of(section.name)
    elif source == "argument":
        given["text"] = _text_of(command_of(record))
    elif flag == "file":
        own = section.files or ()
        paths = [sources.file(file.source) for file in own] or [sources.file(source)]
        # A folder is called by its own name.
        folder = sources.at(source)
        given[flag] = [folder] if os.path.isdir(folder) else paths  # noqa: PTH112  a name too long
    else:
        given[flag] = str(sources.file(source))
    return Text(**given)


def calibration_flags(section: CalibrationSection, sources: Sources) -> Calibration:
    """The flags that ask for the calibration text of a record's section. Raises Unreachable."""
    source, text_field = section.source, section.text_field
    if hub := sources.data_set(source):
        repo, commit = hub
        config, split = _split_of(section.name)
        return Calibration(
            calibration=repo,
            calibration_config=config,
            calibration_split=split,
            calibration_revision=commit,
            calibration_field=text_field,
        )
    place = Path(sources.at(source))
    if not place.is_file():
        raise Unreachable(f"{source} is not here")
    return Calibration(calibration=str(place), calibration_field=text_field)


def _split_of(name: str) -> tuple[str | None, str | None]:
    """The configuration, if there is one, and the split of a data set, which its name ends with."""
    _, *config, split = name.split(" ") if " " in name else (name, None)
    return config[0] if config else None, split


def _text_of(command: list[str]) -> str:
    """The text that a command line has. Raises Unreachable."""
    for word, after in zip(command, [*command[1:], None], strict=False):
        name, equals, value = word.partition("=")
        if name != "--text" or (text := value if equals else after) is None:
            continue
        if _LENGTH_ALONE.fullmatch(text):
            # A text that was given in Python and is long (`api.measure`).
            raise Unreachable("the command has its length alone: --file PATH says where it lies")
        return text
    raise Unreachable("it was given on the command line: --file PATH says where it lies")

"""Places of what a record was made of: where the record says it lay, or where the user says it lies.

A record names paths of the machine that wrote it, and things on the hub. A path is used where there is
something; the hub is asked only where the user wants that.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scoremode.checkpoint.model_files import ModelFiles, resolve_model, resolve_tokenizer
from scoremode.text.corpus import Corpus
from scoremode.text.presets import load_text, named_text

# A hub id with its commit, as a record has it.
_ON_HUB = re.compile(r"hub:(?P<name>[^@]+)@(?P<commit>[0-9a-f]{40})")


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

    def model_files(self, place: str, commit: str | None = None) -> ModelFiles:
        """The files of a model, found once. Raises CheckpointError."""
        if place not in self._found:
            self._found[place] = resolve_model(place, commit)
        return self._found[place]

    def checkpoint(self, section: Mapping[str, Any], given: str | None, flag: str) -> ModelFiles:
        """The files of the checkpoint that `section` describes, `given` by the user or the record's;
        may fetch it. Raises Unreachable, CheckpointError."""
        if given is not None:
            return self.model_files(given)
        path, source = self.at(section.get("path") or section["source"]), section["source"]
        if (mixture := section.get("mixture")) is not None:
            source = mixture["source"]
        if os.path.exists(path):  # noqa: PTH110  Path.exists raises for a name too long
            return self.model_files(path)
        if (found := _ON_HUB.fullmatch(source)) is None:
            raise Unreachable(f"there is no {path} here: {flag} PATH says where it lies")
        if not self.fetch:
            raise Unreachable(
                f"there is no {path} here: --fetch gets {source} from the hub, or {flag} PATH says "
                "where it lies"
            )
        return self.model_files(found["name"], found["commit"])

    def other(self, take: Mapping[str, Any]) -> ModelFiles:
        """The files of a checkpoint that a mixture takes modules from, given what the record says of
        it. Raises Unreachable, CheckpointError."""
        if take["is_base"]:
            return self.checkpoint(take, self.reference, "--reference")
        try:
            return self.checkpoint(take, None, "")
        except Unreachable:
            raise Unreachable(
                f"there is no {take['path']} here, from which {take['pattern']} was taken"
            ) from None

    def base(self, section: Mapping[str, Any]) -> Path:
        """A place of the kept base or the file of logits that a record's `reference` names."""
        return Path(self.reference or self.at(section.get("path") or section["source"]))

    def tokenizer_of(
        self, section: Mapping[str, Any], checkpoint: Mapping[str, Any], *, is_base: bool = False
    ) -> ModelFiles:
        """The files of a tokenizer, given what the record says of it and of its checkpoint, a base's
        with `is_base`: one that was the checkpoint's own is where this is. Raises Unreachable,
        CheckpointError."""
        given, flag = (self.reference, "--reference") if is_base else (self.model, "--model")
        if self.tokenizer is not None and not is_base:
            return resolve_tokenizer(self.tokenizer)
        own = self.at(section["source"])
        if section["source"] in (checkpoint.get("path"), checkpoint.get("source")):
            return self.checkpoint(checkpoint, given, flag)
        if os.path.exists(own):  # noqa: PTH110
            return resolve_tokenizer(own)
        if given is not None:
            return self.model_files(given)
        raise Unreachable(f"there is no {own} here: --tokenizer PATH says where it lies")


def named_corpus(
    section: Mapping[str, Any], sources: Sources, how: Mapping[str, Any] | None = None
) -> Corpus:
    """The text that a record's corpus names; `how`: further fields of conversations.

    Raises Unreachable, CorpusError, UsageError for a name that this release doesn't know.
    """
    text, source = named_text(section["preset"]), str(section.get("source") or section["name"])
    file, revision = None, None
    if sources.files:
        file = sources.files[0]
    elif source.startswith("hub:"):
        if not sources.fetch:
            raise Unreachable(
                f"{source}: --fetch gets it from the hub, or --file PATH says where a copy lies"
            )
        revision = source.partition("@")[2]
    elif os.path.isfile(sources.at(source)):  # noqa: PTH113  Path.is_file raises for a name too long
        file = Path(sources.at(source))
    else:
        raise Unreachable(f"there is no {source} here: --file PATH says where it lies")
    return load_text(text, file=file, revision=revision, group_by=section.get("group_by"), how=how)

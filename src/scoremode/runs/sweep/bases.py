"""The base of a sweep: kept references, each opened and proven once for all models."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint, stamp
from scoremode.errors import ReferenceUnusable
from scoremode.lib.json import json_digest
from scoremode.llama_cpp.reference import LlamaCppReference
from scoremode.reference.stored import StoredReference
from scoremode.results.comparison.comparable import check_same_plan
from scoremode.results.folders.store import RECORD, read_record
from scoremode.results.record.definition import Done
from scoremode.results.record.sections import versions
from scoremode.runs.baselines import (
    Baseline,
    StoredBaseline,
    base_of_record,
    is_logits_file,
    open_baseline,
)
from scoremode.runs.request import Request
from scoremode.text.corpus_plan import PlannedText


class KeptOnce(StoredReference):
    """A reference whose files are read through once, as long as none of them is touched."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._checked: tuple[int | None, dict[Path, tuple[int, ...]]] | None = None

    def check_files(self, rows: int | None = None) -> None:
        files = [file for file in self.path.rglob("*") if file.is_file()]
        if self.address is None and (where := self.place_of_head) is not None:
            place = Path(where.path)
            files += place.glob("*.safetensors") if place.is_dir() else [place]
        stamps = {file: stamp(file) for file in sorted(files)}
        if (rows, stamps) != self._checked:
            super().check_files(rows)
            self._checked = rows, stamps


class Bases:
    """The references that are open; a device has one of them at a time."""

    def __init__(self) -> None:
        self._open: dict[Path, KeptOnce] = {}

    def baseline(self, request: Request, planned: PlannedText, checkpoint: Checkpoint) -> Baseline:
        """The base of a run, whose reference is a kept one or a file of logits.

        Raises ReferenceUnusable, RunFolderError.
        """
        path = Path(str(request.reference))
        if is_logits_file(path):
            return open_baseline(request, planned, checkpoint)
        for other, stored in self._open.items():
            if other != path:
                stored.release()
        if path not in self._open:
            self._open[path] = KeptOnce(path)
        return StoredBaseline(self._open[path], planned, request.corpus)


def folder_of_base(
    output: Path, checkpoint: Checkpoint, plan: PlannedText, request: Request
) -> Path:
    """The folder of a base's reference: the same for the same base, plan, options and versions.

    Where the one there is of other weights, which headers don't tell, another is taken.
    """
    key = [checkpoint.fingerprint, plan.plan.sha256, options_of(request), versions()]
    if (chats := plan.identity().get("conversations")) is not None:
        key.append(chats)
    first = output / f"reference-{json_digest(key)[:12]}"
    folder, number = first, 1
    while folder.is_symlink() or os.path.lexists(folder / RECORD):
        if not folder.is_symlink():
            stored = read_record(folder).get("checkpoint", {}).get("files")
            if stored in (None, checkpoint.hash_files()):
                break
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def options_of(request: Request) -> dict[str, Any]:
    """Options of a request that may move a score, beside model, text, protocol and base."""
    options: Any = request.options
    return {
        "engine": type(options).__name__,
        **asdict(options),
        "full": request.full,
        "draft": request.draft,
        "noise_floor": request.noise_floor,
        "token_text": request.token_text,
        "tokenizer": request.tokenizer and str(request.tokenizer),
    }


def check_against(record: Done, request: Request) -> None:
    """Raises ReferenceUnusable unless a finished run's record is of the request's plan and base.

    Its reference is a kept one or a file of logits.
    """
    path = Path(str(request.reference))
    theirs = record.reference
    if is_logits_file(path):
        wanted, found = (
            LlamaCppReference(path).file.fingerprint,
            theirs.fingerprint if theirs else None,
        )
    else:
        stored = StoredReference(path).record
        check_same_plan(record.document, stored.document, str(path))
        wanted, found = base_of_record(stored), theirs.sha256 if theirs else None
    if found != wanted:
        raise ReferenceUnusable(
            f"it was compared with {theirs.source if theirs else 'no base'}, which is not this base"
        )

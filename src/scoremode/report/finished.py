"""A finished run's table, whatever kind of run it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.divergence import kld_document, worst_facts
from scoremode.report.forms.document import Document
from scoremode.report.forms.text import document_text
from scoremode.report.shard import shard_document
from scoremode.report.table import reference_document, run_document
from scoremode.report.tasks import tasks_document

__all__ = ["finished_document", "finished_table"]


def finished_table(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False, worst: bool = False
) -> str:
    """The table of the run in `folder` as text."""
    return document_text(finished_document(record, folder, verbose=verbose, worst=worst))


def finished_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False, worst: bool = False
) -> Document:
    """The table of the run or shard in `folder`; with `worst` its worst targets also without
    `verbose`."""
    if record["status"] == "shard":
        return shard_document(record, folder, verbose=verbose)
    if "tasks" in record:
        return tasks_document(record, folder, verbose=verbose)
    if "kld" in record["metrics"]:
        found = kld_document(record, folder, verbose=verbose)
        if worst and not verbose:
            return Document((*found.parts, worst_facts(record["worst"])), found.data)
        return found
    if "kept" in record:
        return reference_document(record, folder, verbose=verbose)
    return run_document(record, folder, verbose=verbose)

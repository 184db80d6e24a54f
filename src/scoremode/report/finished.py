"""A finished run's table, whatever kind of run it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.divergence import kld_table, worst_table
from scoremode.report.table import reference_table, run_table

__all__ = ["finished_table"]


def finished_table(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False, worst: bool = False
) -> str:
    """The table of the run in `folder`; with `worst` its worst targets also without `verbose`."""
    if "kld" in record["metrics"]:
        table = kld_table(record, folder, verbose=verbose)
        return f"{table}\n\n{worst_table(record['worst'])}" if worst and not verbose else table
    if "kept" in record:
        return reference_table(record, folder, verbose=verbose)
    return run_table(record, folder, verbose=verbose)

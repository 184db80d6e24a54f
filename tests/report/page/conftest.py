"""Made runs of one base, and the report's data of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.comparisons import made
from support.run_folders import BASE_FILES, PLACES, write_run

from scoremode.report.page.data import report_data
from scoremode.report.page.definition import ReportData, Section
from scoremode.results.scores import Scores

OWN = ("window", "position", "index", "target", "logprob", "top1", "top1_logprob")
# Bytes, noise: b is as good as c and smaller; d is as far off as e but for luck.
RUNS = {"a": (900, 0.02), "b": (500, 0.05), "c": (600, 0.1), "d": (400, 0.3), "e": (410, 0.3)}


@dataclass
class Made:
    folders: dict[str, Path]
    report: ReportData

    @property
    def section(self) -> Section:
        return self.report["sections"][0]

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """A run's Parquet file as numpy has it."""
        table = pq.read_table(self.folders[name] / "scores.parquet")
        return {column: table[column].to_numpy() for column in table.column_names}

    def id_of(self, name: str) -> str:
        return next(run["id"] for run in self.section["runs"] if run["name"] == name)


def plain(scores: Scores) -> Scores:
    """Scores as `ppl` has them, without a base."""
    return Scores.from_columns({k: v for k, v in scores.columns().items() if k in OWN})


@pytest.fixture(scope="session")
def made_report(tmp_path_factory) -> Made:
    folder = tmp_path_factory.mktemp("report")
    folders = {}
    for seed, (name, (size, noise)) in enumerate(RUNS.items()):
        scores = made(**PLACES, noise=noise, seed=seed, full=False)
        changes = {"checkpoint.bytes": size, "checkpoint.bits_per_weight.body": size / 100}
        # What a record may have of a target that a corpus holds.
        facts = worst(scores)
        for i, fact in enumerate(facts):
            fact |= {"target_text": f"<script>{fact['target']}", "context": f"\x1b[2J\ud800 {i}"}
        folders[name] = write_run(
            folder / name,
            scores,
            changes=changes | {"worst": facts, "finished": f"2026-0{seed + 1}"},
        )
    base = plain(made(**PLACES, noise=0.0, full=False))
    folders["base"] = write_run(folder / "base", base, model="models/base", files=BASE_FILES)
    alone = plain(made(**PLACES, noise=0.2, seed=9, full=False))
    folders["alone"] = write_run(folder / "alone", alone)
    return Made(folders, report_data(list(folders.values())))


def worst(scores: Scores) -> list[dict]:
    from scoremode.results.statistics.divergence import worst_tokens

    assert scores.against is not None
    return worst_tokens(scores, scores.against)

"""The harness's metrics as the record's section `tasks`, and every question's in `answers.parquet`."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.lib.json import json_digest
from scoremode.results.folders.tables import ANSWERS, write_table
from scoremode.results.scores import Scores
from scoremode.results.statistics.bootstrap import MIN_BLOCKS, block_bootstrap
from scoremode.results.statistics.pairs import paired_answers
from scoremode.text.task_requests import PlannedCorpus, RequestCorpus

# Entries among the harness's metrics of a task that are no metrics.
_NO_METRICS = {"alias", "name", "sample_len", "sample_count", " "}


@dataclass(frozen=True)
class HarnessResults:
    """The results of the harness's `evaluate` for one model's answers."""

    results: Mapping[str, Any]

    def metrics(self, section: str, name: str) -> tuple[dict[str, float], dict[str, float]]:
        """Metrics by the harness's names, such as `acc,none`, and their standard errors by the same."""
        values, errors = {}, {}
        for key, value in self.results[section][name].items():
            if key in _NO_METRICS or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            metric, comma, of = key.partition(",")
            if not comma or not math.isfinite(value):
                continue
            if metric.endswith("_stderr"):
                errors[metric.removesuffix("_stderr") + comma + of] = float(value)
            else:
                values[key] = float(value)
        return values, errors

    def questions(self, task: str) -> Iterator[tuple[int, str, float, float | None]]:
        """(question, metric with its filter, value, weight) of a task's questions, in order; of a
        perplexity the log-likelihood and how many words or bytes it is of."""
        for sample in self.results["samples"][task]:
            for metric in sample["metrics"]:
                value, weight = sample[metric], None
                if isinstance(value, tuple | list) and len(value) == 2:
                    value, weight = value
                if isinstance(value, bool | int | float | np.number):
                    name = f"{metric},{sample['filter']}"
                    yield (
                        sample["doc_id"],
                        name,
                        float(value),
                        None if weight is None else float(weight),
                    )

    def chosen(self, task: str) -> dict[int, int]:
        """Question → the likeliest of its answers, by log-likelihood; none of other tasks."""
        found = {}
        for sample in self.results["samples"][task]:
            answers = [response[0] for response in sample["resps"]]
            if "acc" in sample["metrics"] and len(answers) > 1:
                found[sample["doc_id"]] = int(np.argmax([answer[0] for answer in answers]))
        return found


def tasks_section(
    folder: Path,
    corpus: RequestCorpus,
    planned: PlannedCorpus,
    scores: Scores,
    own: HarnessResults,
    base: HarnessResults | None,
    datasets: Mapping[str, Mapping[str, Any]],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """The section, of a model's answers and a base's; `about`: what the harness was asked, `datasets`:
    what each task's questions are of. Writes `answers.parquet`."""
    results, rows, paired = own.results, [], {}
    tasks: dict[str, Any] = {}
    for task in sorted(datasets):
        values, errors = own.metrics("results", task)
        requests = [i for i, r in enumerate(corpus.requests) if r.task == task]
        asked = [corpus.requests[i] for i in requests]
        texts = [[r.question, r.place, r.context, r.continuation] for r in asked]
        made: dict[str, Any] = {
            "questions": len({r.question for r in asked}),
            "requests": len(requests),
            "requests_sha256": json_digest(texts),
            "version": str(results["versions"].get(task)),
            "num_fewshot": int(results["n-shot"].get(task) or 0),
            "dataset": dict(datasets[task]),
            "metrics": values,
            "stderr": errors,
        }
        if base is not None:
            values, errors = base.metrics("results", task)
            made["base"] = {"metrics": values, "stderr": errors}
            made["kld"] = _kld(planned, scores, requests)
        task_rows = list(_rows(task, own, base))
        rows += task_rows
        if base is not None:
            paired[task] = task_rows
            made["pairs"] = _pairs(task_rows, made["metrics"])
        tasks[task] = made
    groups = {}
    for name in sorted(results.get("groups", {})):
        members = sorted(_members(name, results["group_subtasks"], set(datasets)))
        values, errors = own.metrics("groups", name)
        groups[name] = {"tasks": members, "metrics": values, "stderr": errors}
        if base is not None:
            values, errors = base.metrics("groups", name)
            groups[name]["base"] = {"metrics": values, "stderr": errors}
            pooled = [row for task in members for row in paired[task]]
            groups[name]["pairs"] = _pairs(pooled, groups[name]["metrics"])
    return {
        "harness": dict(about),
        "tasks": tasks,
        "groups": groups,
        "answers": _write(folder / ANSWERS, rows),
    }


def _members(group: str, children: Mapping[str, list[str]], tasks: set[str]) -> set[str]:
    """The tasks of a group and of the groups in it."""
    found = set()
    for name in children.get(group, ()):
        found |= {name} if name in tasks else _members(name, children, tasks)
    return found


def _rows(task: str, own: HarnessResults, base: HarnessResults | None) -> Iterator[dict[str, Any]]:
    """A row for each metric of each question, with the base's."""
    chosen = own.chosen(task)
    theirs = {} if base is None else {(q, name): v for q, name, v, _ in base.questions(task)}
    base_chosen = {} if base is None else base.chosen(task)
    for question, name, value, weight in own.questions(task):
        row = {
            "task": task,
            "question": question,
            "metric": name,
            "value": value,
            "weight": weight,
            "chosen": chosen.get(question),
        }
        if base is not None:
            row |= {
                "base_value": theirs[question, name],
                "base_chosen": base_chosen.get(question),
            }
        yield row


def _pairs(rows: list[dict[str, Any]], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Metric → what the pairs of its questions say; of `metrics` those that are their questions'
    mean."""
    found = {}
    for name, whole in metrics.items():
        own = [row for row in rows if row["metric"] == name]
        values = np.array([row["value"] for row in own], np.float64)
        if not own or not math.isclose(values.mean(), whole, rel_tol=1e-9, abs_tol=1e-12):
            continue
        base = np.array([row["base_value"] for row in own], np.float64)
        found[name] = paired_answers(values, base)
        # What is chosen is what `acc` judges; others weigh the answers by their lengths.
        if name.startswith("acc,") and all(row["chosen"] is not None for row in own):
            found[name]["changed"] = sum(row["chosen"] != row["base_chosen"] for row in own)
    return found


def _kld(planned: PlannedCorpus, scores: Scores, requests: list[int]) -> dict[str, Any]:
    """The mean divergence from the base over the answers' tokens, in nats, as a metric; its blocks are
    questions. A window that several requests share counts once."""
    assert scores.against is not None and planned.plan.conversation is not None
    spans = [planned.window[planned.begin[i] : planned.begin[i + 1]] for i in requests]
    windows = np.unique(np.concatenate(spans))
    here = np.isin(scores.window, windows[windows >= 0])
    kld, window = scores.against.kld[here], scores.window[here]
    _, block = np.unique(planned.plan.conversation[window], return_inverse=True)
    sums, totals = (np.bincount(block, of).astype(np.float64) for of in (kld, np.ones_like(kld)))
    interval = block_bootstrap(sums, totals, whole=True, least=float(kld.min()))
    note = None if interval else f"{len(sums)} questions: an interval needs at least {MIN_BLOCKS}"
    ci95 = None if interval is None else list(interval)
    return {"value": float(kld.mean()), "ci95": ci95, "n": len(kld), "note": note}


def _write(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    import pyarrow as pa

    types = {
        "task": pa.string(),
        "question": pa.int32(),
        "metric": pa.string(),
        "value": pa.float64(),
        "weight": pa.float64(),
        "chosen": pa.int32(),
        "base_value": pa.float64(),
        "base_chosen": pa.int32(),
    }
    names = [name for name in types if not rows or name in rows[0]]
    columns = {name: pa.array([row[name] for row in rows], types[name]) for name in names}
    return write_table(path, pa.table(columns))

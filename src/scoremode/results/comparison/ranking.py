"""Several runs of one plan: ranked, and each tested against the next.

Two models measured on one text share what makes it hard, so their difference is known far better
than either value: the tests are paired, a bootstrap over blocks of the text of the difference
itself. A verdict is about texts like this one. Two runs are told apart where that holds among all
pairs of runs (`statistics.pairs`), and where a KLD differs by more than rounding moves it; others are
tied, and a run's rank is all that it may be.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scoremode.errors import RunFolderError, UsageError
from scoremode.results.comparison.comparable import (
    differing,
    not_held_out,
    require_same,
    told_apart,
)
from scoremode.results.folders.finished import FinishedRun, open_run
from scoremode.results.labels import base_of, labels_of, labels_of_runs, model_of
from scoremode.results.metrics import METRICS, MetricSpec, shown
from scoremode.results.record.checks import unlike_dtypes
from scoremode.results.record.definition import Record
from scoremode.results.record.model import Reference
from scoremode.results.record.section import Metric, decode, value_at
from scoremode.results.record.sections import now
from scoremode.results.scores import Bounds
from scoremode.results.statistics.blocks import BlockLength
from scoremode.results.statistics.bootstrap import (
    WHOLE,
    percentile_interval,
    too_few,
    verdict,
)
from scoremode.results.statistics.means import Blocks, Floats, draws, estimates, mean_ends
from scoremode.results.statistics.pairs import LEVEL, pairs, ranks
from scoremode.results.statistics.verdict import runs_verdict, verdicts

# A group's own, which are the same in all runs.
_OF_GROUP = ("group", "n", "share")


def by_group(
    runs: Sequence[FinishedRun], labels: Sequence[str], by: Literal["kld", "ppl"]
) -> list[dict[str, Any]]:
    """Each group with its metrics of every run that has groups, in their order; plain JSON.

    The group that is worst for one of them stands first: of largest KLD, or of largest PPL, as the runs
    are ranked. Runs of other groups than the first that has any are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    whose = _groups(runs)
    for run, label in zip(runs, labels, strict=True):
        own = run.record.document.get("breakdown", {}).get("label")
        if own is None or not whose or run.record.plan.labels != whose:
            continue
        for group in own:
            of = {name: group[name] for name in _OF_GROUP}
            metrics = {k: v for k, v in group.items() if k not in of}
            found.setdefault(group["group"], of | {"runs": []})["runs"].append(
                _named(run.record, label) | metrics
            )
    return sorted(found.values(), key=lambda group: -_worst(group, by))


def other_groups(runs: Sequence[FinishedRun]) -> list[str]:
    """Notes on the runs that `by_group` leaves out."""
    if not (whose := _groups(runs)):
        return []
    return [
        f"{run.folder} has "
        + ("other groups" if run.record.plan.labels else "no groups")
        + ": it is not in their tables"
        for run in runs
        if run.record.plan.labels != whose
    ]


def _groups(runs: Sequence[FinishedRun]) -> Mapping[str, int] | None:
    return next((of for run in runs if (of := run.record.plan.labels)), None)


def _worst(group: Mapping[str, Any], by: str) -> float:
    return max((run[by]["value"] for run in group["runs"] if by in run), default=0.0)


SCHEMA = "scoremode.compare"
SCHEMA_VERSION = 1
By = Literal["kld", "ppl"]


def ranking(
    folders: Sequence[Path], by: By | None = None, margin: float | None = None
) -> dict[str, Any]:
    """Ranks the finished runs in `folders`, best first; plain JSON.

    - `by`: rank by KLD or by perplexity; None takes KLD where all but the base itself have one.
    - `margin`: of the verdicts, None for each metric's own.

    Raises UsageError where a folder is named twice or has nothing to rank by, RunFolderError where
    one is not a finished run, measured something else, or has its KLD against another reference.
    """
    check_folders(folders)
    return ranked([open_run(folder) for folder in folders], by, margin)


def ranked(
    runs: Sequence[FinishedRun], by: By | None = None, margin: float | None = None
) -> dict[str, Any]:
    """`ranking` of runs that have been read, each in another folder."""
    for run in runs[1:]:
        require_same(runs[0], run)
    notes = other_groups(runs)
    notes += not_held_out(runs)
    references = _references(runs)
    if len(references) > 1:
        one, two = list(references.values())[:2]
        said = told_apart(one.record.document, two.record.document, "reference.sha256")
        differ = f"{one.folder} and {two.folder} have other references: {' and '.join(said)}"
        if by != "ppl":
            raise RunFolderError(f"{differ}: their KLD has no order; --by ppl ranks by perplexity")
        notes.append(f"{differ}: what is measured against them is left out")
    reference = next(iter(references.values())) if len(references) == 1 else None
    section = None if reference is None else reference.record.document["reference"]
    against = None if reference is None else base_of(_base_of(reference))
    bases = [is_base(run.record.document, section) for run in runs]
    by, why = _ranking(runs, bases, by)
    order = sorted(range(len(runs)), key=lambda i: _key(runs[i], by))
    runs, bases = [runs[i] for i in order], [bases[i] for i in order]
    labels = labels_of_runs(runs, bases, against)
    notes += [
        f"{label}: {unlike}"
        for run, label in zip(runs, labels, strict=True)
        if (unlike := unlike_dtypes(run.record.document))
    ]
    chosen = _block_length(runs)
    blocks = runs[0].places.blocks(chosen.tokens, runs[0].weights)
    base, lines = _lines(runs, labels, bases, blocks, compared=len(references) < 2)
    ties = {"ppl": _ties({i: run.nll for i, run in enumerate(runs)}, runs, blocks)}
    if reference is not None:
        by_kld = {i: run.kld for i, run in enumerate(runs) if run.kld is not None}
        ties["kld"] = _ties(by_kld, runs, blocks)
    for i, (line, rank) in enumerate(zip(lines, _ranks(ties[by], len(runs)), strict=True)):
        line["ranks"] = list(rank)
        line["verdicts"] = [] if bases[i] else _verdicts(line, runs[i], blocks, margin)
    if base is not None and against is not None:
        base["label"] = labels_of([against], against, [model_of(run.record) for run in runs])[0]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "ranked_by": by,
        "why": why,
        "reference": section,
        **{name: runs[0].record.document[name] for name in ("corpus", "protocol", "plan")},
        "base": None if reference is None else base,
        "block_length": blocks.length,
        "intervals": chosen.to_json(blocks.filled),
        "runs": lines,
        "frontier": _frontier(lines, by),
        "tests": [
            {"a": labels[i], "b": labels[i + 1]}
            | _test(runs[i], runs[i + 1], blocks, _tied(ties, i), margin)
            for i in range(len(runs) - 1)
        ],
        "groups": by_group(runs, labels, by),
        "tasks": [
            _named(run.record, label) | run.record.document["tasks"]
            for run, label in zip(runs, labels, strict=True)
            if run.record.tasks
        ],
        "differing": differing(runs, labels),
        "notes": notes,
    }


def check_folders(folders: Sequence[Path]) -> None:
    """Raises UsageError where a folder is named twice."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        place = folder.resolve()
        if place in seen:
            raise UsageError(f"the same run twice: {seen[place]} and {folder}")
        seen[place] = folder


def _base_of(run: FinishedRun) -> Reference:
    """The base of a run with a KLD. Raises RunFolderError."""
    if not run.record.reference or not run.record.reference.sha256:
        raise RunFolderError(f"{run.folder}: its record has no reference.sha256")
    return run.record.reference


def _references(runs: Sequence[FinishedRun]) -> dict[str, FinishedRun]:
    """sha256 of every reference → the first run against it."""
    found: dict[str, FinishedRun] = {}
    for run in runs:
        if run.kld is not None:
            found.setdefault(str(_base_of(run).sha256), run)
    return found


def _ranking(runs: Sequence[FinishedRun], bases: Sequence[bool], by: By | None) -> tuple[By, str]:
    without = [
        run for run, of_base in zip(runs, bases, strict=True) if run.kld is None and not of_base
    ]
    # The base has no KLD of its own where it was measured alone: it stands first.
    none_at_all = all(run.kld is None for run in runs)
    if by == "kld" and (without or none_at_all):
        raise UsageError(f"--by kld: {(without or runs)[0].folder} has no KLD")
    if by is not None:
        return by, "as asked"
    if none_at_all:
        return "ppl", "no run has a KLD"
    if without:
        return "ppl", f"{without[0].folder} has no KLD"
    return "kld", "all have one against the same reference"


def _key(run: FinishedRun, by: By) -> float:
    if by == "ppl":
        return run.record.metrics["ppl"].value
    return run.record.metrics["kld"].value if run.kld is not None else -np.inf


def _block_length(runs: Sequence[FinishedRun]) -> BlockLength:
    """Chooses one block length for all, by what every run and every test between two asks for."""
    columns = {f"nll {i}": run.nll for i, run in enumerate(runs)}
    columns |= {f"kld {i}": run.kld for i, run in enumerate(runs) if run.kld is not None}
    for i, (a, b) in enumerate(pairwise(runs)):
        columns[f"nll {i} - {i + 1}"] = a.nll - b.nll
        if a.kld is not None and b.kld is not None:
            columns[f"kld {i} - {i + 1}"] = a.kld - b.kld
    context_length = runs[0].record.protocol.context_length
    return runs[0].places.chosen(columns, context_length, runs[0].weights)


def _lines(
    runs: Sequence[FinishedRun],
    labels: Sequence[str],
    bases: Sequence[bool],
    blocks: Blocks,
    *,
    compared: bool,
) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """The line of the base where it is no run, and those of the runs; all intervals are from the same
    `blocks`, so that a base has one, whichever run it is taken from."""
    means = {(i, name): m for i, run in enumerate(runs) for name, m in run.means(blocks).items()}
    metrics = {key: metric.to_json() for key, metric in estimates(means, blocks.length).items()}

    def with_ends(row: dict[str, Any], i: int, suffix: str = "") -> dict[str, Any]:
        ends = {
            name: row[name] | {k: metrics[i, name + suffix][k] for k in ("ci95", "note")}
            for name in ("ppl", "ppl_ratio", "kld", "top1")
            if row[name] is not None
        }
        return row | ends

    is_measured = any(bases)
    against = next((i for i, run in enumerate(runs) if run.kld is not None), None)
    base = None if against is None or is_measured else base_row(runs[against].record)
    if base is not None and against is not None:
        base = with_ends(base, against, "_base")
    of_base = runs[bases.index(True)] if is_measured else None
    rows = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        row = with_ends(run_row(run.record, run.folder, label) | {"is_base": bases[i]}, i)
        rows.append(_row(row, run, of_base, blocks, compared=compared))
    return base, rows


def _row(
    row: dict[str, Any],
    run: FinishedRun,
    base: FinishedRun | None,
    blocks: Blocks,
    *,
    compared: bool,
) -> dict[str, Any]:
    if not compared:
        others = [m.key for m, _ in shown("runs") if m.base and m.key in row]
        row |= dict.fromkeys((*others, "ratio_to", "half_life"))
    if row["ppl_ratio"] is None and base is not None and run is not base:
        row["ppl_ratio"] = _paired(run, base, blocks)["ppl_ratio"].to_json()
        row["ratio_to"] = "run of the base"
    return row


def beaten_by(values: Mapping[str, tuple[float, float]], one: str) -> list[str]:
    """Those of `values`, a size and a distance each, that are at most as large and at most as far as
    `one`, and not the same in both; without any it is on the frontier."""
    x, y = values[one]
    return [o for o, (a, b) in values.items() if a <= x and b <= y and (a, b) != (x, y)]


def _frontier(rows: Sequence[Mapping[str, Any]], by: By) -> list[str] | None:
    """The labels of the runs that no other beats in size and in what they are ranked by, as they are
    ranked; None where fewer than two have both."""
    values = {
        row["label"]: (row["gib"], row[by]["value"])
        for row in rows
        if not row["is_base"] and row["gib"] is not None and row[by] is not None
    }
    return None if len(values) < 2 else [one for one in values if not beaten_by(values, one)]


def _verdicts(
    line: Mapping[str, Any], run: FinishedRun, blocks: Blocks, margin: float | None
) -> list[dict[str, Any]]:
    """The verdicts on a run beside the base, by the intervals that its line has."""
    judged = [spec.key for spec in METRICS if spec.margin is not None]
    metrics = {key: decode(line[key], Metric) for key in judged if line[key] is not None}
    clusters = blocks.filled if blocks.length == WHOLE else None
    found = verdicts(metrics, margin, floor=_floor(run), clusters=clusters)
    return [verdict.to_json() for verdict in found]


def _floor(run: FinishedRun) -> float:
    """The base's KLD from itself by another arithmetic, 0 where nobody measured it."""
    return run.record.noise_floor.kld.value if run.record.noise_floor else 0.0


# Places of two runs, the better first → why they are tied, None where they are told apart.
Ties = Mapping[tuple[int, int], str | None]


def _ties(columns: Mapping[int, Floats], runs: Sequence[FinishedRun], blocks: Blocks) -> Ties:
    """Tests all pairs of `runs` by their `columns`, float64 [N] by the runs' places."""
    places = list(columns)
    means = [mean for i in places if (mean := blocks.mean(columns[i])) is not None]
    if len(means) < 2:
        return {}
    sums, totals = np.stack([mean.sums for mean in means]), means[0].totals
    tested = pairs(sums, totals, whole=blocks.length == WHOLE)
    found: dict[tuple[int, int], str | None] = {}
    for pair in tested:
        a, b = places[pair.a], places[pair.b]
        # Of perplexities rounding errs to either side.
        floor = max(_floor(runs[a]), _floor(runs[b])) if runs[a].kld is columns[a] else 0.0
        tied = None
        if pair.p_holm is None:
            tied = too_few(len(totals), blocks.length)
        elif pair.p_holm >= LEVEL:
            tied = (
                f"p is {pair.p_holm:.2g} among {len(tested)} pair{'s' * (len(tested) > 1)} (Holm)"
            )
        elif abs(pair.value) <= floor:
            tied = f"in another arithmetic the base is {floor:.3g} nats away from itself"
        found[(b, a) if pair.value > 0 else (a, b)] = tied
    return found


def _tied(ties: Mapping[str, Ties], i: int) -> dict[str, str | None]:
    """Metric → why a run and the next are tied."""
    both = (i, i + 1), (i + 1, i)
    return {of: next((own[pair] for pair in both if pair in own), None) for of, own in ties.items()}


def _ranks(ties: Ties, count: int) -> list[tuple[int, int]]:
    """The first and last rank of each run; what is not tested, a base without a KLD, stands first."""
    tested = sorted({place for pair in ties for place in pair})
    if not tested:
        return [(i + 1, i + 1) for i in range(count)]
    before = tested[0]
    told = [(a - before, b - before) for (a, b), tied in ties.items() if tied is None]
    found = ranks(count - before, told)
    return [(i + 1, i + 1) for i in range(before)] + [(a + before, b + before) for a, b in found]


def _test(
    a: FinishedRun,
    b: FinishedRun,
    blocks: Blocks,
    tied: Mapping[str, str | None],
    margin: float | None,
) -> dict[str, Any]:
    """`a` less `b`, with verdicts on `a`; `tied`: metric → why they are tied, None where not."""
    found = _paired(a, b, blocks)
    # A ratio of 1 and a difference of 0 are one hypothesis; the ratio's interval decides.
    judged = {"ppl": ("ppl_ratio", found["ppl_ratio"], 1.0)}
    if "kld" in tied and a.kld is not None and b.kld is not None:
        mean = blocks.mean(a.kld - b.kld)
        assert mean is not None
        found |= estimates({"kld_difference": mean}, blocks.length)
        judged["kld"] = "kld", found["kld_difference"], 0.0
    order, shown = {}, {}
    for name, (key, metric, same) in judged.items():
        order[name] = verdict(metric.ci95, same, metric.note)
        if tied[name] is not None and metric.ci95 is not None:
            order[name] = "not distinguishable"
        shown[name] = runs_verdict(key, metric, margin, tied[name]).to_json()
    metrics = {name: metric.to_json() for name, metric in found.items()}
    return metrics | {"verdict": order, "verdicts": shown}


def _paired(a: FinishedRun, b: FinishedRun, blocks: Blocks) -> dict[str, Metric]:
    """Difference and ratio of the perplexities, from the same resamples of the text.

    The difference of the nll is resampled, not each: equal models then differ by 0 exactly.
    """
    log_ratio, own = blocks.mean(a.nll - b.nll), blocks.mean(b.nll)
    assert log_ratio is not None and own is not None
    value = float(np.exp(own.value) * np.expm1(log_ratio.value))
    ends, drawn = mean_ends([log_ratio], blocks.length), draws([log_ratio, own])
    if ends is None or drawn is None:
        note = too_few(len(own.sums), blocks.length)
        ratio = Metric(float(np.exp(log_ratio.value)), None, own.n, note)
        return {"ppl_difference": Metric(value, None, own.n, note), "ppl_ratio": ratio}
    low, high = np.exp(ends[:, 0]).tolist()
    ratio = Metric(float(np.exp(log_ratio.value)), (low, high), own.n)
    differences = np.exp(drawn[:, 1]) * np.expm1(drawn[:, 0])
    low, high = percentile_interval(differences, len(own.sums)).tolist()
    if blocks.length == WHOLE:
        # The difference is PPL(a) - PPL(b): by its slopes it is a mean of both nll, and studentized.
        ppl = float(np.exp(own.value))
        nll_a, nll_b = a.nll - own.value - log_ratio.value, b.nll - own.value
        slopes = blocks.mean((value + ppl) * nll_a - ppl * nll_b)
        assert slopes is not None
        linear = mean_ends([slopes], blocks.length)
        assert linear is not None
        low, high = min(low, value + float(linear[0, 0])), max(high, value + float(linear[1, 0]))
    return {"ppl_difference": Metric(value, (low, high), own.n), "ppl_ratio": ratio}


def run_row(record: Record, folder: Path | None, label: str) -> dict[str, Any]:
    """What a table of runs shows of one; `label` is what the table calls it."""
    document = record.document
    metrics = {metric.key: _value(document, metric) for metric, _ in shown("runs")}
    # Of a served model alone.
    for metric, _ in shown("runs"):
        if metric.needs is Bounds and metrics[metric.key] is None:
            del metrics[metric.key]
    return {
        **_named(record, label),
        "source": record.checkpoint.source,
        "folder": None if folder is None else str(folder),
        "is_base": False,
        "ppl": metrics.pop("ppl"),
        **_of_words(document, "word_perplexity"),
        "ppl_ratio": (ratio := metrics.pop("ppl_ratio")),
        "ratio_to": None if ratio is None else "reference",
        **metrics,
        "half_life": _half_life(document),
        "bits_per_weight": value_at(document, "checkpoint.bits_per_weight.body"),
        "gib": gib_of(document["checkpoint"]),
    }


def _named(record: Record, label: str) -> dict[str, Any]:
    """What a table calls a run's model, and the model's own name."""
    return {"label": label, "model": model_of(record).parts[0]}


def base_row(record: Record) -> dict[str, Any] | None:
    """The same of the base, as far as a run against it knows; None for a run without one."""
    document, ppl = record.document, value_at(record.document, "metrics.ppl_base")
    if not record.reference or ppl is None:
        return None
    base = base_of(record.reference)
    # A file of logits has no checkpoint.
    checkpoint = document["reference"].get("checkpoint") or {}
    others = [
        m.key for m, _ in shown("runs") if m.base and m.needs is not Bounds and m.key != "ppl_ratio"
    ]
    nothing = dict.fromkeys(("folder", "ppl_ratio", "ratio_to", *others, "half_life"))
    return {
        "label": base.name,
        "model": base.parts[0],
        "source": base.source,
        **nothing,
        "is_base": True,
        "ppl": ppl,
        **_of_words(document, "word_perplexity_base"),
        "bits_per_weight": value_at(checkpoint, "bits_per_weight.body"),
        "gib": gib_of(checkpoint),
    }


def _value(document: Mapping[str, Any], metric: MetricSpec) -> Any:
    """A metric of a record; of a percentile the number alone."""
    if metric.percent is not None:
        return value_at(document, f"distribution.kld.{metric.percent:g}")
    return value_at(document, f"metrics.{metric.key}")


def _half_life(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """`tokens`, None where no window or reply is long enough; `longest`, the longest one's tokens."""
    if (curve := value_at(document, "survival.sampled")) is None:
        return None
    return {"tokens": curve["half_life"], "ci95": curve["ci95"], "longest": curve["longest"]}


def _of_words(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """`word_ppl` of a run under the protocol lm-eval; nothing of others."""
    metric = value_at(document, f"pages.metrics.{name}")
    return {} if metric is None else {"word_ppl": metric}


def is_base(document: Mapping[str, Any], reference: Mapping[str, Any] | None) -> bool:
    """Tells whether a run is of the very files that a reference (a record's section) was made of, and
    not at a distance from it: the same files by another arithmetic are another model."""
    files = None if reference is None else value_at(reference, "checkpoint.files")
    if not files or files != document["checkpoint"].get("files"):
        return False
    return not value_at(document, "metrics.kld.value")


def gib_of(checkpoint: Mapping[str, Any]) -> float | None:
    """The size of a checkpoint's weights, to the byte where the record has bytes."""
    if (size := checkpoint.get("bytes")) is not None:
        return size / 2**30
    return checkpoint.get("gib")

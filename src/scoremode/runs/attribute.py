"""Attribution: a run against a base, and how much of its KL divergence each part of the model makes."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.attribution.units import By, Unit, find_units
from scoremode.engines.torch.attribution.variants import DIRECTIONS, Direction, Found, Variants
from scoremode.engines.torch.engine import TorchEngine
from scoremode.errors import InvalidMeasurement, RunFolderError, UsageError
from scoremode.lib.files import write_text
from scoremode.lib.json import json_text
from scoremode.results.attribution import (
    SCHEMA,
    SCHEMA_VERSION,
    column_of,
    file_of,
    metrics_of,
    read_attributed,
    read_attribution,
    write_columns,
)
from scoremode.results.folders.finished import read_verified
from scoremode.results.folders.store import seal_of
from scoremode.results.record.definition import Done
from scoremode.results.record.sections import now
from scoremode.runs.baselines import ModelBaseline
from scoremode.runs.context import RunContext, import_engine
from scoremode.runs.models import opened_model
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request, Result, TotalProgress
from scoremode.runs.run import score_plan
from scoremode.schemes.mixing import differing
from scoremode.startup.clock import StageClock
from scoremode.startup.warmup import check_installation, preparing
from scoremode.text.corpus_plan import PlannedText


@dataclass(frozen=True)
class Attributed:
    """A run's folder, its record, the attribution that lies beside it, and its `units` in their order
    there."""

    folder: Path
    record: Done
    attribution: dict[str, Any]
    units: list[Unit]


def attribute(
    request: Request,
    by: By,
    *,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    clock: StageClock | None = None,
    directions: Sequence[Direction] = DIRECTIONS,
) -> Attributed:
    """Compares a model with its base, as `scoremode kld` does, and attributes the divergence.

    - `request`: of a comparison by the torch engine, alone, with a model as its base.
    - `by`: what is one unit: a decoder layer, a linear, or all of a kind.
    - `directions`: which variants there are of each.

    The run is finished and on disk before the attribution begins, which goes to `attribution-BY.json`
    and `.parquet` in its folder. One that is resumed and has what is asked for is not attributed again.
    Raises ScoremodeError.
    """
    clock = clock or StageClock()
    clock.begin("open")
    check_installation()
    _check_base(request)
    request = request.resolved()
    checkpoint = opened_model(request, notify)
    with preparing(checkpoint, request.options):
        clock.begin("plan")
        planned = plan_request(request, checkpoint)
        if planned.plan.conversation is not None:
            raise UsageError("attribute: takes a text; conversations and tasks are not supported")
        for note in planned.notes:
            notify(note)
        clock.begin("import")
        import_engine(request.options)
        clock.begin("base")
        baseline = _baseline(request, planned, checkpoint)
        try:
            options = baseline.beside(request.options)
            clock.begin("engine")
            model = options.make(checkpoint, planned.vocabulary, planned.plan, notify)
            assert isinstance(model, TorchEngine)
            try:
                context = RunContext(
                    request, checkpoint, planned, model, baseline, progress or (lambda *_: None),
                    notify, clock, None,
                )  # fmt: skip
                base = baseline.engine
                assert isinstance(base, TorchEngine)
                units = find_units(base, model, by)
                unfit = _moved(context, baseline, by)
                baseline.kept = {}
                result = score_plan(context, lambda: None)()
                if request.resume:
                    earlier = _earlier(result, by, units, directions, notify)
                    if earlier is not None:
                        return earlier
                clock.begin("attribute")
                variants = Variants(base, model, units, directions, final=baseline.kept)
                found = _attributed(context, variants)
                spent = {"seconds": clock.to_json(), "peak_bytes": model.device.peak_bytes()}
                return _written(result, by, units, found, unfit, spent)
            finally:
                model.close()
        finally:
            baseline.close()


def _check_base(request: Request) -> None:
    """Raises UsageError for a base that is no model."""
    from scoremode.reference.stored import is_run
    from scoremode.runs.baselines import is_logits_file

    path = Path(str(request.reference))
    if is_run(path) or is_logits_file(path):
        raise UsageError(
            f"attribute: {path} has no weights to put in the model's place: give the base's own "
            "checkpoint as --reference"
        )


def _baseline(request: Request, planned: PlannedText, checkpoint: Checkpoint) -> ModelBaseline:
    from scoremode.runs.baselines import open_baseline

    baseline = open_baseline(request, planned, checkpoint)
    assert isinstance(baseline, ModelBaseline)
    return baseline


def _moved(context: RunContext, baseline: ModelBaseline, by: By) -> list[str]:
    """Norms and biases that are not the base's, and that a unit doesn't have: it does not fit them. The
    user is told."""
    model = context.engine
    assert isinstance(model, TorchEngine)
    names = differing(context.checkpoint, baseline.checkpoint)
    if by == "layer":
        layers = [f"{name}." for name in model.parts.skeleton.layer_names]
        renamed = model.parts.weights.renamed
        names = [n for n in names if not any(renamed(n).startswith(layer) for layer in layers)]
    if names:
        more = f", nor are {len(names) - 1} more" if len(names) > 1 else ""
        instead = "" if by == "layer" else "; --by layer takes all that a layer has"
        context.notify(
            f"{names[0]} is not the same in both models{more}: scales or rotations were moved into "
            f"other modules, so one {by} does not fit the rest{instead}"
        )
    return names


def _earlier(
    result: Result,
    by: By,
    units: list[Unit],
    directions: Sequence[Direction],
    notify: Callable[[str], None],
) -> Attributed | None:
    """The run's attribution that is there already, whole and with all these columns."""
    path = file_of(result.folder, by, "json")
    if not os.path.lexists(path):
        return None
    try:
        value = read_attribution(path)
        file, rows = value["columns"], result.record.plan.scored
        columns = read_attributed(
            result.folder / file["name"], file["sha256"], rows, len(value["units"])
        )
    except RunFolderError as error:
        notify(f"{error}: attributed again")
        return None
    is_same = value.get("run") == result.record.sha256
    is_same &= [unit["name"] for unit in value["units"]] == [unit.name for unit in units]
    wanted = {column_of(d, unit.name) for d in (*directions, "tv") for unit in units}
    if not is_same or not wanted <= set(columns):
        return None
    notify(f"already attributed: {path}")
    return Attributed(result.folder, result.whole, value, units)


def _attributed(context: RunContext, variants: Variants) -> dict[str, Found]:
    plan = context.plan
    tokens = int(plan.lengths.sum())
    total = int(variants.passes * tokens)
    context.progress(0, total)
    schedule = context.engine.schedule(plan)
    return variants.run(plan, schedule, lambda passes: context.progress(passes * tokens, total))


def _written(
    result: Result,
    by: By,
    units: list[Unit],
    found: dict[str, Found],
    unfit: list[str],
    spent: Mapping[str, Any],
) -> Attributed:
    """Writes what was found beside the run; `unfit` as `_moved` gives it, `spent`: time and memory."""
    record = result.whole
    scores, extras = read_verified(result.folder, record)
    assert scores.against is not None
    names = [unit.name for unit in units]
    columns: dict[str, np.ndarray] = {"index": scores.index, "kld": scores.against.kld}
    if (weight := extras.get("weight")) is not None:
        columns["weight"] = weight
    for name in names:
        for direction, of_windows in {**found[name].kld, "tv": found[name].tv}.items():
            if not of_windows:
                continue
            column = np.concatenate(of_windows)
            if len(column) != len(scores) or not np.isfinite(column).all():
                raise InvalidMeasurement(
                    f"{direction} {name}: {int(np.isfinite(column).sum())} finite divergences of "
                    f"{len(scores)} targets"
                )
            columns[column_of(direction, name)] = column
    assert record.intervals
    block_tokens = record.intervals.block_length
    summary, parts = metrics_of(columns, names, block_tokens)
    path = file_of(result.folder, by, "parquet")
    sha256 = write_columns(path, columns)
    value: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "run": result.record.sha256,
        "by": by,
        "columns": {"name": path.name, "sha256": sha256, "rows": len(scores)},
        "block_tokens": block_tokens,
        "unfit": unfit,
        **spent,
        **summary,
        "units": [
            {
                **unit.to_json(),
                **part,
                "local": found[unit.name].local.to_json(),
                "accumulated": errors.to_json() if errors is not None else None,
            }
            for unit, part in zip(units, parts, strict=True)
            for errors in [found[unit.name].accumulated]
        ],
    }
    value["sha256"] = seal_of(value)
    write_text(file_of(result.folder, by, "json"), json_text(value))
    return Attributed(result.folder, result.whole, value, units)

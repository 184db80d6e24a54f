"""An audit of published runs: everything that can be made again is, and held against the record."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UsageError
from scoremode.results.attribution import audit_attributions
from scoremode.results.audit.findings import Findings, not_checked
from scoremode.results.audit.numbers import (
    audit_answers,
    audit_numbers,
    audited_record,
    audited_scores,
)
from scoremode.results.folders.paths import run_folders
from scoremode.results.folders.store import Columns
from scoremode.results.record.definition import Done
from scoremode.results.record.model import FloatType
from scoremode.results.record.section import Section, misfit
from scoremode.results.record.sections import now, versions
from scoremode.results.scores import Scores, expected
from scoremode.runs.check.files import audit_checkpoint, audit_kept, audit_reference
from scoremode.runs.check.inputs import Sources, Unreachable
from scoremode.runs.check.text import (
    audit_calibration,
    audit_protocol,
    audit_targets,
    audited_plan,
    kept_plan,
)
from scoremode.runs.request import TotalProgress
from scoremode.startup.clock import Tell
from scoremode.text.plan import Plan

SCHEMA = "scoremode.check"
SCHEMA_VERSION = 1


# The options that a second run takes from a record's engine.
class _Torch(Section, frozen=True, kw_only=True, tag_field="engine", tag="torch"):
    dtype: FloatType
    arithmetic: Literal["weights", "weights+activations", "llama.cpp"]


class _Vllm(Section, frozen=True, kw_only=True, tag_field="engine", tag="vllm"):
    dtype: FloatType


@dataclass(frozen=True)
class Rerun:
    """A second run of a share of the windows.

    - `model`: what to score them with; `device`: where, None for the record's kind of device.
    - `share`: of the windows, above 0 and at most 1.
    - `seed`: of the draw. None for one from the system, which nobody who publishes a run can know.
    """

    model: str
    share: float = 0.1
    seed: int | None = None
    device: str | None = None
    trust_remote_code: bool = False


def rerun_of(
    against: str | None,
    share: float | None,
    seed: int | None,
    device: str | None,
    trust_remote_code: bool,
) -> Rerun | None:
    """The second run that a user asks for, None for none. Raises UsageError for a flag of one that is
    given without it."""
    if against is not None:
        return Rerun(
            against, Rerun.share if share is None else share, seed, device, trust_remote_code
        )
    given = {"--share": share, "--seed": seed, "--device": device}
    words = [f"{flag} {value}" for flag, value in given.items() if value is not None]
    if words := words + ["--trust-remote-code"] * trust_remote_code:
        raise UsageError(f"{words[0]}: changes nothing without --against MODEL")
    return None


def check(
    paths: Sequence[Path],
    sources: Sources | None = None,
    rerun: Rerun | None = None,
    *,
    progress: TotalProgress = lambda *_: None,
    notify: Callable[[str], None] = lambda _: None,
    tell: Tell = lambda *_: None,
    entropy: Callable[[], int] = lambda: secrets.randbits(32),
) -> dict[str, Any]:
    """Audits the finished runs in `paths`, folders of runs or runs; the result is plain JSON.

    `result["counts"]` says how much held, could not be checked, and is wrong; `result["left_out"]` has
    a line for each run in a folder of runs that is not finished or has no readable record, which counts
    as not checked. Of each run `not_checked` are the fields of its record that nothing holds
    (`results.audit.findings`). `entropy` gives the seed of a `rerun` without one.

    Raises RunFolderError where there is no finished run, UsageError, and of a second run what opening
    its model raises.
    """
    sources = sources or Sources()
    if rerun is not None and not 0 < rerun.share <= 1:
        raise UsageError(f"--share {rerun.share:g}: must be above 0 and at most 1")
    if rerun is not None and sources.model is None:
        sources = replace(sources, model=rerun.model)
    if rerun is not None and rerun.seed is None:
        rerun = replace(rerun, seed=entropy())
    if rerun is not None:
        # What can't be opened is told before anything else is read.
        open_checkpoint(sources.model_files(rerun.model), code=rerun.trust_remote_code)
    left: list[str] = []

    def leave(line: str) -> None:
        left.append(line)
        notify(line)

    folders = run_folders(paths, leave)
    runs = [_check(folder, sources, rerun, progress, tell) for folder in folders]
    counts = {
        status: sum(run["counts"][status] for run in runs)
        for status in ("held", "unchecked", "wrong")
    }
    counts["unchecked"] += len(left)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "versions": versions(),
        "runs": runs,
        "left_out": left,
        "counts": counts,
    }


def _check(
    folder: Path, sources: Sources, rerun: Rerun | None, progress: TotalProgress, tell: Tell
) -> dict[str, Any]:
    findings = Findings()
    tell("check", str(folder))
    record = audited_record(folder, findings)
    if record is None:
        return {"run": str(folder), "model": None, "not_checked": [], **findings.to_json()}
    sources = replace(sources, directory=record.directory or None)
    read = audited_scores(folder, record, findings)
    if read is not None:
        audit_numbers(folder, record, *read, findings)
    tell("text", str(folder))
    audit_protocol(record, findings)
    plan = None
    if (made := audited_plan(record, sources, findings, folder)) is not None:
        plan, tokenizer = made
        if read is not None:
            audit_targets(record, plan, tokenizer, *read, findings)
    audit_answers(folder, record, findings)
    audit_calibration(record, made, sources, findings)
    tell("files", str(folder))
    audit_checkpoint(record, sources, findings, progress)
    audit_kept(folder, record, findings)
    audit_attributions(folder, record, read, findings)
    tell("files", str(folder))
    audit_reference(record, sources, None if read is None else read[0], findings, progress)
    again = None
    if rerun is not None:
        plan = plan or kept_plan(folder, record, sources, findings)
        tell("score", str(folder))
        again = _again(record, read, plan, sources, rerun, progress, findings)
    held = [f.name for f in findings.found if (f.part, f.status) == ("second run", "held")]
    result = {
        "run": str(folder),
        "model": record.checkpoint.source,
        "not_checked": not_checked(record.document, held),
    }
    return result | findings.to_json() | ({} if again is None else {"second_run": again})


def _again(
    record: Done,
    read: tuple[Scores, Columns] | None,
    plan: Plan | None,
    sources: Sources,
    rerun: Rerun,
    progress: TotalProgress,
    findings: Findings,
) -> dict[str, Any] | None:
    """Scores a share of the windows once more; None where that can't be done, which is noted."""
    part, name = "second run", "scores"
    if read is None or not (schedule := record.schedule):
        what = "scores can't be read" if read is None else "record has no schedule"
        findings.unchecked(part, name, f"not made: the {what}")
        return None
    scores, extras = read
    if plan is None:
        findings.unchecked(part, name, "not made: the token ids are not known without the text")
        return None
    if words := _other_targets(scores, plan):
        findings.unchecked(part, name, f"not made: the scores are of other targets: {words}")
        return None
    if words := _no_options(record):
        findings.unchecked(part, name, f"not made: {words}")
        return None
    from scoremode.runs.check.second_run import compare_again, options_of, score_again
    from scoremode.runs.rescore.rescore import drawn_windows, found_probability, micro_batches

    assert rerun.seed is not None
    batches = micro_batches(record, plan)
    chunk, row = schedule.chunk_tokens or None, schedule.row_tokens or None
    drawn = drawn_windows(plan, batches, rerun.share, rerun.seed, chunk, row)
    windows = np.sort(np.concatenate([one.windows for one in drawn])).tolist()
    engine, trusted = record.document["engine"], rerun.trust_remote_code
    options = options_of(engine, rerun.device, trust_remote_code=trusted)
    full = scores.against is not None and scores.against.jsd is not None
    try:
        again = score_again(
            record,
            drawn,
            sources.model_files(rerun.model),
            sources,
            options,
            full=full,
            draft=(record.identity and record.identity.draft) or None,
            progress=progress,
        )
    except Unreachable as error:
        findings.unchecked(part, name, f"not made: {error}")
        return None
    weights = extras.get("weight")
    found = compare_again(record, scores, weights, again, findings)
    return {
        "model": rerun.model,
        "share": rerun.share,
        "seed": rerun.seed,
        "windows": windows,
        "of_windows": len(plan),
        "found_probability": {
            str(n): found_probability(batches, rerun.share, n)
            for n in sorted({1, *(-(-len(plan) // part) for part in (100, 10, 2))})
        },
        **found,
    }


def _no_options(record: Done) -> str | None:
    """Options in a record that no engine takes, in words; None where there are none. They are of the
    model's engine, and of a base's that ran beside it."""
    base, engines = record.reference, {"engine": record.document["engine"]}
    if base and base.kind == "model" and base.engine:
        engines["reference.engine"] = base.engine
    found = (misfit(engine, _Torch | _Vllm, name) for name, engine in engines.items())
    return next((words for words in found if words), None)


def _other_targets(scores: Scores, plan: Plan) -> str | None:
    """The first of a plan's targets that Scores don't have, in words."""
    wanted = expected(plan, range(len(plan)))
    if len(scores) != len(wanted["window"]):
        return f"{len(scores)} and not {len(wanted['window'])}"
    for name, column in wanted.items():
        differ = np.flatnonzero(getattr(scores, name) != column)
        if len(differ):
            i = int(differ[0])
            return f"row {i} has {name} {getattr(scores, name)[i]}, and the text gives {column[i]}"
    return None

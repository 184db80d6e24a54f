"""One run, start to end: corpus → plan → engine → Scores → statistics → record.

The only place where the parts meet. Everything that can be wrong with the input is found before the
run's folder is made; from then on each finished pass is on disk, and what is on disk is whole.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.hashing import HashingThread
from scoremode.engines.base import Engine, Schedule
from scoremode.errors import (
    InvalidMeasurement,
    RunFolderError,
    TokenizerError,
    UsageError,
)
from scoremode.planning import PlannedText, plan_text
from scoremode.results import record as records
from scoremode.results.scores import Scores, check
from scoremode.results.store import RunFolder, find_runs, read_extras, read_record, read_scores
from scoremode.results.worst import worst_tokens
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.token_class import TokenTable, token_table
from scoremode.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from scoremode.engines.torch.engine import TorchOptions
    from scoremode.engines.vllm.engine import VllmOptions

__all__ = [
    "Request",
    "Result",
    "check_quantization",
    "engine_factory",
    "measure",
    "run_plan",
]

# Called with window tokens done since the last call, and how many there are in all.
TotalProgress = Callable[[float, int], None]
EngineFactory = Callable[[Checkpoint, int | None], Engine]


@dataclass(frozen=True)
class Request:
    """What to measure and where to put it.

    - `output`: the folder that runs go to, or an earlier run's own folder.
    - `options`: of the engine to score with, which they name by their class.
    - `quantization`: the method that the user believes it has, refused where it has another.
    - `resume`: go on with a killed run of the same request.
    - `command`: what the user typed, for the record.
    """

    model: str
    corpus: Corpus
    protocol: Protocol
    options: "TorchOptions | VllmOptions"
    output: Path
    revision: str | None = None
    tokenizer: str | None = None
    quantization: str | None = None
    resume: bool = False
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """A run's folder and its record."""

    folder: Path
    record: dict[str, Any]


def measure(
    request: Request,
    *,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Result:
    """Scores a model under a protocol and writes the run's folder.

    `notify` gets one line for anything the user should know while it runs. Raises ScoremodeError.
    """
    checkpoint = open_checkpoint(
        request.model, request.revision, code=request.options.trust_remote_code
    )
    check_quantization(request.quantization, checkpoint)
    planned = plan_text(
        request.corpus,
        request.protocol,
        model=request.model,
        tokenizer=request.tokenizer,
        revision=request.revision,
    )

    make_engine = engine_factory(request.options, planned, notify)
    return run_plan(request, checkpoint, planned, make_engine, progress=progress, notify=notify)


def engine_factory(
    options: "TorchOptions | VllmOptions", planned: PlannedText, notify: Callable[[str], None]
) -> EngineFactory:
    """Makes the engine that `options` are of. Only the one that is wanted is imported."""
    from scoremode.engines.torch.engine import TorchEngine, TorchOptions

    def torch_engine(checkpoint: Checkpoint, vocabulary: int | None) -> Engine:
        assert isinstance(options, TorchOptions)
        return TorchEngine(checkpoint, options, vocabulary)

    if isinstance(options, TorchOptions):
        return torch_engine
    from scoremode.engines.vllm.engine import VllmEngine

    def vllm_engine(checkpoint: Checkpoint, vocabulary: int | None) -> Engine:
        return VllmEngine(checkpoint, options, planned.plan, vocabulary, notify)

    return vllm_engine


def check_quantization(stated: str | None, checkpoint: Checkpoint) -> None:
    """Raises UsageError where the user states another quantization method than the config does."""
    config = checkpoint.quantization
    method = config.get("quant_method", "compressed-tensors") if config else None
    if stated is not None and stated != method:
        raise UsageError(
            f"--quantization {stated}: {checkpoint.source} is {method or 'not quantized'}"
        )


def run_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: EngineFactory,
    *,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> Result:
    """`measure` from the plan on, with any engine."""
    engine = make_engine(checkpoint, planned.vocabulary)
    try:
        return _run(request, checkpoint, planned, engine, progress, notify)
    finally:
        engine.close()


def _run(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    engine: Engine,
    progress: TotalProgress | None,
    notify: Callable[[str], None],
) -> Result:
    # Here, since it needs torch, which takes seconds to import, and a plan alone does not.
    from scoremode.schemes.summary import stored_summary

    plan = planned.plan
    targets = int(plan.tokens.max())
    if targets >= engine.vocabulary:
        raise TokenizerError(
            f"{planned.tokenizer.source}: the text has token id {targets}, and the softmax runs over "
            f"{engine.vocabulary} entries"
        )
    identity = _identity(checkpoint, plan, engine)
    if checkpoint.config.get("auto_map") and not request.options.trust_remote_code:
        notify(
            "the checkpoint brings code of its own (auto_map), which is not run: "
            f"transformers' {identity['engine'].get('model_class', 'class')} computes instead"
        )
    earlier = _find_earlier(request, identity, checkpoint)
    if earlier and earlier.record["status"] != "running":
        notify(f"already finished: {earlier.folder}")
        return earlier
    if request.resume and not earlier:
        notify(f"nothing to resume in {request.output}: starting anew")
    if earlier:
        folder = RunFolder.open(earlier.folder)
        record = earlier.record
        notify(f"resuming {folder.path} after {folder.parts} passes")
    else:
        schedule = engine.schedule(plan)
        # Made now, so that an unwritable place is known before hours of work.
        folder = RunFolder.create(_new_folder(request, identity))
        record = {
            "schema": records.SCHEMA,
            "schema_version": records.SCHEMA_VERSION,
            "status": "running",
            "created": records.now(),
            "command": list(request.command),
            "versions": records.versions(),
            "identity": identity,
            "checkpoint": {"source": checkpoint.source, "fingerprint": checkpoint.fingerprint}
            | stored_summary(checkpoint),
            **planned.to_json(request.corpus),
            "schedule": schedule.to_json(),
        }
    try:
        if not earlier:
            folder.write_record(record)
        _score(folder, record, checkpoint, plan, engine, progress)
        return Result(folder.path, _finish(folder, record, planned, engine, notify))
    except InvalidMeasurement as error:
        record |= {"status": "invalid", "reason": str(error), "engine": engine.describe()}
        folder.write_record(record)
        folder.drop_parts()
        raise
    except BaseException:
        # A run without a finished pass is worth nothing to anybody.
        if record["status"] == "running" and folder.is_empty:
            folder.discard()
        raise
    finally:
        folder.close()


def _score(
    folder: RunFolder,
    record: dict[str, Any],
    checkpoint: Checkpoint,
    plan: Plan,
    engine: Engine,
    progress: TotalProgress | None,
) -> None:
    """Scores what is missing, a pass at a time, each checked before it is written."""
    schedule = Schedule(**record["schedule"])
    passes = schedule.passes(plan)
    done = folder.parts
    total = int(plan.lengths.sum())

    def report(tokens: float) -> None:
        if progress:
            progress(tokens, total)

    report(float(sum(plan.lengths[w.start : w.stop].sum() for w in passes[:done])))
    hashes = HashingThread(checkpoint)
    scored = engine.score(plan, schedule, done, report)
    for number, windows in enumerate(passes[done:], done):
        scores = next(scored, None)
        if scores is None:
            raise InvalidMeasurement(
                f"the engine stopped after {number} of {len(passes)} passes, at window "
                f"{windows.start} of {len(plan)}"
            )
        # Before the first part that depends on them, the files' hashes are in the record: a part on
        # disk always says which weights made it. They are mapped, so a change meanwhile would count.
        _settle_hashes(folder, record, hashes.result())
        checkpoint.check_unchanged()
        check(scores, plan, windows)
        folder.write_part(number, scores)
    if next(scored, None) is not None:
        raise InvalidMeasurement(f"the engine returned more than the plan's {len(passes)} passes")
    _settle_hashes(folder, record, hashes.result())


def _settle_hashes(folder: RunFolder, record: dict[str, Any], files: dict[str, str]) -> None:
    if "files" not in record["checkpoint"]:
        record["checkpoint"]["files"] = files
        folder.write_record(record)
    _check_files(folder.path, record, files)


def _check_files(folder: Path, record: dict[str, Any], files: dict[str, str]) -> None:
    stored = record["checkpoint"].get("files", files)
    for name in sorted(stored.keys() | files.keys()):
        then, now = stored.get(name), files.get(name)
        if then != now:
            raise RunFolderError(
                f"{folder}: {name} has changed since this run began "
                f"(sha256 {str(then)[:12]}… then, {str(now)[:12]}… now)"
            )


def _finish(
    folder: RunFolder,
    record: dict[str, Any],
    planned: PlannedText,
    engine: Engine,
    notify: Callable[[str], None],
) -> dict[str, Any]:
    """Merges the parts and computes every metric from the merged file."""
    plan, table = planned.plan, _token_table(planned.tokenizer, notify)
    folder.merge(_extra_columns(plan, table))
    scores = read_scores(folder.path)
    if len(scores) != plan.scored:
        raise InvalidMeasurement(f"{len(scores)} scores on disk for {plan.scored} targets")
    block = plan.protocol.context_length
    assert block is not None
    record |= {
        **records.sections(scores, block, read_extras(folder.path)),
        "status": "done",
        "finished": records.now(),
        "engine": engine.describe(),
    }
    if scores.against is not None:
        record["worst"] = worst_tokens(scores, scores.against, plan=plan, table=table)
    folder.write_record(record)
    folder.drop_parts()
    return record


def _token_table(tokenizer: Tokenizer, notify: Callable[[str], None]) -> TokenTable | None:
    try:
        return token_table(tokenizer)
    except TokenizerError as error:
        notify(f"no bits per byte, and no kinds of tokens: {error}")
        return None


def _extra_columns(
    plan: Plan, table: TokenTable | None
) -> Callable[[Scores], dict[str, np.ndarray]]:
    """What stands beside a part's Scores: weights, and what is known of the targets' text."""
    weights = plan.weights()

    def extra(part: Scores) -> dict[str, np.ndarray]:
        columns: dict[str, np.ndarray] = {}
        if weights is not None:
            columns["weight"] = weights[part.window]
        if table is not None:
            columns["token_class"] = table.classes[part.target]
            columns["token_bytes"] = table.byte_counts[part.target]
        return columns

    return extra


def _identity(checkpoint: Checkpoint, plan: Plan, engine: Engine) -> dict[str, Any]:
    """What two runs must share to be one: checked field by field before one goes on."""
    return {
        "checkpoint": checkpoint.fingerprint,
        "plan": plan.sha256,
        "engine": engine.identity(),
        "versions": records.versions(),
    }


def _find_earlier(
    request: Request, identity: dict[str, Any], checkpoint: Checkpoint
) -> Result | None:
    """The run to go on with, or that is finished already: same identity, same weights.

    Raises RunFolderError where the output is some other run's folder.
    """
    output = request.output
    if (output / "record.json").exists():
        record = read_record(output)
        if not request.resume:
            raise RunFolderError(f"{output}: holds a run already: add --resume to go on with it")
        for field, value in identity.items():
            if record.get("identity", {}).get(field) != value:
                raise RunFolderError(
                    f"{output}: is another run: its {field} is "
                    f"{_short(record.get('identity', {}).get(field))}, this one's {_short(value)}"
                )
        if record["status"] == "invalid":
            raise RunFolderError(f"{output}: that run ended as invalid: {record.get('reason')}")
        _check_files(output, record, checkpoint.hash_files())
        return Result(output, record)
    if not request.resume or not output.is_dir():
        return None
    same = [Result(f, r) for f, r in find_runs(output) if r.get("identity") == identity]
    if not same:
        return None
    # The identity is of headers only: two quantizations of one model share it.
    files = checkpoint.hash_files()
    for status in ("running", "done"):
        for result in same:
            stored = result.record["checkpoint"].get("files", files)
            if result.record["status"] == status and stored == files:
                return result
    return None


def _short(value: Any) -> str:
    return json.dumps(value, sort_keys=True)[:120]


def _new_folder(request: Request, identity: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    model = Path(request.model).resolve().name if Path(request.model).is_dir() else request.model
    safe = "".join(c if c.isalnum() or c in "-._" else "-" for c in model)
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = request.output / f"{time}_{safe}_{digest}"
    number = 2
    while folder.exists():
        folder = request.output / f"{time}_{safe}_{digest}-{number}"
        number += 1
    return folder

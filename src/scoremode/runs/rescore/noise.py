"""The noise floor: the base against itself when only the arithmetic changes.

Two right computations of one model differ by rounding. A KLD of that size says nothing about a
quantization, and one ten times larger does. So the base runs once more, with another attention backend
or another dtype or in the other engine, and is compared with itself as the model was. Where nothing
changes a bit, the floor is 0: below resolution, and never a divisor.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import resolve_local
from scoremode.engines.base import Engine, Extras, Options, Schedule
from scoremode.engines.kv_formats import cache_of
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.ranks.messages import ScorePasses, ScoreVariant
from scoremode.engines.vllm.options import VllmOptions
from scoremode.errors import EngineError, InvalidMeasurement, ReferenceUnusable, UsageError
from scoremode.reference.stored import StoredReference
from scoremode.results.record.sections import sections
from scoremode.results.statistics.blocks import CONVERSATION
from scoremode.runs.context import RunContext, import_engine
from scoremode.runs.request import Change, TotalProgress
from scoremode.runs.rescore.rescore import Job, Rescored, rescore, rescore_apart
from scoremode.text.corpus_plan import PlannedText

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.runs.baselines import Baseline


@dataclass(frozen=True)
class _Variant:
    """Another way to compute the base: what changes, in a word and in words."""

    change: Change
    words: str
    options: Options


class NoiseFloor:
    """Other computations of the base; made before the measurement, which is when what can't be done is
    known.

    - `change`: the thing that changes; `baseline`: the base; `options`: of the engine that measures;
      `ranks`: among which it shares its work.

    Raises UsageError, ReferenceUnusable, and what opening the base's checkpoint raises.
    """

    def __init__(
        self,
        change: Change,
        baseline: "Baseline",
        planned: PlannedText,
        options: Options,
        ranks: "Ranks | None" = None,
    ):
        if change == "engine" and ranks is not None:
            raise UsageError(
                f"--noise-floor engine: another engine runs in one process, and here are {ranks.size}"
            )
        section = baseline.section()
        self._planned, self._baseline, self._ranks = planned, baseline, ranks
        self._checkpoint = baseline.checkpoint or _own_checkpoint(section, options)
        self._variants = _variants(change, section, options)
        if not self._variants:
            raise UsageError(f"--noise-floor {change}: the base's {section['source']} is computed "
                             "with the only attention that it has")  # fmt: skip
        if change == "engine" and section["kind"] != "stored":
            raise UsageError(
                "--noise-floor engine: needs a base that scoremode reference has kept; "
                f"{section['source']} runs in this process"
            )

    def run(self, schedule: Schedule, context: RunContext) -> dict[str, Any]:
        """The record's section `noise_floor`: the first variant that changes anything, or the last.

        Raises EngineError where one gives no true scores.
        """
        found: dict[str, Any] = {}
        for variant in self._variants:
            context.clock.begin("noise")
            context.notify(f"noise floor: running the base again, {variant.words}")
            try:
                rescored = self._rescored(variant, schedule, context.progress)
                found = self._section(variant, rescored)
            # The measurement itself is none the worse for it, and can be resumed without.
            except InvalidMeasurement as error:
                raise EngineError(f"noise floor, {variant.words}: {error}") from None
            if found["resolves"]:
                break
        return found

    def _rescored(self, variant: _Variant, schedule: Schedule, progress: TotalProgress) -> Rescored:
        plan = self._planned.plan
        total = int(plan.lengths.sum())
        if variant.change == "engine" or not variant.options.runs_beside:
            reference = self._baseline.reference(plan, schedule, None)
            assert isinstance(reference, StoredReference)
            job = Job(
                resolve_local(self._checkpoint.path),
                self._checkpoint.fingerprint,
                variant.options,
                plan,
                self._planned.vocabulary,
                reference.path,
            )

            def receive(message: tuple[str, Any]) -> None:
                kind, value = message
                if kind == "progress":
                    progress(value, total)

            return rescore_apart("noise floor", job, receive=receive)
        if self._ranks is not None:
            self._ranks.tell(ScoreVariant(self._variants.index(variant)))
        with closing(self._engine(variant)) as engine:
            extras = Extras(self._baseline.reference(plan, schedule, None))
            progress(0, total)
            return rescore(
                engine, plan, schedule, extras=extras, progress=lambda done: progress(done, total)
            )

    def follow(self, number: int) -> None:
        """Runs a variant's share on the ranks but the first; the first one begins that run."""
        assert self._ranks is not None
        with closing(self._engine(self._variants[number])) as engine:
            plan, command = self._planned.plan, self._ranks.command()
            assert isinstance(command, ScorePasses), command
            extras = Extras(self._baseline.reference(plan, command.schedule, None))
            list(engine.score(plan, command.schedule, extras=extras))

    def _engine(self, variant: _Variant) -> Engine:
        planned, options = self._planned, variant.options
        import_engine(options)
        return options.make(
            self._checkpoint, planned.vocabulary, planned.plan, lambda _: None, self._ranks
        )

    def _section(self, variant: _Variant, rescored: Rescored) -> dict[str, Any]:
        plan, scores = self._planned.plan, rescored.scores
        weights, block = plan.weights(), plan.protocol.context_length
        assert block is not None
        extras: dict[str, np.ndarray] = {}
        if weights is not None:
            extras["weight"] = weights[scores.window]
        if plan.conversation is not None:
            extras[CONVERSATION] = plan.conversation[scores.window]
        made = sections(scores, block, extras)
        metrics = {k: made["metrics"][k] for k in ("kld", "ppl_ratio", "top1")}
        names = ("engine", "dtype", "attention", "arithmetic")
        return {
            "change": variant.change,
            "words": variant.words,
            **metrics,
            "distribution": made["distribution"]["kld"],
            "resolves": metrics["kld"]["value"] > 0,
            "engine": {name: rescored.engine[name] for name in names},
        }


def _variants(change: Change, section: Mapping[str, Any], options: Options) -> list[_Variant]:
    """Gives them in the order in which they are tried."""
    base = section["engine"]
    of_tool = base.get("arithmetic") == "llama.cpp"
    if isinstance(options, TorchOptions):
        # The base's own, not the model's.
        options = replace(options, kv_cache=cache_of(base))
    if of_tool and isinstance(options, TorchOptions):
        # A stored base's isn't asked for again.
        options = replace(options, arithmetic="llama.cpp")
    if of_tool and change in ("dtype", "engine"):
        raise UsageError(
            f"--noise-floor {change}: {section['source']} is in llama.cpp's arithmetic, which is the "
            "torch engine's in float32 alone; attention changes something there"
        )
    dtype = "float32" if base["dtype"] != "float32" else "bfloat16"
    if change == "engine":
        other, words = TorchOptions, "in the torch engine"
        if base["engine"] == "torch":
            other, words = VllmOptions, "in vLLM"
        changed = other(dtype=base["dtype"], trust_remote_code=options.trust_remote_code)
        return [_Variant("engine", words, changed)]
    by_dtype = _Variant("dtype", f"in {dtype}", options.computing(dtype))
    if change == "dtype":
        return [by_dtype]
    variants = []
    if options.attentions:
        # The last of them is what every model has.
        other = options.attentions[-1]
        if base["engine"] == "torch" and base["attention"] != other:
            changed = options.computing(base["dtype"], other)
            variants = [_Variant("attention", f"with {other} attention", changed)]
    elif change == "attention":
        raise UsageError("--noise-floor attention: vLLM chooses its attention backend itself; dtype "
                         "or engine change something there")  # fmt: skip
    return variants if change == "attention" or of_tool else [*variants, by_dtype]


def _own_checkpoint(section: Mapping[str, Any], options: Options) -> Checkpoint:
    """Opens the base's, where it lay when it was captured."""
    stored = section["checkpoint"]
    if stored is None:
        raise UsageError(
            f"--noise-floor: {section['source']} holds log-probabilities and no model to run again"
        )
    checkpoint = open_checkpoint(stored["path"], code=options.trust_remote_code)
    if checkpoint.fingerprint != stored["fingerprint"]:
        raise ReferenceUnusable(
            f"{checkpoint.path}: is not the base of {section['source']} any more: its fingerprint is "
            f"{checkpoint.fingerprint[:12]}…, and was {stored['fingerprint'][:12]}…"
        )
    return checkpoint

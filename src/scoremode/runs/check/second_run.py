"""A share of a finished run's windows, scored once more with the record's own options.

On the same device with the same versions the same bits are expected. Elsewhere a difference is judged
by what `scoremode verify` allows rounding (`results.statistics.agreement`), and the mean KLD may move
by what such a difference of log-probabilities, of rms r, can do to it: r √(2 KLD) + r². (Errors of
size r on the logits change KL(p‖q) by Σ (q - p) δ, which Pinsker's inequality bounds by r √(2 KLD), and
by less than r² in second order.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Engine, Extras
from scoremode.engines.kv_formats import cache_of
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.results.record.sections import versions
from scoremode.results.scores import Scores, check, concatenate
from scoremode.runs.check.sources import Sources, Unreachable
from scoremode.runs.models import reopened
from scoremode.runs.rescore.sampling import Drawn

if TYPE_CHECKING:
    import torch

    from scoremode.checkpoint.files import Checkpoint
    from scoremode.engines.base import BaseEngine
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.head.project import Logits
    from scoremode.reference.base import Reference, Span

__all__ = ["Again", "differing_conditions", "differing_options", "options_of", "score_again"]

# Of the versions that a record has, those that compute.
_COMPUTING = ("scoremode", "torch", "transformers", "platform")


@dataclass(frozen=True, eq=False)
class Again:
    """A second run of some windows.

    - `scores`: by the whole plan's windows, in its order; `engine`: `Engine.identity` of now;
      `described`: what `Engine.describe` adds; `base`: the same of a base that ran beside.
    - `without_base`: why there is no comparison with the base, None where there is one or none was.
    """

    scores: Scores
    engine: dict[str, Any]
    without_base: str | None
    described: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)


def options_of(
    engine: Mapping[str, Any], device: str | None, *, trust_remote_code: bool = False
) -> TorchOptions:
    """The torch engine's options that come closest to what a record's `engine` section says.

    `device`: the user's, None for the record's kind where this machine has it.
    """
    arithmetic = engine["arithmetic"] if engine["engine"] == "torch" else None
    if arithmetic is None:
        ran = (engine.get("activations") or {}).get("ran")
        arithmetic = "weights+activations" if ran in ("quantized", "mixed") else "weights"
    attention = engine["attention"] if engine["attention"] in TorchOptions.attentions else None
    return TorchOptions(
        dtype=engine["dtype"],
        arithmetic=arithmetic,
        kv_cache=cache_of(engine),
        device=device or _device_like(engine),
        attention=attention,
        batch_windows=engine.get("batch_windows"),
        trust_remote_code=trust_remote_code,
    )


def score_again(
    record: Mapping[str, Any],
    drawn: Sequence[Drawn],
    model: str,
    sources: Sources,
    options: TorchOptions,
    *,
    full: bool,
    progress: Callable[[float, int], None],
) -> Again:
    """Scores the windows of `drawn` by the model, and compares with the base where it can be reached.

    Raises Unreachable for options that this model can't have, ScoremodeError.
    """
    longest = max(int(part.plan.lengths.max()) for part in drawn)
    without, section = None, record.get("reference")
    checkpoint = reopened(
        record["checkpoint"], model, sources.other, code=options.trust_remote_code
    )
    with ExitStack() as at_end:
        base: _Base | None = None
        if section is not None:
            try:
                base = _open_base(section, sources, options, longest)
            except Unreachable as error:
                without = str(error)
            else:
                at_end.callback(base.close)
                options = base.beside(options, drawn)
        engine = _built(checkpoint, options, record["engine"], longest)
        at_end.callback(engine.close)
        _check_ids(engine, drawn, model)
        total = sum(int(part.plan.lengths.sum()) for part in drawn) * (1 + (base is not None))
        parts = []
        for part in drawn:
            scores = _scored(engine, part, base, full, lambda tokens: progress(tokens, total))
            parts.append(part.renamed(scores))
        checkpoint.check_unchanged()
        identity, described = engine.identity(), engine.describe()
        of_base = {} if base is None else base.describe()
    joined = concatenate(parts)
    order = np.lexsort((joined.position, joined.window))
    columns = {name: column[order] for name, column in joined.columns().items()}
    return Again(Scores.from_columns(columns), identity, without, described, of_base)


def differing_conditions(record: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the record was made, of all that can move a score; in words."""
    then = {**record["engine"], **record.get("identity", {}).get("engine", {})}
    here, there = engine["device"], then.get("device") or {}
    words = [f"device {name} {there.get(name)} then, {here[name]} now"
             for name in ("type", "name", "threads") if there.get(name) != here[name]]  # fmt: skip
    words += differing_options(then, engine)
    own, theirs = versions(), record.get("versions", {})
    return words + [
        f"{name} {theirs.get(name)} then, {own[name]} now"
        for name in _COMPUTING
        if theirs.get(name) != own[name]
    ]


def differing_options(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The same of an engine's own settings, whatever machine it runs on."""
    return [
        f"{name} {then.get(name)} then, {here} now"
        for name, here in now.items()
        if name not in ("device", "torch") and then.get(name) != here
    ]


def _device_like(engine: Mapping[str, Any]) -> str | None:
    import torch

    if engine["device"]["type"] == "cuda" and torch.cuda.is_available():
        return "cuda"
    return "cpu"


def _check_ids(engine: Engine, drawn: Sequence[Drawn], model: str) -> None:
    largest = max(int(part.plan.tokens.max()) for part in drawn)
    if largest >= engine.vocabulary:
        raise UsageError(
            f"--against {model}: is another model: the run has token id {largest}, and its softmax "
            f"runs over {engine.vocabulary} entries"
        )


def _scored(
    engine: Engine,
    part: Drawn,
    base: "_Base | None",
    full: bool,
    progress: Callable[[float], None],
) -> Scores:
    schedule = part.schedule(engine.schedule(part.plan).pass_windows)
    extras = Extras()
    if base is not None:
        extras = Extras(base.reference(part, schedule.pass_windows, progress), full)
    parts: Iterator[Scores] = engine.score(part.plan, schedule, progress=progress, extras=extras)
    scores = concatenate(list(parts))
    check(scores, part.plan, range(len(part.plan)))
    return scores


class _Base:
    """A base to compare with: a model beside, or what is stored of it.

    Exactly one of `engine` and `stored` is there.
    """

    def __init__(self, engine: "BaseEngine | None", stored: "Reference | None"):
        self._engine, self._stored = engine, stored

    def beside(self, options: TorchOptions, drawn: Sequence[Drawn]) -> TorchOptions:
        if (engine := self._engine) is None:
            return options
        return options.sharing(lambda _: max(engine.held_bytes(part.plan) for part in drawn))

    def reference(
        self, part: Drawn, pass_windows: int, progress: Callable[[float], None]
    ) -> "Reference":
        if self._engine is None:
            assert self._stored is not None
            return _Rows(_in_order(self._stored, part), part)
        from scoremode.engines.torch.base_model import ModelReference

        schedule = part.schedule(pass_windows)
        return ModelReference(self._engine, part.plan, schedule, progress)

    def describe(self) -> dict[str, Any]:
        """What the engine says of itself, where there is one."""
        return {} if self._engine is None else self._engine.describe()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


def _in_order(stored: "Reference", part: Drawn) -> "Reference":
    """A stored base by the rows of the run's plan, whose windows may have been drawn."""
    from scoremode.reference.ordered import OrderedReference
    from scoremode.reference.stored import StoredReference

    if part.plan.planned is None or not isinstance(stored, StoredReference):
        return stored
    return OrderedReference(stored, part.plan.planned)


class _Rows:
    """A stored reference, asked for rows of a part of its plan."""

    def __init__(self, stored: "Reference", part: Drawn):
        self._stored, self._part = stored, part
        self.vocabulary, self.extra_sums = stored.vocabulary, stored.extra_sums

    def expect(self, spans: "Sequence[Span]", device: "torch.device") -> None:
        self._stored.expect(self._in_whole(spans), device)

    def logits(
        self, spans: "Sequence[Span]", device: "torch.device", tile: tuple[int, int]
    ) -> "Logits":
        return self._stored.logits(self._in_whole(spans), device, tile)

    def _in_whole(self, spans: "Sequence[Span]") -> "list[Span]":
        """The same rows in the whole plan: a micro-batch's windows follow one another there, too."""
        begins = [self._part.in_whole(begin) for begin, _ in spans]
        return [(at, at + end - begin) for at, (begin, end) in zip(begins, spans, strict=True)]


def _open_base(
    section: Mapping[str, Any], sources: Sources, options: TorchOptions, longest: int
) -> _Base:
    """The base of a record's section, with the cache that it had: before runs had caches in formats of
    their own, a base had the one that it declares, as its model. Raises Unreachable, ScoremodeError."""
    kind = section.get("kind")
    place = sources.base(section)
    if kind == "llama.cpp":
        if not place.is_file():
            raise Unreachable(f"there is no {place} here: --reference PATH says where it lies")
        from scoremode.llama_cpp.reference import LlamaCppReference

        return _Base(None, LlamaCppReference(place))
    from scoremode.reference.stored import StoredReference, is_run

    if kind == "stored" and is_run(place):
        return _Base(None, StoredReference(place))
    checkpoint, engine = section.get("checkpoint"), section.get("engine")
    if checkpoint is None or engine is None or kind == "stored":
        raise Unreachable(f"there is no reference in {place}: --reference PATH says where it lies")
    opened = open_checkpoint(sources.checkpoint(checkpoint, sources.reference, "--reference"))
    own = options_of(engine, options.device, trust_remote_code=options.trust_remote_code)
    return _Base(_built(opened, own, engine, longest), None)


def _built(
    checkpoint: "Checkpoint", options: TorchOptions, engine: Mapping[str, Any], longest: int
) -> "TorchEngine":
    """An engine with a record's options. Raises Unreachable where the model can't have them."""
    from scoremode.engines.torch.builder import build_engine

    try:
        return build_engine(checkpoint, options, engine["vocabulary"], longest)
    except UsageError as error:
        raise Unreachable(str(error)) from None

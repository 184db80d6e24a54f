"""The vLLM engine: a plan's windows through `ScoringLLM`, as any engine gives them back.

For a reference it reads the head of a base from the checkpoint, and proves that it belongs to the
states that the workers write.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Extras, Progress, Schedule
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.copies import Copies
from scoremode.engines.vllm.llm import ScoringLLM
from scoremode.engines.vllm.options import VllmOptions
from scoremode.engines.vllm.prompts import Against, Keep, PromptScores
from scoremode.engines.vllm.settings import variables
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.head.project import Head, score_rows
from scoremode.reference.base import OnDisk
from scoremode.reference.states import read_states
from scoremode.reference.stored import OrderedReference
from scoremode.reference.writer import HeadTensors, Keeper
from scoremode.results.scores import Scores, expected
from scoremode.results.statistics.agreement import LIMITS, logits_of
from scoremode.text.plan import Plan

# Window tokens of a pass: long enough that the pause after it, in which its part is written, is
# nothing, and short enough that a killed run has lost little.
_PASS_TOKENS = {"cpu": 8_192, "cuda": 131_072}
# How requests that begin alike go through it.
_APART = "apart: vLLM is given each by itself, and keeps no prefix of another"
# Enough to see a factor that is missing, and done in no time on a CPU.
_ROWS = 64


class VllmEngine:
    """A checkpoint in vLLM, ready to score windows no longer than those of `plan`.

    `vocabulary`: the softmax runs over the head's first so many entries, all if None or if it has
    fewer. Raises EngineError.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: VllmOptions,
        plan: Plan,
        vocabulary: int | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ):
        begin = time.perf_counter()
        self._checkpoint, self._options = checkpoint, options
        self._environment = variables()
        self._llm = ScoringLLM(
            str(checkpoint.path),
            # A window's last token is only a target.
            max_model_len=max(1, int(plan.lengths.max()) - 1),
            head_dtype=options.head_dtype,
            decode=options.decode,
            strict=options.strict,
            notify=notify,
            trust_remote_code=options.trust_remote_code,
            **({} if options.dtype == "auto" else {"dtype": options.dtype}),
            **options.arguments,
        )
        try:
            self._facts = self._llm.describe()
            self._copies = Copies(checkpoint, self._llm.ask)
            self.vocabulary = min(vocabulary or self._llm.entries, self._llm.entries)
        except BaseException:
            self._llm.close()
            raise
        self._tokens, self._reads_requests = 0, False
        self._seconds = {"load": time.perf_counter() - begin, "score": 0.0}
        self._head: HeadTensors | None = None
        self._is_proven = False
        self._head_before = self._llm.head_seconds()

    def schedule(self, plan: Plan) -> Schedule:
        """Whole steps of vLLM's scheduler, or groups of windows that are decoded together, so that a
        pass begins where one does."""
        longest = max(1, int(plan.lengths.max()) - 1)
        step = self._facts["max_num_batched_tokens"]
        batch = max(1, step // longest)
        if self._llm.together is not None:
            batch, step = self._llm.together, self._llm.together * longest
        tokens = _PASS_TOKENS[self._facts["device"]["type"]]
        if plan.conversation is not None:
            # vLLM groups them itself, and pads nothing.
            most = self._llm.together or len(plan)
            return Schedule(most, most, pass_tokens=max(tokens, step), batch_tokens=step, pads=True)
        return Schedule(max(1, tokens // (longest * batch)) * batch, batch)

    def score(
        self,
        plan: Plan,
        schedule: Schedule,
        first_pass: int = 0,
        progress: Progress | None = None,
        extras: Extras | None = None,
    ) -> Iterator[Scores]:
        extras = extras or Extras()
        self._reads_requests |= plan.protocol.text == "requests"
        limit = None if self.vocabulary == self._llm.entries else self.vocabulary
        # Scored while other nodes' files were being hashed.
        held: list[Scores] = []
        for number, windows in enumerate(schedule.passes(plan)[first_pass:], first_pass):
            begin = time.perf_counter()
            chosen = [plan[w] for w in windows]
            with self._kept(plan, windows, extras.keeper, number) as keep:
                answers = self._llm.score(
                    [w.inputs for w in chosen],
                    [w.targets for w in chosen],
                    # The target at position t follows input t - 1.
                    first=[w.first - 1 for w in chosen],
                    chosen=None if plan.counted is None else [w.scored - 1 for w in chosen],
                    vocabulary=limit,
                    entropy=False,
                    against=_against(plan, windows, extras),
                    keep=keep,
                )
                if keep is not None and not self._is_proven:
                    head, logits = self.head_tensors().head, logits_of(self.identity())
                    prove_states(head, keep.path, answers, logits, self._checkpoint.source)
                    self._is_proven = True
            self._seconds["score"] += time.perf_counter() - begin
            tokens = int(plan.lengths[windows.start : windows.stop].sum())
            self._tokens += tokens
            if progress:
                progress(float(tokens))
            held.append(_to_scores(answers, plan, windows))
            if self._copies.are_known(wait=False):
                yield from held
                held.clear()
        self._copies.are_known(wait=True)
        yield from held

    def head_tensors(self) -> HeadTensors:
        if self._head is None:
            options = TorchOptions(
                dtype=self._facts["dtype"],
                device="cpu",
                trust_remote_code=self._options.trust_remote_code,
            )
            self._head = read_head(self._checkpoint, options, self.vocabulary)
        return self._head

    def identity(self) -> dict[str, Any]:
        facts = self._facts
        return {
            "engine": "vllm",
            "torch": metadata.version("torch"),
            "arithmetic": "as deployed by vLLM",
            "vocabulary": self.vocabulary,
            **facts,
            "attention": ", ".join(facts["attention"]) or "none",
            "activations": {
                "declared": declared_activations(self._checkpoint.quantization or {}),
                "ran": ran(facts["quantized_inputs"]),
            },
            "arguments": {k: str(v) for k, v in sorted(self._options.arguments.items())},
            "environment": self._environment,
        }

    def describe(self) -> dict[str, Any]:
        # The workers' part of scoring that is not the model's layers.
        head = self._llm.head_seconds() - self._head_before
        seconds = self._seconds | {"score": self._seconds["score"] - head, "head": head}
        return {
            **self.identity(),
            **({"prefixes": _APART} if self._reads_requests else {}),
            **({"prefilled_targets": self._llm.prefilled} if self._options.decode else {}),
            "unused_tensors": [],
            "tokens": self._tokens,
            "seconds": {k: round(v, 3) for k, v in seconds.items()},
            "peak_bytes": self._llm.peak_bytes(),
        }

    def close(self) -> None:
        self._llm.close()

    @contextmanager
    def _kept(
        self, plan: Plan, windows: range, keeper: Keeper | None, number: int
    ) -> Iterator[Keep | None]:
        """A file for the states of `windows`, which is the keeper's when the block ends well."""
        if keeper is None:
            yield None
            return
        head = self._facts["head"]
        if head is None:
            raise EngineError(f"vLLM {self._facts['vllm']}: its own path keeps no states")
        offsets = plan.offsets[windows.start : windows.stop + 1] - plan.offsets[windows.start]
        rows, width, dtype = int(offsets[-1]), head["width"], head["dtype"]
        with keeper.states_file(number, rows, width, getattr(torch, dtype)) as path:
            yield Keep(path, rows, width, dtype, offsets[:-1].tolist())


def _against(plan: Plan, windows: range, extras: Extras) -> Against | None:
    if extras.reference is None:
        return None
    rows, reference = plan.offsets[windows.start : windows.stop].tolist(), extras.reference
    if isinstance(reference, OrderedReference):
        rows = [int(reference.rows(row, row + 1)[0]) for row in rows]
        reference = reference.stored
    if not isinstance(reference, OnDisk):
        raise EngineError(
            f"{type(reference).__name__}: vLLM's workers compare with a reference on disk: "
            "capture it first (scoremode reference)"
        )
    return Against(reference, rows, extras.full, extras.draft)


def _to_scores(answers: list[PromptScores], plan: Plan, windows: range) -> Scores:
    columns = expected(plan, windows)
    for name in ("target", "position"):
        got = np.concatenate([getattr(a, name) for a in answers])
        if not np.array_equal(got, columns[name]):
            raise InvalidMeasurement(f"vLLM scored other {name}s than the plan's")
    parts = [
        {
            "logprob": a.logprob.astype(np.float64),
            "top1": a.top1,
            "top1_logprob": a.top1_logprob.astype(np.float64),
            **({} if a.against is None else a.against.columns()),
        }
        for a in answers
    ]
    scored = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Scores.from_columns(columns | scored)


def read_head(checkpoint: Checkpoint, options: TorchOptions, vocabulary: int) -> HeadTensors:
    """The head as the checkpoint has it: vLLM's is split over ranks, and repacked for its kernels.

    - `options`: of a torch engine on the CPU, which computes nothing.

    Raises EngineError for a head whose input is not the final states, or of another vocabulary.
    """
    engine = build_engine(checkpoint, options, vocabulary)
    if engine.quantizes_head_input:
        raise EngineError(
            f"{checkpoint.source}: its head's inputs are quantized, which the states that vLLM gives "
            "are not: capture it with --engine torch"
        )
    if engine.vocabulary != vocabulary:
        raise EngineError(
            f"{checkpoint.source}: its head has {engine.vocabulary} entries, and vLLM's softmax runs "
            f"over {vocabulary}"
        )
    return engine.head_tensors()


def prove_states(
    head: Head, path: Path, answers: Sequence[PromptScores], logits: str, source: str
) -> None:
    """Raises EngineError unless the states in `path` and `head` give vLLM's log-probabilities again.

    - `answers`: those of the states' prompts, in the order of the rows.
    - `logits`: the dtype that vLLM rounded its logits to.

    A model that does more around its head than scale and cap its logits would leave a reference that
    nothing can be compared with, which is better known after a pass than after all.
    """
    states = read_states(path)[:_ROWS].clone()
    target, logprob = (
        np.concatenate([getattr(a, name) for a in answers])[: len(states)]
        for name in ("target", "logprob")
    )
    again = score_rows(head, states, torch.from_numpy(target.astype(np.int64)))
    apart = again.logprob.numpy() - logprob
    rms, limit = float(np.sqrt((apart**2).mean())), LIMITS[logits].rms
    if not rms <= limit:
        raise EngineError(
            f"{source}: its head, as the checkpoint has it, makes other log-probabilities of vLLM's "
            f"final states than vLLM does: {rms:.3g} nats apart (rms of {len(states)} targets; "
            f"{logits} logits explain {limit:g}): capture it with --engine torch"
        )


def ran(counts: Mapping[str, int]) -> str | None:
    """Sums up layers by `layer_activations`: "quantized", "not quantized", "mixed", "not known"; None
    where no layer is quantized."""
    seen = {kind for kind, count in counts.items() if count}
    if not seen:
        return None
    if "unknown" in seen:
        return "not known"
    return seen.pop() if len(seen) == 1 else "mixed"


def declared_activations(config: Mapping[str, Any]) -> str | None:
    """Says what a `quantization_config` declares, in its own words; None where it declares nothing."""
    groups = config.get("config_groups")
    if isinstance(groups, Mapping):
        chosen = [g for g in groups.values() if isinstance(g, Mapping)]
        formats = [g.get(k) for g in chosen for k in ("input_activations", "output_activations")]
        words = sorted({f"{f.get('type', '')}{f.get('num_bits', '')}" for f in formats if f})
        return ", ".join(words) or None
    method = str(config.get("quant_method") or "")
    if scheme := config.get("activation_scheme"):
        return f"{method} {scheme}"
    if method == "fbgemm_fp8":
        return "float8"
    whole = config.get("global_quant_config")
    if isinstance(whole, Mapping) and isinstance(inputs := whole.get("input_tensors"), Mapping):
        return str(inputs.get("dtype") or "quantized")
    nested = config.get("quantization")
    algorithm = config.get("quant_algo") or (
        nested.get("quant_algo") if isinstance(nested, Mapping) else None
    )
    if algorithm and "A16" not in str(algorithm) and "WEIGHT_ONLY" not in str(algorithm):
        return str(algorithm)
    return None

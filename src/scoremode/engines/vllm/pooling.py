"""Scoring by the plugin: the pooler in the workers, made sure of before it is believed."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.plugin import scoring_models
from scoremode.engines.vllm.prompts import KEY, Kind, Prompt, ScoreRequest
from scoremode.engines.vllm.scoring import Mismatch, ScoringEngine
from scoremode.engines.vllm.settings import Settings, environment
from scoremode.engines.vllm.signatures import check_signatures, v2_scores
from scoremode.errors import EngineError, InvalidMeasurement


class PoolingEngine(ScoringEngine):
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
            self._test(settings.longest)
        except BaseException:
            self.close()
            raise

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

"""A logits processor that leaves a request one choice a step, by vLLM's public interface for the V1
runner; `run_engine.py` generates with it, and with nothing of ours."""

from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor


class Forced(AdapterLogitsProcessor):
    """Every request's next token is that of its `extra_args["forced"]`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        forced = params.extra_args["forced"]

        def force(output: list[int], logits: torch.Tensor) -> torch.Tensor:
            logits.fill_(-torch.inf)
            logits[forced[len(output)]] = 0.0
            return logits

        return force

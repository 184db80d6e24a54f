"""The head of a base in vLLM, for a reference, and the proof that it belongs to the states that the
workers write.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.engine import build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.prompts import PromptScores
from scoremode.errors import EngineError
from scoremode.head.project import Head, score_rows
from scoremode.reference.states import read_states
from scoremode.reference.writer import HeadTensors
from scoremode.results.statistics.agreement import LIMITS

__all__ = ["prove_states", "read_head"]

# Enough to see a factor that is missing, and done in no time on a CPU.
_ROWS = 64


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

"""Scoring in decode steps: vLLM generates each window, and its choice is the window's own next token.

The prompt of a window is what comes before the token that is scored after first, at least one token.
The rest goes through vLLM's decode kernels, a token a step beside those of the other windows, with its
KV cache and, on a GPU, its CUDA graphs. The workers score each step (`workers/steps.py`). Windows go in
groups of as many as run together, so that every run has the same batches. A group that does not fit
into the KV cache makes vLLM compute tokens of some windows again, together, which is counted.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoremode.engines.vllm.prompts import Kind, Prompt, ScoreRequest
from scoremode.engines.vllm.scoring import Mismatch, ScoringEngine
from scoremode.engines.vllm.settings import Settings, kv_cache_bytes, stored_dtype
from scoremode.engines.vllm.signatures import DECODING, check_signatures
from scoremode.errors import EngineError, InvalidMeasurement

# Windows that are decoded together, and tokens of all of them: fixed numbers, not what a GPU has free,
# since a bf16 score depends on its batch. 131,072 tokens of an 8B model's cache are 17 GB.
_TOGETHER = {"cuda": (256, 131_072), "cpu": (32, 65_536)}
# Tokens of a step, which only a long prompt needs.
_BATCHED_TOKENS = {"cuda": 16_384, "cpu": 2_048}
# Tokens that a sequence's last block of the cache may be larger by.
_BLOCK = 64


@dataclass(frozen=True)
class DecodeSettings(Settings):
    """vLLM's settings for decoding windows: its own, but for memory and batches that are the same every
    time."""

    def arguments(self, device: str, *, room: int) -> dict[str, Any]:
        given, dtype, longest = self.given, stored_dtype(self.config), self.longest + room
        most, tokens = _TOGETHER[device]
        sequences = int(given.get("max_num_seqs") or max(1, min(most, tokens // longest)))
        ranks, stages = (
            int(given.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline")
        )
        ours: dict[str, Any] = {
            # Workers on other nodes run in other folders.
            "model": str(self.folder.absolute()),
            "max_model_len": longest,
            "max_num_batched_tokens": max(_BATCHED_TOKENS[device], longest, sequences),
            "max_num_seqs": sequences,
            "dtype": dtype,
            # A part of the cache that one run filled would be no other's.
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            # Else the model's own penalties and limits take part.
            "generation_config": "vllm",
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if device == "cpu" and stages == 1:
            ours["enforce_eager"] = True
        if not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(given):
            needed = kv_cache_bytes(
                self.config,
                sequences * (longest + _BLOCK),
                tensor_ranks=ranks,
                stages=stages,
                width=4 if (given.get("dtype") or dtype) == "float32" else 2,
            )
            if needed is not None:
                ours["kv_cache_memory_bytes"] = needed
        return ours | dict(given)


class DecodingEngine(ScoringEngine):
    """A vLLM whose decode steps are scored. Raises Mismatch where that does not fit, EngineError."""

    path = "decode steps"

    def __init__(self, settings: DecodeSettings):
        import vllm

        if problems := check_signatures(Path(str(vllm.__file__)).parent, DECODING):
            raise Mismatch("; ".join(problems))
        for name in ("speculative_config", "logits_processors", "enable_batch_sharded_sampling"):
            if settings.given.get(name):
                raise EngineError(f"{name}: decode steps are scored where each samples one token")
        # For the last target, which is sampled and never goes through the model.
        super().__init__(settings, room=1, runner="generate")
        self.prefilled = 0
        try:
            self.ask("scoremode_score_steps", settings.head_dtype)
            self._test(settings.longest)
        except BaseException:
            self.close()
            raise

    @property
    def together(self) -> int:
        """The most windows that are decoded together."""
        return int(self.llm.llm_engine.vllm_config.scheduler_config.max_num_seqs)

    def describe(self) -> dict[str, Any]:
        config = self.llm.llm_engine.vllm_config
        mode = config.compilation_config.cudagraph_mode
        return {
            **super().describe(),
            "phase": "decode",
            "cuda_graphs": getattr(mode, "name", str(mode)),
            "enable_prefix_caching": bool(config.cache_config.enable_prefix_caching),
        }

    def _encode(self, prompts: Sequence[Prompt], kind: Kind) -> list[NDArray[np.float32]]:
        groups = [prompts[i : i + self.together] for i in range(0, len(prompts), self.together)]
        return [rows for group in groups for rows in self._replay(group, kind)]

    def _replay(self, prompts: Sequence[Prompt], kind: Kind) -> list[NDArray[np.float32]]:
        from vllm import SamplingParams

        asked = [(i, p) for i, p in enumerate(prompts) if len(p.expected)]
        wholes = [p.whole for _, p in asked]
        requests = [
            ScoreRequest(whole[1:], p.first, p.row, p.place, kind, p.chosen, index=i)
            for (i, p), whole in zip(asked, wholes, strict=True)
        ]
        begins = [r.prompt_tokens for r in requests]
        # What an earlier call left behind when it failed.
        self.ask("scoremode_take_steps")
        with self.working():
            outputs = self.llm.generate(
                [
                    {"prompt_token_ids": whole[:n].tolist()}
                    for whole, n in zip(wholes, begins, strict=True)
                ],
                [
                    SamplingParams(
                        temperature=0.0,
                        max_tokens=len(whole) - n,
                        ignore_eos=True,
                        detokenize=False,
                        extra_args=request.to_extra(),
                    )
                    for request, whole, n in zip(requests, wholes, begins, strict=True)
                ],
                use_tqdm=False,
            )
        if len(outputs) != len(wholes):
            raise InvalidMeasurement(f"vLLM answered {len(outputs)} of {len(wholes)} windows")
        for whole, n, output in zip(wholes, begins, outputs, strict=True):
            check_replayed(whole, n, list(output.prompt_token_ids), output.outputs[0].token_ids)
        return self._taken(len(prompts), kind)

    def _taken(self, count: int, kind: Kind) -> list[NDArray[np.float32]]:
        """The workers' rows, [N, columns of `kind`] of each of `count` prompts, in the order of their
        steps."""
        (taken,) = (a for a in self.ask("scoremode_take_steps") if a is not None)
        index = np.frombuffer(taken[0], "<i4")
        rows = np.frombuffer(taken[1], "<f4").reshape(len(index), len(kind.columns))
        self.prefilled += taken[2]
        order = np.argsort(index, kind="stable")
        return np.split(rows[order], np.searchsorted(index[order], np.arange(1, count)))


def check_replayed(
    whole: NDArray[np.int32], begin: int, prompt: Sequence[int], sampled: Sequence[int]
) -> None:
    """Raises InvalidMeasurement unless vLLM's books have the window `whole` for one request: `prompt`
    its first `begin` tokens, and `sampled` all others.

    A worker that took a row for another request's, or for another place, would have made vLLM sample
    another token there.
    """
    got = np.array([*prompt, *sampled], np.int64)
    if len(prompt) != begin or len(got) != len(whole):
        raise InvalidMeasurement(
            f"vLLM decoded {len(sampled)} tokens after {len(prompt)}, where {len(whole) - begin} after "
            f"{begin} were asked"
        )
    if (wrong := got != whole).any():
        at = int(np.flatnonzero(wrong)[0])
        raise InvalidMeasurement(
            f"vLLM took token {got[at]} at position {at} of a window whose token there is {whole[at]}"
        )

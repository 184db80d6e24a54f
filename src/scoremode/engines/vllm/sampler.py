"""Replies by vLLM's own offline `generate`: continuous batching, a seed a request.

Tokens go in and come out as ids; nothing of ours takes part in the sampling. vLLM batches requests as
they fit, and a logit depends on its batch in the last bits, so a seed promises a token only where both
sides of a draw are clear.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.sampling import Reply, Sampling, SamplingRequest, reply_of
from scoremode.engines.vllm.settings import Settings, kv_cache_bytes, stored_dtype
from scoremode.engines.vllm.start import Started, require_plugin, vllm_version
from scoremode.errors import EngineError

# Replies that are asked for together, and written before the next ones begin.
_TOGETHER = 256
# Replies that a CPU works on at once.
_SEQUENCES = 32


@dataclass(frozen=True)
class VllmSampling:
    """Settings of vLLM; `arguments`: the user's own keywords of `vllm.LLM`."""

    dtype: str = "auto"
    trust_remote_code: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def identity(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Facts that may move a token, beside versions of libraries. Raises EngineError without
        vLLM."""
        require_plugin()
        dtype = stored_dtype(checkpoint.config) if self.dtype == "auto" else self.dtype
        arguments = {name: self.arguments[name] for name in sorted(self.arguments)}
        return {"engine": "vllm", "vllm": vllm_version(), "dtype": dtype, "arguments": arguments}

    def open(
        self, checkpoint: Checkpoint, longest: int, sampling: Sampling, ends: frozenset[int]
    ) -> "VllmSampler":
        """The model, started; `longest`: tokens of the longest prompt with its reply. Raises
        EngineError."""
        require_plugin()
        given = dict(self.arguments)
        if self.dtype != "auto":
            given["dtype"] = self.dtype
        if self.trust_remote_code:
            given["trust_remote_code"] = True
        settings = _Generating(checkpoint.path, checkpoint.config, longest, "model", given)
        return VllmSampler(settings, sampling, ends)


@dataclass(frozen=True)
class _Generating(Settings):
    """vLLM's settings for generation: its own choices of memory and batches, unlike for scoring."""

    def arguments(self, device: str, *, room: int) -> dict[str, Any]:
        ours: dict[str, Any] = {
            "model": str(self.folder),
            "max_model_len": self.longest + room,
            "dtype": stored_dtype(self.config),
            "skip_tokenizer_init": True,
            # Else the model's own penalties and limits take part.
            "generation_config": "vllm",
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if device == "cpu":
            ours |= {"enforce_eager": True} | self._cache()
        return ours | dict(self.given)

    def _cache(self) -> dict[str, int]:
        """Room for keys and values on a CPU, of whose memory vLLM would take nearly all."""
        if {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(self.given):
            return {}
        width = 4 if (self.given.get("dtype") or stored_dtype(self.config)) == "float32" else 2
        needed = kv_cache_bytes(
            self.config, _SEQUENCES * self.longest, tensor_ranks=1, stages=1, width=width
        )
        return (
            {} if needed is None else {"kv_cache_memory_bytes": needed, "max_num_seqs": _SEQUENCES}
        )


class VllmSampler(Started):
    """A vLLM that replies; `ends`: ids at which it stops. Raises EngineError."""

    def __init__(self, settings: Settings, sampling: Sampling, ends: frozenset[int]):
        super().__init__(settings, room=0, runner="generate")
        self._sampling, self._ends = sampling, ends

    def batches(self, requests: Sequence[SamplingRequest]) -> list[list[int]]:
        places = range(len(requests))
        return [list(places[i : i + _TOGETHER]) for i in range(0, len(requests), _TOGETHER)]

    def replies(self, batch: Sequence[SamplingRequest]) -> list[Reply]:
        from vllm import SamplingParams

        sampling = self._sampling
        with self.working():
            params = [
                SamplingParams(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k or -1,
                    max_tokens=sampling.max_new_tokens,
                    seed=one.seed,
                    stop_token_ids=sorted(self._ends),
                    ignore_eos=True,
                    detokenize=False,
                )
                for one in batch
            ]
            outputs = self.llm.generate(
                [{"prompt_token_ids": one.ids.tolist()} for one in batch], params, use_tqdm=False
            )
        if len(outputs) != len(batch):
            raise EngineError(f"vLLM answered {len(outputs)} of {len(batch)} prompts")
        replies = [reply_of(output.outputs[0].token_ids, self._ends) for output in outputs]
        for reply, output in zip(replies, outputs, strict=True):
            reason = output.outputs[0].finish_reason
            if reason != ("stop" if reply.ended else "length"):
                raise EngineError(
                    f"vLLM ended a reply of {len(reply.ids)} tokens by {reason!r}, and its last token "
                    f"{'ends' if reply.ended else 'does not end'} a turn"
                )
        return replies

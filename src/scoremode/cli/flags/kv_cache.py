"""The flags of a KV cache's format, and what each engine makes of them."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from scoremode.engines.kv_formats import AS_DECLARED, AS_IT_IS, KvCache, parse_kv_cache
from scoremode.errors import UsageError

__all__ = ["add_kv_cache", "add_kv_scales", "torch_cache", "vllm_cache"]

# vLLM's names of the caches that both engines have.
_VLLM_CACHES = {
    "f16": "float16", "bf16": "bfloat16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
    "fp8_e4m3-token": "fp8_per_token_head", "int8-token": "int8_per_token_head", "nvfp4": "nvfp4",
}  # fmt: skip


def add_kv_cache(group: argparse._ArgumentGroup) -> None:
    """The flag of both engines."""
    group.add_argument(
        "--kv-cache",
        type=_named,
        metavar="FORMAT",
        help="keys and values as they are (none, the default), rounded to the checkpoint's "
        "kv_cache_scheme (as-declared, which vllm always does), or to a format: fp8_e4m3, fp8_e5m2, "
        "int8, int4-g32, q8_0, q4_0, nvfp4 … or k=int8,v=int4-g32, against a base without (see "
        "docs/kv-cache.md)",
    )


def add_kv_scales(group: argparse._ArgumentGroup) -> None:
    """The torch engine's alone."""
    group.add_argument(
        "--kv-scales",
        metavar="FILE",
        help="safetensors file with each layer's k_scale and v_scale, for formats with one a tensor or "
        "a head (default: measured on the text's first windows)",
    )


def _named(text: str) -> str:
    """A cache's formats by the one name that each has. Raises UsageError."""
    return text if text in (AS_DECLARED, AS_IT_IS) else str(parse_kv_cache(text))


def torch_cache(name: str | None, scales: str | None) -> "Literal['none', 'as-declared'] | KvCache":
    """The torch engine's option for both flags' values. Raises UsageError."""
    name = name or AS_IT_IS
    if name not in (AS_DECLARED, AS_IT_IS):
        return replace(parse_kv_cache(name), scales=scales)
    if scales is not None:
        raise UsageError(f"--kv-scales {scales}: goes with --kv-cache FORMAT")
    return cast(Literal["none", "as-declared"], name)


def vllm_cache(name: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's keyword for a cache of that name. Raises UsageError for what it has not."""
    if name in (None, AS_DECLARED):
        return {}
    if name == AS_IT_IS:
        raise UsageError(
            "--kv-cache none: vLLM applies what the checkpoint declares; --kv-cache bf16 stores keys "
            "and values as they are"
        )
    if "kv_cache_dtype" in arguments:
        raise UsageError(
            f"--kv-cache {name}: --engine-arg kv_cache_dtype={arguments['kv_cache_dtype']} says another"
        )
    if name not in _VLLM_CACHES:
        raise UsageError(f"--kv-cache {name}: vLLM has {', '.join(_VLLM_CACHES)} for keys and values; "
                         "its others go by --engine-arg kv_cache_dtype=")  # fmt: skip
    return {"kv_cache_dtype": _VLLM_CACHES[name]}

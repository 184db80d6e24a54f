"""A decoder layer's intermediates for windows of many tokens: what grows with the window, and what with
the chunk that goes together through parts that take each token by itself.

Counted from the config as the library's layers hold them, phase by phase; the largest is what counts.
"""

from dataclasses import astuple, dataclass
from typing import Any

import torch

from scoremode.engines.torch.model.attention import block_of, slides


@dataclass(frozen=True)
class Activations:
    """Bytes of a layer beside its input: the larger of what its two halves hold.

    - `attention`, `gated`: for each token of the window, whatever the chunk.
    - `attention_chunk`, `gated_chunk`: for each token of a chunk, or of a window that has none.
    - `pair`: for every two positions of a window; `chunked_pair`: with chunks.
    - `block`: of a block of sliding attention.
    """

    attention: int
    attention_chunk: int
    gated: int
    gated_chunk: int
    pair: int = 0
    chunked_pair: int = 0
    block: int = 0

    def bytes(self, windows: int, length: int, chunk: int | None) -> int:
        """Bytes of so many windows of `length` tokens that go through a layer together."""
        together = length if chunk is None else min(chunk, length)
        attention = length * self.attention + together * self.attention_chunk
        gated = length * self.gated + together * self.gated_chunk
        pair = self.pair if chunk is None else self.chunked_pair
        pairs = pair * length**2 + (0 if chunk is None else self.block)
        return windows * (max(attention, gated) + pairs)


def activations(config: Any, dtype: torch.dtype, attention: str, **how: bool) -> Activations:
    """The intermediates of the widest layer; `how`: as `_of_layer` takes it.

    Where layers have heads of their own (Gemma 4's full and sliding ones), the most of each kind.
    """
    found = [_of_layer(layer, dtype, attention, **how) for layer in _layers(config)]
    return Activations(*(max(column) for column in zip(*map(astuple, found), strict=True)))


def widest_head(config: Any) -> int:
    """The most entries of a query's head."""
    return max(
        _head_width(layer, config.hidden_size, getattr(layer, "num_attention_heads", None) or 1)
        for layer in _layers(config)
    )


def _layers(config: Any) -> list[Any]:
    # The library raises for an attribute of a layer that is asked of the whole.
    return config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]


def _of_layer(
    config: Any,
    dtype: torch.dtype,
    attention: str,
    *,
    fused: bool,
    quantized: bool,
    rounds_cache: bool = False,
    attends_apart: bool = False,
    narrow_values: bool = False,
    whole: bool = False,
) -> Activations:
    """A layer's intermediates.

    - `fused`: norms, gates and rotations are kernels, which hold nothing between.
    - `quantized`: linears quantize their inputs; `whole`: by what a whole window says.
    - `rounds_cache`: keys and values are rounded as a cache would hold them.
    - `attends_apart`: with chunks, attention has no mask of the whole window, and no scores.
    - `narrow_values`: without chunks no kernel takes its heads.
    """
    width, size = config.hidden_size, dtype.itemsize
    heads = getattr(config, "num_attention_heads", None) or 1
    head = _head_width(config, width, heads)
    queries = heads * head
    attended = _attended(config, size, queries, heads, fused=fused, rounds_cache=rounds_cache)
    # Tables of cosines and sines, in float32 first.
    tables = (2 * size + 4) * head
    # A norm in float32, step by step.
    norm = 0 if fused else 12 * width
    gated = size * _gated(config, width, fused=fused)
    if quantized:
        # Codes, and float32 sums of the widest product.
        norm += (size + 4) * max(queries, width)
        gated += (size + 4) * inner_width(config, width)
    if getattr(config, "model_type", None) == "llama4_text":
        # The library gives each expert a copy of all tokens: inputs, outputs and weighted outputs.
        gated += 4 * size * width * config.num_local_experts
    gated = max(gated, norm)
    # The sum with the residual, its norm, and the gated product's result; of a kernel the next sum.
    around = size * width * (4 if fused else 3)
    parts = (attended + tables, norm, around + tables, gated)
    if whole:
        parts = (attended + tables + norm, 0, around + tables + gated, 0)
    pair = _pair(config, dtype, attention, heads)
    if narrow_values and attention == "sdpa":
        # Scores in float32, and those that are masked; the mask.
        pair = 8 * heads + 4
    block = _block(config, size, queries) if attends_apart else 0
    return Activations(*parts, pair, 0 if attends_apart else pair, block)


def _attended(
    config: Any, size: int, queries: int, heads: int, *, fused: bool, rounds_cache: bool
) -> int:
    """Bytes of a token in the first half of a layer; `queries`: entries of all of its heads."""
    width = config.hidden_size
    keys = (getattr(config, "num_key_value_heads", None) or heads) * (queries // heads)
    if getattr(config, "kv_lora_rank", None) is not None:
        # Keys of all heads, each made of two parts that are put together.
        keys = queries
    # Beside each other: normed states, queries, keys, values, and those rotated; where no kernel
    # does it, both products and the turned halves as well.
    rotating = 2 * queries + 3 * keys
    if not fused:
        rotating = max(4 * queries + 2 * keys, 2 * queries + 5 * keys)
    # The product of the attention, once as it comes and once as the projection takes it.
    attending = 3 * queries + 2 * keys
    if not fused and queries != keys:
        # Keys and values of all heads, where no kernel shares them.
        attending += 2 * queries
    projecting = width + 2 * queries + 2 * keys
    attended = size * (width + max(rotating, attending, projecting))
    if not rounds_cache:
        return attended
    return max(attended, size * (width + queries + 3 * keys) + 4 * 4 * keys)


def _gated(config: Any, width: int, *, fused: bool) -> int:
    """Entries of a token in the second half of a layer, its result among them."""
    inner = inner_width(config, width)
    # Gates and ups, and their product where no kernel makes it in place.
    entries = (2 if fused else 3) * inner + width
    if (experts := getattr(config, "num_experts_per_tok", None)) is not None:
        # Each expert's result, and their sum.
        entries = max(entries, (max(_sizes(experts)) + 2) * width + inner)
    return entries


def _block(config: Any, size: int, queries: int) -> int:
    """Bytes of a block of sliding attention: its mask, made and as numbers, and keys and values."""
    if not slides(config):
        return 0
    queried, seen = block_of(getattr(config, "sliding_window", None) or 1)
    return queried * seen * (3 + size) + size * queries * (2 * seen + queried)


def _pair(config: Any, dtype: torch.dtype, attention: str, heads: int) -> int:
    """Bytes for every pair of positions of a window."""
    if attention == "eager":
        # Scores in float32, and step by step in the compute dtype, a sink among them; their mask.
        return heads * (4 + 3 * dtype.itemsize) + dtype.itemsize
    if attention == "sdpa" and slides(config):
        # A mask of truth values with those that it is made of; the same as numbers for the kernel.
        return max(4, 1 + dtype.itemsize)
    return 0


def _head_width(config: Any, width: int, heads: int) -> int:
    """Entries of a query's head."""
    if getattr(config, "kv_lora_rank", None) is not None:
        return (getattr(config, "qk_nope_head_dim", 0) or 0) + config.qk_rope_head_dim
    return getattr(config, "head_dim", None) or width // heads


def inner_width(config: Any, width: int) -> int:
    """Entries that a token has between the linears of a gated product, of all its experts."""
    inner = max(_sizes(getattr(config, "intermediate_size", None) or 4 * width))
    if (experts := getattr(config, "moe_intermediate_size", None)) is not None:
        chosen = getattr(config, "num_experts_per_tok", None) or 1
        inner = max(inner, max(_sizes(experts)) * max(_sizes(chosen)))
    return inner


def _sizes(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)

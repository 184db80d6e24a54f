"""Headers of GGUF files of small models, made by hand: metadata and tensors' names and shapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.checkpoint.gguf.facts import Facts
from scoremode.checkpoint.gguf.header import GgufHeader, GgufTensor

HIDDEN, HEADS, KEYS, INNER, VOCAB = 64, 4, 2, 96, 80
LLAMA = {
    "token_embd.weight": (VOCAB, HIDDEN),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_v.weight": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (INNER, HIDDEN),
    "blk.0.ffn_up.weight": (INNER, HIDDEN),
    "blk.0.ffn_down.weight": (HIDDEN, INNER),
}
_METADATA = {
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "block_count": 1,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KEYS,
}
# Architectures whose norms take the mean away first, and have their constant under another name.
_MEAN_FIRST = (
    *("command-r", "cohere2", "stablelm", "starcoder2", "gpt2"),
    *("falcon", "bloom", "gptneox", "phi2", "olmo", "nemotron", "starcoder", "jais2"),
)


def header(
    architecture: str = "llama",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
    types: Mapping[str, str] | None = None,
) -> GgufHeader:
    """A header with this metadata below the architecture's name; None takes a key away."""
    epsilon = f"attention.layer_norm_{'' if architecture in _MEAN_FIRST else 'rms_'}epsilon"
    said = {**_METADATA, epsilon: float(np.float32(1e-5)), **(metadata or {})}
    own = {f"{architecture}.{key}": value for key, value in said.items()}
    known = {"general.architecture": architecture, "general.name": "tiny", **own}
    return GgufHeader(
        {key: value for key, value in known.items() if value is not None},
        [
            GgufTensor(name, Path("a.gguf"), (types or {}).get(name, "F32"), shape, 0, 0)
            for name, shape in (LLAMA if tensors is None else tensors).items()
        ],
    )


def facts(
    metadata: Mapping[str, Any] | None = None, values: Mapping[str, np.ndarray] | None = None
) -> Facts:
    """Facts with this metadata, and these values of tensors."""
    head = header(metadata=metadata)
    found = {tensor.name: tensor for tensor in head.tensors}
    for name, array in (values or {}).items():
        found[name] = GgufTensor(name, Path("a.gguf"), "F32", array.shape, array.nbytes, 0)

    class Given(Facts):
        def values(self, name: str) -> np.ndarray:
            assert values is not None
            return values[name].astype(np.float32)

    return Given(head, "llama", found)

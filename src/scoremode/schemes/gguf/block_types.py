"""ggml's block types by name."""

from scoremode.schemes.gguf.k_quants import K_QUANTS
from scoremode.schemes.gguf.legacy import LEGACY

__all__ = ["BLOCK_TYPES"]

BLOCK_TYPES = {kind.name: kind for kind in (*LEGACY, *K_QUANTS)}

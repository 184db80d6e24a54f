"""ggml's block types by name."""

from scoremode.schemes.gguf.four_bit import FOUR_BIT
from scoremode.schemes.gguf.i_quants import I_QUANTS
from scoremode.schemes.gguf.k_quants import K_QUANTS
from scoremode.schemes.gguf.legacy import LEGACY
from scoremode.schemes.gguf.ternary import TERNARY

__all__ = ["BLOCK_TYPES"]

BLOCK_TYPES = {kind.name: kind for kind in (*LEGACY, *K_QUANTS, *I_QUANTS, *FOUR_BIT, *TERNARY)}

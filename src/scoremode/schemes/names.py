"""Which modules a name in a config means: exact names, `re:` patterns, and fused modules.

Engines fuse some linears into one, and configs written for an engine may use the fused name where the
checkpoint has the parts, or the other way round.
"""

import re
from functools import lru_cache

__all__ = ["EMBEDDINGS", "matches", "parts_of"]

# Last components of embeddings' names; every other module with a quantized weight is a linear.
EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings"}

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def matches(module: str, pattern: str) -> int | None:
    """0 for the exact name, 1 for a `re:` pattern (matched from the start), None for neither.

    A part is also matched by the name of what it is fused into. A pattern that matches one of the
    parts is about parts, though: `re:.*v_proj` fits `qkv_proj` by accident and says nothing of
    `q_proj`.
    """
    if pattern == module:
        return 0
    whole = _whole(module)
    if pattern == whole:
        return 0
    if not pattern.startswith("re:"):
        return None
    if re.match(pattern[3:], module):
        return 1
    if (
        whole is not None
        and re.match(pattern[3:], whole)
        and not any(re.match(pattern[3:], part) for part in parts_of(whole))
    ):
        return 1
    return None


@lru_cache(maxsize=1 << 16)
def parts_of(module: str) -> tuple[str, ...]:
    """The names of the linears that are fused into `module`, none if it isn't fused."""
    parent, dot, last = module.rpartition(".")
    return tuple(f"{parent}{dot}{part}" for part in _FUSED.get(last, ()))


@lru_cache(maxsize=1 << 16)
def _whole(module: str) -> str | None:
    """The name of what `module` is fused into."""
    parent, dot, last = module.rpartition(".")
    return next((f"{parent}{dot}{name}" for name, parts in _FUSED.items() if last in parts), None)

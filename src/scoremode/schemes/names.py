"""Names of modules: which are embeddings, and which are fused of others.

Engines fuse some linears into one, and configs written for an engine may use the fused name where the
checkpoint has the parts, or the other way round.
"""

__all__ = ["EMBEDDINGS", "parts_of", "whole_of"]

# Last components of embeddings' names; every other module with a quantized weight is a linear.
EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings"}

_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_WHOLE = {part: whole for whole, parts in _FUSED.items() for part in parts}


def parts_of(module: str) -> tuple[str, ...]:
    """The names of the linears that are fused into `module`, none if it isn't fused."""
    parent, dot, last = module.rpartition(".")
    return tuple([f"{parent}{dot}{part}" for part in _FUSED.get(last, ())])


def whole_of(module: str) -> str | None:
    """The name of what `module` is fused into, None if it is no part."""
    parent, dot, last = module.rpartition(".")
    whole = _WHOLE.get(last)
    return None if whole is None else f"{parent}{dot}{whole}"

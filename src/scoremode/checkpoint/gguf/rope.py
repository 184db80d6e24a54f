"""Rotary positions: what a GGUF file says of them, as the library's `rope_parameters`.

Most of it are keys. Llama 3's scaling is a tensor `rope_freqs` alone, what each frequency is divided
by, and its parameters are found from that; Phi's are two such tensors.
"""

import math
from typing import Any

import numpy as np

from scoremode.checkpoint.gguf.facts import Facts, integer, real, shown
from scoremode.errors import CheckpointError, UnsupportedModel

__all__ = ["FACTOR_TENSORS", "rope_parameters"]

_FREQS = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
# Tensors whose values end up in the config.
FACTOR_TENSORS = frozenset((_FREQS, _LONG, _SHORT))
_THETA = 10000.0
# Of 1 / factor, computed in float32 by who wrote it: the power alone is off by 1e-6.
_TOLERANCE = 4e-6


def rope_parameters(facts: Facts, head_dim: int, *, partial: bool = False) -> dict[str, Any]:
    """The config's field, for heads of `head_dim`; `partial`: whether a part of each may rotate.

    Raises UnsupportedModel for a scaling that the library has not, CheckpointError for what can't be.
    """
    theta = facts.get(real("rope.freq_base", _THETA))
    rotated = facts.get(integer("rope.dimension_count", head_dim))
    if not 0 < rotated <= head_dim or rotated % 2 or theta <= 1:
        raise CheckpointError(
            f"rotates {rotated} of a head's {head_dim} values (rope.dimension_count), base {theta:g}"
        )
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if partial:
        found["partial_rotary_factor"] = _share(rotated, head_dim)
    elif rotated != head_dim:
        raise UnsupportedModel(
            f"rotates {rotated} of a head's {head_dim} values (rope.dimension_count), which the "
            "library's model can't: not supported"
        )
    return found | _scaling(facts, theta, rotated)


def _share(rotated: int, head_dim: int) -> float:
    """Of which the library makes `rotated` again, which it rounds down."""
    share = rotated / head_dim
    return share if int(head_dim * share) == rotated else math.nextafter(share, 1)


def _scaling(facts: Facts, theta: float, rotated: int) -> dict[str, Any]:
    facts.ignore(("rope.scaling.finetuned",))
    kind = facts.text("rope.scaling.type", "linear")
    # 0 as llama.cpp reads it: none. The second key is how files of 2023 have it.
    factor = facts.get(real("rope.scaling.factor", 0.0)) or facts.get(
        real("rope.scale_linear", 0.0)
    )
    factor = 1.0 if kind == "none" else factor or 1.0
    original = facts.get(integer("rope.scaling.original_context_length", None))
    attention = facts.get(real("rope.scaling.attn_factor", 1.0))
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedModel(f"rope.scaling.type is {shown(kind)}: not supported")
    if factor < 0 or attention <= 0 or (original is not None and original < 1):
        raise CheckpointError(
            f"rope.scaling.factor {factor:g}, attn_factor {attention:g} or "
            f"original_context_length {original} is none"
        )
    if _LONG in facts.tensors or _SHORT in facts.tensors:
        return _longrope(facts, original, attention, rotated)
    if kind == "longrope":
        raise CheckpointError(f"rope.scaling.type is longrope, and there is no tensor {_LONG}")
    freqs = facts.values(_FREQS) if _FREQS in facts.tensors else np.ones(0, np.float32)
    scaled = bool((freqs != 1).any())
    if kind == "yarn" and not scaled:
        return _yarn(facts, factor, original, attention)
    if attention != 1:
        raise UnsupportedModel(
            f"rope.scaling.attn_factor is {attention:g}, and no yarn: not supported"
        )
    if scaled and factor != 1:
        raise UnsupportedModel(
            f"both {_FREQS} and a rope.scaling.factor of {factor:g}: not supported"
        )
    if scaled:
        return _llama3(freqs.astype(np.float64), theta, rotated)
    return {} if factor == 1 else {"rope_type": "linear", "factor": factor}


def _yarn(facts: Facts, factor: float, original: int | None, attention: float) -> dict[str, Any]:
    """Source: transformers' `_compute_yarn_parameters`; llama.cpp's context makes the same factor of
    attention, times `attn_factor`."""
    usual = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    said = facts.get(real("rope.scaling.yarn_attn_factor", None))
    if said is not None and not math.isclose(said, usual, rel_tol=1e-6):
        raise UnsupportedModel(
            f"rope.scaling.yarn_attn_factor is {said:g}, where yarn by {factor:g} has {usual:g}: the "
            "library takes it, llama.cpp does not; not supported"
        )
    facts.expect(real("rope.scaling.yarn_ext_factor"), 1.0)
    found = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original or facts.get(integer("context_length")),
        "beta_fast": facts.get(real("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": facts.get(real("rope.scaling.yarn_beta_slow", 1.0)),
    }
    if min(found["beta_fast"], found["beta_slow"]) <= 0:
        raise CheckpointError("rope.scaling.yarn_beta_fast or yarn_beta_slow is not above 0")
    return found if attention == 1 else found | {"attention_factor": attention * usual}


def _longrope(facts: Facts, original: int | None, attention: float, rotated: int) -> dict[str, Any]:
    factors = {}
    for name, key in ((_SHORT, "short_factor"), (_LONG, "long_factor")):
        if name not in facts.tensors:
            raise CheckpointError(f"there is no tensor {name}, beside the other of its kind")
        values = facts.values(name)
        if len(values) != rotated // 2 or (values <= 0).any():
            raise CheckpointError(f"tensor {name} is not {rotated // 2} positive factors")
        factors[key] = [float(str(value)) for value in values]
    if original is None:
        raise CheckpointError(
            f"{_LONG}, and the metadata has no rope.scaling.original_context_length"
        )
    return factors | {
        "rope_type": "longrope",
        "attention_factor": attention,
        "original_max_position_embeddings": original,
    }


def _llama3(factors: np.ndarray, theta: float, rotated: int) -> dict[str, Any]:
    """Parameters that give the factors [rotated / 2] back.

    By frequency they are 1, then 1 / ((1 − s) / factor + s) for an s that falls linearly from 1 to 0,
    then `factor`. That leaves one of three free: `low_freq_factor` is 1 as in all models known.
    """
    if len(factors) != rotated // 2 or (factors < 1).any():
        raise CheckpointError(f"tensor {_FREQS} is not {rotated // 2} factors of 1 or more")
    frequencies = theta ** (-2.0 * np.arange(rotated // 2) / rotated)
    factor = float(factors.max())
    between = (factors > 1 + _TOLERANCE) & (factors < factor * (1 - _TOLERANCE))
    turns = frequencies[between] / (2 * math.pi)
    smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
    for high, original in _candidates(turns, smooth):
        share = np.clip((original * frequencies / (2 * math.pi) - 1) / (high - 1), 0, 1)
        if np.abs((1 - share) / factor + share - 1 / factors).max() <= _TOLERANCE:
            return {
                "rope_type": "llama3",
                "factor": float(str(np.float32(factor))),
                "low_freq_factor": 1.0,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise UnsupportedModel(
        f"tensor {_FREQS} holds factors up to {factor:g} that are not those of Llama 3's scaling: "
        "not supported"
    )


def _candidates(turns: np.ndarray, smooth: np.ndarray) -> list[tuple[float, int]]:
    """Possible high_freq_factor and original_max_position_embeddings: `smooth` is
    (original · turns − 1) / (high − 1)."""
    if len(turns) > 1:
        slope = (smooth[0] - smooth[-1]) / (turns[0] - turns[-1])
        offset = smooth[0] - slope * turns[0]
        high = round(1 - 1 / float(offset), 3) if offset < 0 else 0.0
        original = float(slope) * (high - 1)
        return [(high, round(original))] if high > 1 and math.isfinite(original) else []
    if len(turns) == 1:
        return [(4.0, round((3 * float(smooth[0]) + 1) / float(turns[0])))]
    return [(4.0, 1 << bits) for bits in range(24, 3, -1)]

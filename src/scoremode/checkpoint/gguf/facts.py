"""Facts of a model in a GGUF file: metadata by key, typed and checked, and its tensors by name.

Each key of the architecture's own that is asked for is noted, so that those nobody asked for can be
refused: one that is not known may be what moves every number. So may one of a namespace that nobody
knows: Ternary-Bonsai's weights are multiplied by Hadamard's matrix, which `prism.hadamard.*` alone
says, and llama.cpp computes other numbers without a word.

Rotary positions: what a GGUF file says of them, as the library's `rope_parameters`.

Most of it are keys. Llama 3's scaling is a tensor `rope_freqs` alone, what each frequency is divided
by, and its parameters are found from that; Phi's are two such tensors.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scoremode.checkpoint.config import TRANSFORM
from scoremode.checkpoint.gguf.header import GgufHeader, GgufTensor
from scoremode.errors import CheckpointError, UnsupportedModel

# Namespaces beside the architecture's own of which no key changes what a weight is.
_HARMLESS = (
    "general.",  # what the file is, who made it of what, how to sample from it
    "tokenizer.",  # read where the vocabulary is, and refused there
    "split.",  # which of several files this is
    "quantize.imatrix.",  # the text that importances were measured on
    "imatrix.",  # the same, of newer files
    "clip.",  # an encoder of images or sound beside the model
    "training.",  # how far a fine-tuning had come
    "mradermacher.",  # who quantized it, when and on which machine
)
# Last words of keys whose text says where a file comes from, in whoever's namespace.
_PROVENANCE = re.compile(
    r"\b(author|comment|commit|copyright|created|creator|date|description|doi|homepage|license|name|"
    r"note|notes|organization|repo|repository|sha256|source|timestamp|url|uuid|version|"
    r"[a-z]+_(at|by|date|note|on|time|url|version))$"
)
# Keys of an architecture's own by which llama.cpp does nothing where they are zero.
_NONE_AT_ZERO = (
    *("attention.sliding_window", "attention.max_alibi_bias", "attention.clamp_kqv"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
    *("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
)
# A default for what a file must say.
REQUIRED: Any = object()
# Tensors whose values are read for the config are a few numbers each.
_MOST_VALUES = 1 << 20
_MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Key:
    """A key of the metadata below the architecture's name, its type, and what it is if not there."""

    name: str
    type: type
    default: Any = REQUIRED


def integer(name: str, default: Any = REQUIRED) -> Key:
    return Key(name, int, default)


def real(name: str, default: Any = REQUIRED) -> Key:
    return Key(name, float, default)


def flag(name: str, default: Any = REQUIRED) -> Key:
    return Key(name, bool, default)


@dataclass(frozen=True)
class Facts:
    """The metadata and tensors of a file, or of all files of a split.

    - `config`: the fields found so far, which what follows from several is made of.
    """

    header: GgufHeader
    architecture: str
    tensors: Mapping[str, GgufTensor]
    config: dict[str, Any] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)

    @property
    def layers(self) -> int:
        """The number of blocks. Raises CheckpointError for one that no model has."""
        count = self.get(integer("block_count"))
        if not 0 < count <= _MOST_LAYERS:
            raise CheckpointError(f"{self.architecture}.block_count is {count}")
        return count

    def has(self, name: str) -> bool:
        """Tells whether there is such a tensor, or one in the first layer: `attn_q.bias`."""
        return name in self.tensors or f"blk.0.{name}" in self.tensors

    def says(self, key: str) -> bool:
        """Tells whether the metadata has the key below the architecture's name."""
        return f"{self.architecture}.{key}" in self.header.metadata

    def is_list(self, key: str) -> bool:
        """Tells whether the key has a list of values."""
        value = self.header.metadata.get(f"{self.architecture}.{key}")
        return isinstance(value, np.ndarray | list)

    def get(self, key: Key) -> Any:
        """The value of a key, its default where there is none.

        One value for each layer counts as one if all are the same. A float32 is the shortest decimal
        number that it stands for: 1e-05, not 9.999999747378752e-06. Raises CheckpointError for one that
        is missing or of another type, UnsupportedModel for layers that differ.
        """
        name = f"{self.architecture}.{key.name}"
        self._asked.add(name)
        if name not in self.header.metadata:
            if key.default is REQUIRED:
                raise CheckpointError(f"the metadata has no {name}")
            return key.default
        value = self.header.metadata[name]
        if isinstance(value, np.ndarray):
            if value.size != self._blocks() or (value != value[0]).any():
                raise UnsupportedModel(
                    f"{name} is {shown(value)}, not one value for all layers: not supported"
                )
            value = value[0].item()
        if key.type is float and isinstance(value, int | float) and not isinstance(value, bool):
            return _shortest(name, float(value))
        if type(value) is not key.type:
            raise CheckpointError(f"{name} is {shown(value)}, not {_TYPES[key.type]}")
        return value

    def text(self, key: str, default: str) -> str:
        """The string of a key. Raises CheckpointError for another type."""
        return self.get(Key(key, str, default))

    def expect(self, key: Key, *allowed: Any) -> None:
        """Raises UnsupportedModel for a value that is none of `allowed`; missing is allowed too."""
        value = self.get(Key(key.name, key.type, None))
        if value is not None and value not in allowed:
            known = " or ".join(map(str, allowed))
            raise UnsupportedModel(
                f"{self.architecture}.{key.name} is {shown(value)}: only {known} is supported"
            )

    def per_layer(self, key: Key) -> list[Any] | None:
        """The values of a key that has one for each layer, None where it is not there.

        Raises CheckpointError for another number of them.
        """
        name = f"{self.architecture}.{key.name}"
        value = self.header.metadata.get(name)
        self._asked.add(name)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != self._blocks():
            raise CheckpointError(f"{name} is {shown(value)}, not a value for each layer")
        values = value.tolist()
        if type(values[0]) is not key.type:
            raise CheckpointError(f"{name} is {shown(value)}, not {_TYPES[key.type]} each")
        return values

    def ignore(self, keys: Iterable[str]) -> None:
        """Notes keys that move no number of this architecture."""
        self._asked.update(f"{self.architecture}.{key}" for key in keys)

    def unasked(self) -> list[str]:
        """Keys that nothing has asked for, but for those known to change no weight's meaning."""
        return sorted(set(filter(self._may_matter, self.header.metadata)) - self._asked)

    def _may_matter(self, key: str) -> bool:
        value, own = self.header.metadata[key], f"{self.architecture}."
        if key.startswith(own):
            is_zero = type(value) in (int, float) and not value
            return not (is_zero and key.removeprefix(own) in _NONE_AT_ZERO)
        if TRANSFORM.search(key):
            return True
        says_origin = isinstance(value, str) and _PROVENANCE.search(key.lower())
        return not (says_origin or key.startswith(_HARMLESS))

    def values(self, name: str) -> np.ndarray:
        """float32: the values of a small F32 tensor. Raises CheckpointError."""
        tensor = self.tensors[name]
        count = math.prod(tensor.shape)
        if tensor.type != "F32" or count > _MOST_VALUES or tensor.bytes != 4 * count:
            raise CheckpointError(
                f"{tensor.file}: tensor {name} is {tensor.type} {list(tensor.shape)}, not a few F32"
            )
        try:
            with tensor.file.open("rb", buffering=0) as file:
                file.seek(tensor.begin)
                content = file.read(tensor.bytes)
        except OSError as error:
            raise CheckpointError(f"{tensor.file}: {error.strerror}") from None
        if len(content) != tensor.bytes:
            raise CheckpointError(f"{tensor.file}: tensor {name}: the file has become shorter")
        found = np.frombuffer(content, "<f4")
        if not np.isfinite(found).all():
            raise CheckpointError(f"{tensor.file}: tensor {name} has values that are not finite")
        return found

    def _blocks(self) -> int:
        count = self.header.metadata.get(f"{self.architecture}.block_count")
        return count if type(count) is int and count > 0 else -1


def _shortest(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise CheckpointError(f"{name} is {value}, not a finite number")
    with np.errstate(over="ignore"):
        single = np.float32(value)
    return float(str(single)) if float(single) == value else value


_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}


def shown(value: Any) -> str:
    """A value of the metadata in a message, however long it is."""
    if isinstance(value, np.ndarray | list):
        first = ", ".join(shown(one) for one in list(value[:8]))
        return f"a list ([{first}{', …' if len(value) > 8 else ''}])"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 80 else f"{text[:80]}…"


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
    """The fraction of which the library makes `rotated` again, rounding down."""
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

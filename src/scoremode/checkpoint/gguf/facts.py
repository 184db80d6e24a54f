"""What a GGUF file says of its model: metadata by key, typed and checked, and its tensors by name.

Each key of the architecture's own that is asked for is noted, so that those nobody asked for can be
refused: one that is not known may be what moves every number. So may one of a namespace that nobody
knows: Ternary-Bonsai's weights are multiplied by Hadamard's matrix, which `prism.hadamard.*` alone
says, and llama.cpp computes other numbers without a word.
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

__all__ = ["REQUIRED", "Facts", "Key", "flag", "integer", "real", "shown"]

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

"""The base of libraries' own readings of a checkpoint, and what is asked of their config elsewhere."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.base import Scheme
from scoremode.schemes.fields import TensorFormat, UnreadCache
from scoremode.schemes.layout import Layout, Linear


class Declared(Protocol):
    """A parsed `quantization_config`.

    - `kv_cache`: how keys and values are declared to be quantized, None if nothing is said.
    """

    @property
    def kv_cache(self) -> TensorFormat | UnreadCache | None: ...

    def claims(self, module: str) -> bool:
        """Tells whether the linear `module` must be quantized: stored dense it is an error."""
        ...


@dataclass(frozen=True)
class TensorsDecide:
    """A parsed config that says nothing of a cache, and whose linears are what they are stored as."""

    @property
    def kv_cache(self) -> None:
        return None

    def claims(self, module: str) -> bool:
        """False: a linear without a quantized one's tensors is dense."""
        return False


Config = TypeVar("Config", bound=Declared)
_Scheme = TypeVar("_Scheme", bound=Scheme)
# `looks_by` of all libraries → whose they are.
_LOOKS: dict[str, str] = {}


def looks_like(suffixes: Iterable[str]) -> str | None:
    """The library whose tensors these are, by their suffixes; None if nothing tells."""
    return next((_LOOKS[suffix] for suffix in sorted(suffixes) if suffix in _LOOKS), None)


class Library(ABC, Generic[Config]):
    """The quantized modules of a checkpoint, as one library stores them.

    It is made of the checkpoint and its `quantization_config`.

    - `methods`: what its configs have as `quant_method`, in lower case; `method`: its name in errors.
    - `about`: its row in docs/formats.md: what one sees of it, what is read, what is computed.
    - `told`: fields, all of a set, by which a config without a `quant_method` is known for its own.
    - `looks`: its name where tensors alone tell it, by `looks_by`, suffixes that no other library has.
    - `parse`: reads a `quantization_config`. It raises UnsupportedFormat for what is not decoded,
      CheckpointError for what can't be understood.
    - `marks`: suffixes of tensors that are there only where their module is quantized; `required`: the
      one that every quantized checkpoint has.
    - `on_load`: whether the library quantizes a dense checkpoint while it loads it.
    - `experts`: names of tensors of experts that are stored as one; its first group is their parameter.
    - `untold`: what its tensors alone tell, and what `promise` takes instead; None if nothing.
      `untold_by` is the same of one config.
    - `stacks`: whether experts that the model has as one are stored as one.
    - `embeds`: whether `promise` is asked of the embedding as well.
    - `records`: suffixes of tensors that hold nothing of their module's weight, such as how it is
      stored, or scales of a cache.
    - `splits`: linears that a model may have as one and that are stored in parts, by their last names;
      outputs in this order.
    """

    methods: ClassVar[frozenset[str]]
    about: ClassVar[tuple[str, str, str]]
    told: ClassVar[tuple[set[str], ...]] = ()
    looks: ClassVar[str] = ""
    looks_by: ClassVar[tuple[str, ...]] = ()
    parse: ClassVar[Callable[[Mapping[str, Any]], Any]]
    method: ClassVar[str] = ""
    marks: ClassVar[frozenset[str]]
    required: ClassVar[str | None] = None
    on_load: ClassVar[bool] = False
    experts: ClassVar[re.Pattern[str] | None] = None
    untold: ClassVar[str | None] = None
    stacks: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    records: ClassVar[frozenset[str]] = frozenset()
    splits: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _LOOKS.update(dict.fromkeys(cls.looks_by, cls.looks))

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self.checkpoint = checkpoint
        self.config: Config = self.read(config)
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[Hashable, Any] = {}

    def read(self, config: Mapping[str, Any]) -> Config:
        """Reads the checkpoint's `quantization_config`."""
        return type(self).parse(config)

    @classmethod
    def split(cls, name: str) -> tuple[str, str]:
        """A tensor's module, and the suffix by which the module's Scheme knows the tensor.

        Of experts stored as one the module is their parameter, and the suffix the last of the tensor's
        name: `experts.gate_up_proj` and `gate_up_proj_scales`.
        """
        module, _, suffix = name.rpartition(".")
        found = cls.experts.fullmatch(name) if cls.experts else None
        return (found[1] if found else module), suffix

    @classmethod
    def untold_by(cls, config: Mapping[str, Any]) -> str | None:
        return cls.untold

    def check(self) -> None:
        """Raises UnsupportedFormat for a checkpoint that the config calls quantized, and that has no
        quantized tensor; CheckpointError for tensors that contradict the config."""
        suffix = self.required
        if suffix and not any(self.split(name)[1] == suffix for name in self.checkpoint.tensors):
            why = "not decoded"
            if self.on_load:
                why = "a dense checkpoint that is quantized as it is loaded is not supported"
            raise UnsupportedFormat(f"{self.method}, and no tensor is a {suffix}: {why}")

    @abstractmethod
    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        """The Scheme of a quantized module, a Stacked of experts stored as one, and the name of what in
        the config claims it.

        `tensors` are headers by suffix. Raises UnsupportedFormat or CheckpointError, naming the module.
        """

    def promise(self, linear: Linear) -> Layout | None:
        """The tensors that a linear would be stored in by the config alone; None where it stays dense.

        Raises as `scheme` does, and UnsupportedFormat where only tensors tell.
        """
        raise UnsupportedFormat(
            f"quantization method {min(self.methods)!r} is read, and what it means for a module is "
            "known from its tensors alone"
        )

    def alike(self, key: Hashable, make: Callable[[], _Scheme]) -> _Scheme:
        """The Scheme that modules with this key share, made for the first of them."""
        if key not in self._alike:
            self._alike[key] = make()
        return self._alike[key]

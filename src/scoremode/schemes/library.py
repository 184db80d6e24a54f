"""The base of libraries' own readings of a checkpoint, and what is asked of their config elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.schemes.base import Scheme
from scoremode.schemes.fields import TensorFormat, UnreadCache
from scoremode.schemes.foreseen import Foresee

__all__ = ["Declared", "Library", "TensorsDecide"]


class Declared(Protocol):
    """A parsed `quantization_config`.

    - `kv_cache`: how keys and values are declared to be quantized, None if nothing is said.
    """

    @property
    def kv_cache(self) -> TensorFormat | UnreadCache | None: ...

    def claims(self, module: str) -> bool:
        """Tells whether the linear `module` must be quantized: stored dense it is an error."""
        ...


class TensorsDecide:
    """A parsed config that says nothing of a cache, and whose linears are what they are stored as."""

    @property
    def kv_cache(self) -> None:
        return None

    def claims(self, module: str) -> bool:
        """False: a linear without a quantized one's tensors is dense."""
        return False


class Library(ABC):
    """The quantized modules of a checkpoint, as one library stores them.

    It is made of the checkpoint and its `quantization_config`, which raises UnsupportedFormat for a
    config that is not decoded, CheckpointError for one that can't be understood.

    - `methods`: what its configs have as `quant_method`, in lower case.
    - `marks`: suffixes of tensors that are there only where their module is quantized.
    - `untold`: what its tensors alone tell, and what `foresee` takes instead; None if nothing.
      `untold_by` is the same of one config.
    - `stacks`: whether experts that the model has as one are stored as one.
    - `embeds`: whether `foresee` is asked of the embedding as well.
    - `records`: suffixes of tensors that hold nothing of their module's weight, such as how it is
      stored, or scales of a cache.
    - `splits`: linears that a model may have as one and that are stored in parts, by their last names;
      outputs in this order.
    """

    methods: ClassVar[frozenset[str]]
    marks: ClassVar[frozenset[str]]
    untold: ClassVar[str | None] = None
    stacks: ClassVar[bool] = False
    embeds: ClassVar[bool] = False
    records: ClassVar[frozenset[str]] = frozenset()
    splits: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]): ...

    @property
    @abstractmethod
    def config(self) -> Declared: ...

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        """A tensor's module, and the suffix by which the module's Scheme knows the tensor.

        Of experts stored as one the module is their parameter, and the suffix the last of the tensor's
        name: `experts.gate_up_proj` and `gate_up_proj_scales`.
        """
        module, _, suffix = name.rpartition(".")
        return module, suffix

    @classmethod
    def untold_by(cls, config: Mapping[str, Any]) -> str | None:
        return cls.untold

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee | None:
        """What linears would be stored as by the config alone; None where that isn't known here.

        `model` is the language model's config. Raises as the library itself does.
        """
        return None

    @abstractmethod
    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        """The Scheme of a quantized module, a Stacked of experts stored as one, and the name of what in
        the config claims it.

        `tensors` are headers by suffix. Raises UnsupportedFormat or CheckpointError, naming the module.
        """

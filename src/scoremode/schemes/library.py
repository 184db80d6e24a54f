"""Protocols of a library's own `quantization_config`: what is asked of it outside its folder."""

from collections.abc import Mapping
from typing import Protocol

from scoremode.checkpoint.header import TensorInfo
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["Declared", "Library"]


class Declared(Protocol):
    """A parsed `quantization_config`.

    - `kv_cache`: how keys and values are declared to be quantized, None if nothing is said.
    """

    @property
    def kv_cache(self) -> TensorFormat | None: ...

    def claims(self, module: str) -> bool:
        """Tells whether the linear `module` must be quantized: stored dense it is an error."""
        ...


class Library(Protocol):
    """A library's reading of one checkpoint.

    - `marks`: suffixes of tensors that are there only where their module is quantized.
    """

    @property
    def config(self) -> Declared: ...
    @property
    def marks(self) -> frozenset[str]: ...

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[FactoredScheme, str]:
        """The Scheme of a quantized module, and the name of what in the config claims it.

        `tensors` are headers by suffix. Raises UnsupportedFormat or CheckpointError, naming the module.
        """
        ...

"""The input embedding, of which windows need a few rows at a time."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from scoremode.schemes.base import Scratch, TableScheme

__all__ = ["PackedTable", "Table", "embed_from"]


class Table(Protocol):
    """What is asked of a table [V, D]; a tensor is one."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def is_cuda(self) -> bool: ...

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor: ...


class PackedTable:
    """A table in packed `tensors` by suffix, all in one place, of which wanted rows are decoded."""

    def __init__(
        self, scheme: TableScheme, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
    ):
        self.shape = tuple(scheme.shape)
        self.is_cuda = all(tensor.is_cuda for tensor in tensors.values())
        self._scheme, self._tensors, self._dtype = scheme, tensors, dtype
        self._scratch = Scratch()

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor:
        """[n, D] of the rows `index` int64 [n]; `dim` is 0."""
        assert dim == 0
        rows = {name: tensor.index_select(0, index) for name, tensor in self._tensors.items()}
        out = torch.empty((len(index), self.shape[1]), dtype=self._dtype, device=index.device)
        self._scheme.of_rows(len(index)).decode(rows, out, self._scratch)
        return out


def embed_from(
    table: Table, embedding: torch.nn.Module, dtype: torch.dtype, device: torch.device
) -> None:
    """Gives `embedding`, before every look-up, just the rows of its ids, in `dtype`.

    - `table` [V, D], as it is stored: on `device` or on the host, where a model's whole size may be
      more than the device has room for.

    A large vocabulary's table in the compute dtype would be the largest thing in memory, for a few
    thousand rows of it.
    """

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (ids,) = args
        rows, places = _find(table, ids)
        weight = rows.to(dtype)
        module._parameters["weight"] = torch.nn.Parameter(weight, requires_grad=False)
        return (places,)

    def forget(module: torch.nn.Module, args: Any, out: torch.Tensor) -> None:
        module._parameters["weight"] = placeholder

    # Some models look at the weight's device before they use it.
    nothing = torch.zeros((1, table.shape[1]), dtype=dtype, device=device)
    placeholder = torch.nn.Parameter(nothing, requires_grad=False)
    embedding._parameters["weight"] = placeholder
    # It says which row gets no gradient, and torch refuses one beyond the few rows that are there:
    # gpt-oss has its padding at 199,999, SmolLM2 at 2.
    if isinstance(embedding, torch.nn.Embedding):
        embedding.padding_idx = None
    embedding.register_forward_pre_hook(hook)
    embedding.register_forward_hook(forget)


def _find(table: Table, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the ids, where these are, and each one's place among them."""
    if table.is_cuda:
        # Finding out which ids are there twice would have the device wait.
        rows = table.index_select(0, ids.reshape(-1))
        return rows, torch.arange(len(rows), device=ids.device).view(ids.shape)
    distinct, places = torch.unique(ids.cpu(), return_inverse=True)
    rows = table.index_select(0, distinct.view(-1))
    return rows.to(ids.device), places.to(ids.device)

"""Layouts: how a GGUF file stores a tensor otherwise than the library's parameter has it.

llama.cpp's converter moves rows for its own kernels, and a row keeps its blocks, so that moving them
back is exact on packed rows as on dense ones. Source: `conversion/` of llama.cpp, by architecture.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """What is undone to a stored tensor [O, …], first the order of its outputs.

    - `turns`: of so many heads the halves that a rotation pairs take turns, row by row; the library has
      one half after the other. 0 for none.
    - `groups`: queries, keys and values lie one after the other; the library has them in so many
      groups, of queries and then a key's and a value's head each of `head_dim` rows. 0 for none.
    - `less`: what values are stored plus: norms that the library adds one to hold the sum. Exact for
      any weight that one was added to in float32.
    - `transposed`: whether the library's parameter is [I, O].
    - `row`: whether it is [1, I], of which llama.cpp's tools keep [I] alone.
    """

    turns: int = 0
    groups: int = 0
    head_dim: int = 0
    less: float = 0.0
    transposed: bool = False
    row: bool = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The library's shape of what is stored in this one. Raises ValueError where it can't be."""
        if self.turns and (not stored or stored[0] % (2 * self.turns)):
            raise ValueError(f"{list(stored)} has no pairs of halves for {self.turns} heads")
        if self.groups and (not stored or stored[0] % (self.groups * self.head_dim)):
            raise ValueError(
                f"{list(stored)} is not {self.groups} groups of heads of {self.head_dim}"
            )
        if self.row and len(stored) == 1:
            return (1, *stored)
        return tuple(reversed(stored)) if self.transposed else stored

    def apply(self, stored: "torch.Tensor") -> "torch.Tensor":
        """The rows of `stored` [O, …], packed bytes or values, in the library's order.

        Moves whole rows alone: `less` and `transposed` are of values, and for who has decoded them.
        """
        import torch

        if self.turns:
            halves = stored.view(self.turns, -1, 2, *stored.shape[1:])
            return halves.transpose(1, 2).reshape(stored.shape)
        if self.groups:
            heads = stored.view(-1, self.head_dim, *stored.shape[1:])
            queries, keys, values = heads.split(
                (len(heads) - 2 * self.groups, self.groups, self.groups)
            )
            queries = queries.view(self.groups, -1, *heads.shape[1:])
            grouped = torch.cat((queries, keys.unsqueeze(1), values.unsqueeze(1)), dim=1)
            return grouped.reshape(stored.shape)
        return stored[None] if self.row and stored.dim() == 1 else stored

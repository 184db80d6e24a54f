"""DeepSeek's `kv_b_proj` of a GGUF file, which has it in two tensors, each of all heads.

llama.cpp multiplies queries with the keys' part and outputs with the values', a head at a time, and its
converter stores them for that: `k_b_proj` [H, I, K], each head's transposed, and `v_b_proj` [H, V, I].
The library's parameter is [H · (K + V), I]: of each head the keys' rows and then the values'.
"""

from collections.abc import Mapping, Sequence

import torch

from scoremode.engines.torch.weights.sources import Source
from scoremode.errors import CheckpointError
from scoremode.schemes.base import Scratch

__all__ = ["PARTS", "Heads"]

# The last name of the library's module → the parts', keys first.
PARTS = {"kv_b_proj": ("k_b_proj", "v_b_proj")}


class Heads:
    """A Scheme whose outputs are, head by head, those of a transposed part and then those of another.

    Its tensors are those of the parts, under their full names. Raises CheckpointError where the parts
    are no such two.
    """

    inputs = None

    def __init__(self, parts: Sequence[Source]):
        self._keys, self._values = parts
        shapes = [tuple(part.scheme.shape) for part in parts]
        if any(len(shape) != 3 for shape in shapes):
            raise CheckpointError(f"{self} are not stored head by head")
        (heads, inputs, keys), (others, values, width) = shapes
        if (heads, inputs) != (others, width):
            raise CheckpointError(
                f"{self}, of shapes {list(shapes[0])} and {list(shapes[1])}, don't fit each other"
            )
        self.label = " + ".join(sorted({part.scheme.label for part in parts}))
        self.tensors = tuple(name for part in parts for name in part.tensor_names().values())
        self.shape = (heads * (keys + values), inputs)

    def __str__(self) -> str:
        return f"{self._keys.module} and {self._values.module}"

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        keys, values = (
            self._decoded(part, f"heads' {role}", tensors, out, scratch)
            for part, role in ((self._keys, "keys"), (self._values, "values"))
        )
        by_head = out.view(len(keys), -1, out.shape[1])
        by_head[:, : keys.shape[2]].copy_(keys.transpose(1, 2))
        by_head[:, keys.shape[2] :].copy_(values)

    @staticmethod
    def _decoded(
        part: Source,
        role: str,
        tensors: Mapping[str, torch.Tensor],
        like: torch.Tensor,
        scratch: Scratch,
    ) -> torch.Tensor:
        dense = scratch.get(role, tuple(part.scheme.shape), like.dtype, like.device)
        own = {suffix: tensors[name] for suffix, name in part.tensor_names().items()}
        part.scheme.decode(own, dense, scratch)
        return dense

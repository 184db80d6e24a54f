"""Where stored weights lie while an engine runs, and how much of the embedding is there."""

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.filling import Filling
from scoremode.engines.torch.slot import Slot
from scoremode.schemes.dense import Dense

__all__ = ["Resident", "embed_rows_on_demand"]


class Resident:
    """Where packed tensors are read from: a GPU keeps them if half of its memory holds them all."""

    def __init__(self, device: Device, checkpoint_bytes: int):
        self._device = device
        self.keeps = device.is_cuda and checkpoint_bytes <= device.memory // 2
        self._kept: dict[str, torch.Tensor] = {}

    def get(self, name: str, index: int | None, checkpoint: Checkpoint) -> torch.Tensor:
        """The tensor on the device; with an `index` only that entry of its first axis."""
        if self.keeps:
            if name not in self._kept:
                self._kept[name] = checkpoint.read(name).to(self._device.torch)
            whole = self._kept[name]
            return whole if index is None else whole[index]
        tensor = checkpoint.read(name)
        return (tensor if index is None else tensor[index]).to(self._device.torch)


def embed_rows_on_demand(
    embedding: torch.nn.Module,
    checkpoint: Checkpoint,
    filling: Filling,
    dtype: torch.dtype,
    slot: Slot,
) -> None:
    """Before every look-up, gives `embedding` just the rows of its ids, in `dtype`.

    A large vocabulary's table in the compute dtype would be the largest thing in memory, for a few
    thousand rows of it.
    """
    table = (
        checkpoint.read(f"{filling.source}.{filling.scheme.name}")
        if isinstance(filling.scheme, Dense)
        else slot.own(filling).cpu()
    )

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        (ids,) = args
        rows, inverse = torch.unique(ids.cpu(), return_inverse=True)
        weight = table.index_select(0, rows.view(-1)).to(device=ids.device, dtype=dtype)
        module._parameters["weight"] = torch.nn.Parameter(weight, requires_grad=False)
        return (inverse.to(ids.device),)

    # Some models look at the weight's device before they use it.
    placeholder = table.new_zeros((1, table.shape[1]), dtype=dtype, device=slot.device)
    embedding._parameters["weight"] = torch.nn.Parameter(placeholder, requires_grad=False)
    embedding.register_forward_pre_hook(hook)

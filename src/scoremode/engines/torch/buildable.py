"""Tells without its weights whether a checkpoint's model can be built and each parameter be filled."""

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.device import Device, choose_dtype
from scoremode.engines.torch.matmul.arithmetic import Arithmetic
from scoremode.engines.torch.model.build import build_skeleton
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.errors import ScoremodeError
from scoremode.schemes.resolve import resolve

__all__ = ["why_not"]


def why_not(checkpoint: Checkpoint, device: Device) -> str | None:
    """Returns why the engine would refuse the model before it reads a weight; None if it would not.

    It goes the engine's own way as far as headers lead: the library's class, and the map of all
    parameters to tensors of the right shape.
    """
    try:
        dtype = choose_dtype("auto", checkpoint, device)
        schemes = resolve(checkpoint)
        skeleton = build_skeleton(checkpoint, dtype, torch.device("cpu"), trust_remote_code=False)
        WeightMap(skeleton, checkpoint, schemes, Arithmetic("auto", schemes, device))
    except ScoremodeError as error:
        return str(error)
    return None

"""The parts of a torch engine, as its builder hands them over, and what they say of themselves."""

from dataclasses import dataclass
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.clock import DeviceClock
from scoremode.engines.torch.device import Device
from scoremode.engines.torch.fused.modules import Fused
from scoremode.engines.torch.kv_cache.caches import FormatCaches
from scoremode.engines.torch.matmul.arithmetic import Arithmetic
from scoremode.engines.torch.memory.budget import Memory
from scoremode.engines.torch.memory.feeder import Feeds
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.torch.passes.chunks import Chunks
from scoremode.engines.torch.passes.layers import Layers
from scoremode.engines.torch.passes.ways import Way
from scoremode.engines.torch.weights.experts import Experts
from scoremode.engines.torch.weights.head import HeadInput, head_names
from scoremode.engines.torch.weights.kv_cache import LayerCache
from scoremode.engines.torch.weights.map import WeightMap
from scoremode.engines.torch.weights.slot import Slot
from scoremode.head.project import Head
from scoremode.reference.keeper import HeadTensors
from scoremode.schemes.resolve import Schemes

__all__ = ["Parts"]


@dataclass(frozen=True, eq=False)
class Parts:
    """A checkpoint's model, taken apart and ready to run.

    - `memory`: of the device, with what the model takes there and each token of a pass.
    - `caches`: one a layer, none where keys and values stay as they are; `formats`: the same where they
      are in formats that the user named.
    - `chunks`: what runs parts of the layers over some tokens of a long window at a time.
    - `way`: how a pass goes through the layers.
    - `head_input`: what the head is given of the final states, None for the states themselves.
    """

    checkpoint: Checkpoint
    options: TorchOptions
    device: Device
    dtype: torch.dtype
    clock: DeviceClock
    schemes: Schemes
    arithmetic: Arithmetic
    skeleton: Skeleton
    fused: Fused
    weights: WeightMap
    slot: Slot
    experts: Experts
    caches: list[LayerCache]
    formats: FormatCaches | None
    feeds: Feeds
    memory: Memory
    layers: Layers
    chunks: Chunks
    way: Way
    head: Head
    head_input: HeadInput | None

    @property
    def model_name(self) -> str:
        """The model's class, for errors."""
        return type(self.skeleton.model).__name__

    @property
    def is_exact(self) -> bool:
        """True of float32 in which no inputs and no caches are quantized."""
        is_plain = self.arithmetic.mode == "weights" and not self.caches
        return self.dtype == torch.float32 and is_plain

    def identity(self) -> dict[str, Any]:
        """Everything about model, arithmetic and device that can move a score."""
        model = type(self.skeleton.model)
        return {
            "engine": "torch",
            "torch": torch.__version__,
            "dtype": str(self.dtype).removeprefix("torch."),
            **self.arithmetic.to_json(),
            "kv_cache_dtype": self._kv_cache_dtype(),
            **(self.formats.identity() if self.formats is not None else {}),
            "attention": self.skeleton.attention,
            "text_alone": self.skeleton.text_alone,
            "model_class": f"{model.__module__}.{model.__qualname__}",
            "vocabulary": self.head.vocabulary,
            "device": self.device.to_json(),
            "batch_windows": self.options.batch_windows,
        }

    def head_tensors(self) -> HeadTensors:
        """The head, and the checkpoint's tensors that are its weight and bias as they are used."""
        weight, bias = head_names(self.skeleton, self.weights)
        # A bias is used in the compute dtype, a weight is kept as it is stored.
        if bias is not None and self.checkpoint.read(bias).dtype != self.dtype:
            bias = None
        return HeadTensors(self.head, self.checkpoint.source, self.checkpoint.place, weight, bias)

    def unused_tensors(self) -> list[str]:
        """The checkpoint's tensors that no parameter and no cache is made of."""
        cached = {name for cache in self.caches for name in cache.tensors}
        return [name for name in self.weights.unused if name not in cached]

    def _kv_cache_dtype(self) -> str | None:
        """The dtype that keys and values are rounded to, None for the compute dtype."""
        if self.arithmetic.is_llama_cpp:
            return "float16"
        declared = self.schemes.config.kv_cache if self.schemes.config is not None else None
        return declared.described if self.caches and declared is not None else None

"""The torch engine's options, apart from it, for those who need no torch yet."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scoremode.checkpoint.files import Checkpoint
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    import torch

    from scoremode.engines.base import Engine
    from scoremode.engines.kv_formats import KvCache
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.engines.torch.matmul.arithmetic import Mode
    from scoremode.engines.torch.memory.feeder import Place
    from scoremode.engines.torch.ranks.messages import Ranks

__all__ = ["TorchOptions"]


@dataclass(frozen=True)
class TorchOptions:
    """A user's choices; None leaves one to the engine.

    - `arithmetic`: whether activations are quantized too; `auto`: where the checkpoint says so;
      `llama.cpp`: a GGUF file's as that tool's CPU build does it, in float32 beside.
    - `kv_cache`: what keys and values are rounded to: the cache that the checkpoint declares, or the
      formats named. A base in the same process has none.
    - `max_memory`: bytes; `memory_share`: fraction of a GPU's memory.
    - `beside`: bytes of a GPU's memory that a base in the same process takes.
    - `batch_windows`: windows of a micro-batch.
    - `keeps`: whether states of earlier passes stay on a GPU while they are being written.
    - `place`: where packed layers lie for a GPU.
    - `attention`: the library's name of how attention is computed.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    arithmetic: "Mode" = "auto"
    kv_cache: "Literal['none', 'as-declared'] | KvCache" = "none"
    device: str | None = None
    max_memory: int | None = None
    memory_share: float | None = None
    beside: int = 0
    batch_windows: int | None = None
    keeps: bool = False
    place: "Place | None" = None
    attention: Literal["sdpa", "eager"] | None = None
    trust_remote_code: bool = False

    modules: ClassVar[Sequence[str]] = (
        "torch",
        # Whatever the model, it is built with these: 1.6 s.
        "transformers.models.auto.modeling_auto",
        "transformers.modeling_utils",
        "scoremode.engines.torch.builder",
    )
    attentions: ClassVar[Sequence[str]] = ("sdpa", "eager")
    runs_beside: ClassVar[bool] = True
    reads_gguf: ClassVar[bool] = True
    mixes: ClassVar[bool] = True

    @property
    def gpu(self) -> int | None:
        kind, _, number = (self.device or "cuda").partition(":")
        # A process of torchrun's takes its own.
        number = number or os.environ.get("LOCAL_RANK", "0")
        return int(number) if kind == "cuda" and number.isdecimal() else None

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: "Ranks | None" = None,
    ) -> "Engine":
        from scoremode.engines.torch.builder import build_engine

        engine = build_engine(checkpoint, self, vocabulary, int(plan.lengths.max()))
        if ranks is None:
            return engine
        from scoremode.engines.torch.ranks.engine import DataParallelEngine

        return DataParallelEngine(engine, ranks)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "TorchEngine":
        from scoremode.engines.torch.builder import build_engine, is_gguf_checkpoint

        options = self.of_base()
        if self.arithmetic == "llama.cpp" and not is_gguf_checkpoint(checkpoint):
            # A GGUF file's alone: any other base is what its weights are, in float32, too.
            options = replace(options, arithmetic="weights", dtype="float32")
        return build_engine(checkpoint, options, vocabulary, longest)

    def of_base(self) -> "TorchOptions":
        # What a cache costs is told against one in the dtype that is computed in.
        return replace(self, kv_cache="none")

    def in_dtype_of(self, checkpoint: Checkpoint) -> "TorchOptions":
        if self.dtype != "auto":
            return self
        from scoremode.engines.torch.builder import computed_dtype

        name: Any = str(computed_dtype(checkpoint, self)).removeprefix("torch.")
        return replace(self, dtype=name)

    def keeping(self) -> "TorchOptions":
        return replace(self, keeps=True)

    def sharing(self, held: "Callable[[torch.device], int]") -> "TorchOptions":
        from scoremode.engines.torch.device import choose_device

        device = choose_device(self.device, self.max_memory, self.memory_share)
        return replace(self, beside=held(device.torch))

    def computing(self, dtype: Any, attention: Any = None) -> "TorchOptions":
        return replace(self, dtype=dtype, attention=attention or self.attention)

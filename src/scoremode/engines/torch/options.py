"""The torch engine's options, and those of a module in memory: there before torch is."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    import torch

    from scoremode.engines.base import Engine
    from scoremode.engines.kv_formats import KvCache
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.engines.torch.in_memory import InMemoryEngine
    from scoremode.engines.torch.matmul.linears import Mode
    from scoremode.engines.torch.memory.feeder import Place
    from scoremode.engines.torch.ranks.messages import Ranks


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
        "scoremode.engines.torch.engine",
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
        from scoremode.engines.torch.engine import build_engine

        engine = build_engine(checkpoint, self, vocabulary, int(plan.lengths.max()))
        if ranks is None:
            return engine
        from scoremode.engines.torch.ranks.engine import DataParallelEngine

        return DataParallelEngine(engine, ranks)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "TorchEngine":
        from scoremode.engines.torch.engine import build_engine

        return build_engine(checkpoint, self.of_base(checkpoint), vocabulary, longest)

    def of_base(self, checkpoint: Checkpoint) -> "TorchOptions":
        from scoremode.engines.torch.builder import is_gguf_checkpoint

        # What a cache costs is told against one in the dtype that is computed in.
        options = replace(self, kv_cache="none")
        if self.arithmetic == "llama.cpp" and not is_gguf_checkpoint(checkpoint):
            # A GGUF file's alone: any other base is what its weights are, in float32, too.
            return replace(options, arithmetic="weights", dtype="float32")
        return options

    def in_dtype_of(self, checkpoint: Checkpoint) -> "TorchOptions":
        if self.dtype != "auto":
            return self
        from scoremode.engines.torch.builder import computed_dtype

        name: Any = str(computed_dtype(checkpoint, self)).removeprefix("torch.")
        return replace(self, dtype=name)

    def in_dtype(self, name: Any) -> "TorchOptions":
        # What llama.cpp's arithmetic is computed in is no choice.
        if self.dtype != "auto" or self.arithmetic == "llama.cpp":
            return self
        from scoremode.engines.torch.device import DTYPES, choose_device, has_instructions

        device = choose_device(self.device, self.max_memory, self.memory_share)
        follows = name in DTYPES and has_instructions(DTYPES[name], device)
        return replace(self, dtype=name) if follows else self

    def keeping(self) -> "TorchOptions":
        return replace(self, keeps=True)

    def sharing(self, held: "Callable[[torch.device], int]") -> "TorchOptions":
        from scoremode.engines.torch.device import choose_device

        device = choose_device(self.device, self.max_memory, self.memory_share)
        return replace(self, beside=held(device.torch))

    def computing(self, dtype: Any, attention: Any = None) -> "TorchOptions":
        return replace(self, dtype=dtype, attention=attention or self.attention)


@dataclass(frozen=True, eq=False)
class InMemoryOptions:
    """Options for `checkpoint`, a module in memory, which has its dtype and its device already.

    `of_base`: those of a base that runs beside, on the same device.
    """

    checkpoint: ModuleInMemory
    base: TorchOptions

    modules: ClassVar[Sequence[str]] = (
        *TorchOptions.modules,
        "scoremode.engines.torch.in_memory",
    )
    attentions: ClassVar[Sequence[str]] = ()
    runs_beside: ClassVar[bool] = True
    reads_gguf: ClassVar[bool] = False
    mixes: ClassVar[bool] = False
    trust_remote_code: ClassVar[bool] = False

    @property
    def dtype(self) -> str:
        return "auto"

    @property
    def gpu(self) -> int | None:
        """None: whatever GPU the module is on is open."""
        return None

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: "Ranks | None" = None,
    ) -> "InMemoryEngine":
        from scoremode.engines.torch.in_memory import InMemoryEngine

        assert isinstance(checkpoint, ModuleInMemory) and ranks is None
        return InMemoryEngine(checkpoint, vocabulary, self.base.batch_windows)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "TorchEngine":
        device = str(next(self.checkpoint.module.parameters()).device)
        return replace(self.base, device=device).make_base(checkpoint, vocabulary, longest)

    def of_base(self, checkpoint: Checkpoint) -> TorchOptions:
        return self.base.of_base(checkpoint)

    def in_dtype_of(self, checkpoint: Checkpoint) -> Self:
        """A base in the module's dtype, that of its head, as `InMemoryEngine` says it."""
        if self.base.dtype != "auto":
            return self
        from scoremode.engines.torch.in_memory import InMemoryModule

        dtype: Any = str(InMemoryModule(self.checkpoint.module).dtype).removeprefix("torch.")
        return replace(self, base=replace(self.base, dtype=dtype))

    def in_dtype(self, name: str) -> Self:
        """The same: the module has its dtype already."""
        return self

    def keeping(self) -> Self:
        return self

    def sharing(self, held: Callable[[Any], int]) -> Self:
        """The same: the module has its memory already."""
        return self

    def computing(self, dtype: Any, attention: Any = None) -> TorchOptions:
        """Options of a base that computes otherwise; the module computes as it does."""
        return self.base.computing(dtype, attention)

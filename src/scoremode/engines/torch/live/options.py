"""The options of an engine that is a module in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.engines.torch.options import TorchOptions
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.engines.torch.live.engine import LiveEngine
    from scoremode.engines.torch.ranks.messages import Ranks

__all__ = ["LiveOptions"]


@dataclass(frozen=True, eq=False)
class LiveOptions:
    """Options for `checkpoint`, a module in memory, which has its dtype and its device already.

    `of_base`: those of a base that runs beside, on the same device.
    """

    checkpoint: ModuleInMemory
    base: TorchOptions

    modules: ClassVar[Sequence[str]] = (
        *TorchOptions.modules,
        "scoremode.engines.torch.live.engine",
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
    ) -> "LiveEngine":
        from scoremode.engines.torch.live.engine import LiveEngine

        assert isinstance(checkpoint, ModuleInMemory) and ranks is None
        return LiveEngine(checkpoint, vocabulary, self.base.batch_windows)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "TorchEngine":
        device = str(next(self.checkpoint.module.parameters()).device)
        return replace(self.base, device=device).make_base(checkpoint, vocabulary, longest)

    def of_base(self) -> TorchOptions:
        return self.base.of_base()

    def in_dtype_of(self, checkpoint: Checkpoint) -> Self:
        """A base in the module's dtype, that of its head, as `LiveEngine` says it."""
        if self.base.dtype != "auto":
            return self
        from scoremode.engines.torch.live.module import LiveModule

        dtype: Any = str(LiveModule(self.checkpoint.module).dtype).removeprefix("torch.")
        return replace(self, base=replace(self.base, dtype=dtype))

    def keeping(self) -> Self:
        return self

    def sharing(self, held: Callable[[Any], int]) -> Self:
        """The same: the module has its memory already."""
        return self

    def computing(self, dtype: Any, attention: Any = None) -> TorchOptions:
        """Options of a base that computes otherwise; the module computes as it does."""
        return self.base.computing(dtype, attention)

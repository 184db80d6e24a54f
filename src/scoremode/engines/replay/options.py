"""Predictions that are kept already as a model, and the options of the engine that replays them.

No weight is read and no layer runs: what a record says of checkpoint and arithmetic is what the run
said that made the predictions. Light: it is there before torch is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.virtual import RecordedCheckpoint
from scoremode.engines.torch.options import TorchOptions
from scoremode.text.corpus import Corpus
from scoremode.text.corpus_plan import PlannedText
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    import torch

    from scoremode.engines.base import Schedule
    from scoremode.engines.replay.engine import ReplayEngine
    from scoremode.engines.torch.engine import TorchEngine
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.reference.base import Reference
    from scoremode.reference.replay import Replay
    from scoremode.results.scores import Scores


class Predictions(Protocol):
    """A model's predictions of every target of one plan, kept on disk.

    - `checkpoint`: what stands in its place; `vocabulary`: entries of the softmax.
    - `tokenizer`: where the one lies that made the text's tokens; `dtype`: what the model computed in;
      None where nothing tells.
    """

    @property
    def checkpoint(self) -> RecordedCheckpoint: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def tokenizer(self) -> str | None: ...

    @property
    def dtype(self) -> str | None: ...

    def check_plan(self, planned: PlannedText, corpus: Corpus) -> None:
        """Raises ReferenceUnusable unless they are of this plan, of which a rule may draw windows."""
        ...

    def schedule(self) -> "Schedule":
        """The micro-batches that they are scored in."""
        ...

    def reference(self, plan: Plan) -> "Reference":
        """Their logits by the rows of `plan`."""
        ...

    def compare(self, reference: "Reference", scores: "Scores", begin: int) -> "Replay | None":
        """How far a pass's scores, from row `begin` of the plan, are from those that were kept; None
        where none were. Raises ReferenceUnusable for more than rounding explains."""
        ...

    def engine(self) -> dict[str, Any]:
        """The fields of a record's `engine` that say how they were computed."""
        ...

    def identity(self) -> dict[str, Any]:
        """Their `kind`, and the sha256 that tells them from others."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the record says of them beside `identity`, when all was read."""
        ...


@dataclass(frozen=True, eq=False)
class ReplayOptions:
    """Options for `predictions`; `base`: those of a base that runs beside, on the same device."""

    predictions: Predictions
    base: TorchOptions

    modules: ClassVar[Sequence[str]] = ("torch", "scoremode.engines.replay.engine")
    attentions: ClassVar[Sequence[str]] = ()
    runs_beside: ClassVar[bool] = True
    reads_gguf: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    @property
    def dtype(self) -> str:
        return "auto"

    @property
    def trust_remote_code(self) -> bool:
        return self.base.trust_remote_code

    @property
    def gpu(self) -> int | None:
        return self.base.gpu

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: "Ranks | None" = None,
    ) -> "ReplayEngine":
        from scoremode.engines.replay.engine import ReplayEngine

        assert ranks is None
        return ReplayEngine(self.predictions, plan, self.base)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "TorchEngine":
        return self.base.make_base(checkpoint, vocabulary, longest)

    def of_base(self, checkpoint: Checkpoint) -> TorchOptions:
        return self.base.of_base(checkpoint)

    def in_dtype_of(self, checkpoint: Checkpoint) -> Self:
        """A base in the dtype that the predictions were computed in."""
        dtype: Any = self.predictions.dtype
        if self.base.dtype != "auto" or dtype is None:
            return self
        return replace(self, base=replace(self.base, dtype=dtype))

    def in_dtype(self, name: str) -> Self:
        """The same: predictions have their dtype already."""
        return self

    def keeping(self) -> Self:
        return self

    def sharing(self, held: "Callable[[torch.device], int]") -> Self:
        """The same: beside what `held` brings to the device, predictions take a head and tiles."""
        self.base.sharing(held)
        return self

    def computing(self, dtype: Any, attention: Any = None) -> TorchOptions:
        """Options of a base that computes otherwise."""
        return self.base.computing(dtype, attention)

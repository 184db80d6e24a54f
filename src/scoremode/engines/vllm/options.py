"""The vLLM engine's options, apart from it, for those who need neither torch nor vLLM yet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import EngineError
from scoremode.text.plan import Plan

if TYPE_CHECKING:
    from scoremode.engines.base import BaseEngine, Engine


@dataclass(frozen=True)
class VllmOptions:
    """A user's choices.

    - `dtype`: vLLM's `dtype`; auto is the checkpoint's own.
    - `head_dtype`: "model" or "float32", see `ScoringLLM`.
    - `decode`: predict each target by a decode step instead of by prefill.
    - `strict`: refuse where the plugin does not fit.
    - `arguments`: other keywords of `vllm.LLM`.
    """

    dtype: str = "auto"
    head_dtype: str = "model"
    decode: bool = False
    strict: bool = False
    trust_remote_code: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    modules: ClassVar[Sequence[str]] = ("scoremode.engines.vllm.engine",)
    # vLLM chooses its kernels itself, and one model takes all of a GPU.
    attentions: ClassVar[Sequence[str]] = ()
    runs_beside: ClassVar[bool] = False
    # Its own reader has fewer types and architectures, and wants a tokenizer beside.
    reads_gguf: ClassVar[bool] = False
    mixes: ClassVar[bool] = False

    @property
    def gpu(self) -> None:
        """None: its workers open their GPUs themselves."""

    def make(
        self,
        checkpoint: Checkpoint,
        vocabulary: int | None,
        plan: Plan,
        notify: Callable[[str], None],
        ranks: object = None,
    ) -> "Engine":
        """Makes an engine: one process starts vLLM, and vLLM its workers. There are no `ranks` of
        ours."""
        from scoremode.engines.vllm.engine import VllmEngine

        assert ranks is None, ranks
        return VllmEngine(checkpoint, self, plan, vocabulary, notify)

    def make_base(
        self, checkpoint: Checkpoint, vocabulary: int | None, longest: int
    ) -> "BaseEngine":
        raise EngineError(
            f"{checkpoint.source}: vLLM runs one model in a process: capture the base first "
            "(scoremode reference)"
        )

    def of_base(self, checkpoint: Checkpoint) -> "VllmOptions":
        """Returns these options without a cache in fewer than 16 bits; one in 16 is kept, which the
        base may need to be without what its checkpoint declares."""
        given = dict(self.arguments)
        if given.get("kv_cache_dtype") not in ("auto", "float16", "bfloat16"):
            given.pop("kv_cache_dtype", None)
        return replace(self, arguments=given)

    def in_dtype_of(self, checkpoint: Checkpoint) -> "VllmOptions":
        """Returns these options in the dtype that the checkpoint's config names, if it names one: what
        vLLM makes of any other is known when it runs."""
        if self.dtype != "auto":
            return self
        from scoremode.engines.vllm.settings import stored_dtype

        return replace(self, dtype=stored_dtype(checkpoint.config))

    def in_dtype(self, name: str) -> "VllmOptions":
        """Returns these options: a model is measured as it is deployed, and some of vLLM's kernels have
        one dtype alone."""
        return self

    def keeping(self) -> "VllmOptions":
        """Returns these options: the engine's workers write their states themselves."""
        return self

    def sharing(self, held: object) -> "VllmOptions":
        """Returns these options: a base's head is this process's, on the CPU."""
        return self

    def computing(self, dtype: str, attention: str | None = None) -> "VllmOptions":
        assert attention is None, attention
        return replace(self, dtype=dtype)

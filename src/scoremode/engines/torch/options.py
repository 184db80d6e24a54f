"""What a user may choose of the torch engine: apart from it, for those who need no torch yet."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from scoremode.engines.torch.matmul.arithmetic import Mode
    from scoremode.engines.torch.memory.feeder import Place

__all__ = ["TorchOptions"]


@dataclass(frozen=True)
class TorchOptions:
    """What a user may choose; None leaves the choice to the engine.

    - `arithmetic`: whether activations are quantized too; `auto`: where the checkpoint says so.
    - `kv_cache`: whether keys and values are rounded to the cache that the checkpoint declares.
    - `max_memory`: bytes; `memory_share`: fraction of a GPU's memory.
    - `beside`: bytes of a GPU's memory that a base in the same process takes.
    - `batch_windows`: windows of a micro-batch.
    - `keeps`: whether states of earlier passes stay on a GPU while they are being written.
    - `place`: where packed layers lie for a GPU.
    - `attention`: the library's name of how attention is computed.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    arithmetic: "Mode" = "auto"
    kv_cache: Literal["none", "as-declared"] = "none"
    device: str | None = None
    max_memory: int | None = None
    memory_share: float | None = None
    beside: int = 0
    batch_windows: int | None = None
    keeps: bool = False
    place: "Place | None" = None
    attention: Literal["sdpa", "eager"] | None = None
    trust_remote_code: bool = False

"""A checkpoint as its config.json alone describes it: headers of tensors that nobody has looked at.

A model's dense tensors and their linears are known from its architecture; each library says what a
linear would be stored as. What is then said of such a checkpoint is said by the very code that reads
real ones, and is as good as the config's word.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import DTYPE_BITS, TensorInfo
from scoremode.errors import CheckpointError

if TYPE_CHECKING:
    import torch

__all__ = ["UNTOLD", "Foresee", "Foreseen", "ForeseenCheckpoint", "Linear", "foreseen"]

# What libraries whose config lists no linears leave to the tensors.
UNTOLD = (
    "which linears are quantized (taken for it: all of the decoder's layers that the config leaves)"
)


class Linear(NamedTuple):
    """A linear of the model: its weight is O × I of `dtype`, as safetensors spells it.

    - `module`: its name in a checkpoint; of experts stored as one that of their parameter.
    - `experts`: how many are stored as one, None for a linear alone.
    - `in_layer`: whether it lies in a decoder layer.
    """

    module: str
    shape: tuple[int, int]
    dtype: str
    experts: int | None = None
    in_layer: bool = True


class Foreseen(NamedTuple):
    """A tensor; its bytes are `content`, again and again, where a library reads them.

    - `described`: a name within its module, and what the file's metadata says of that.
    """

    dtype: str
    shape: tuple[int, ...]
    content: bytes = b"\0"
    described: tuple[str, str] | None = None


# The tensors of a linear by suffix, as `Library.split` gives them; None for one that stays dense.
Foresee = Callable[[Linear], Mapping[str, Foreseen] | None]


@dataclass(frozen=True, eq=False)
class ForeseenCheckpoint(Checkpoint):
    """`contents`: tensors' names → what their bytes are made of; `described`: the files' metadata."""

    contents: Mapping[str, bytes] = field(default_factory=dict)
    described: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(info.bytes for info in self.tensors.values())

    def read(self, name: str) -> "torch.Tensor":
        """Ones: what is read of a checkpoint that isn't loaded are static scales of inputs."""
        import torch

        return torch.ones(()).expand(self.tensors[name].shape)

    def metadata(self) -> dict[str, str]:
        return dict(self.described)

    def read_bytes(self, name: str) -> "bytes":
        content, size = self.contents[name], self.tensors[name].bytes
        return (content * (-(-size // len(content))))[:size]


def foreseen(
    checkpoint: Checkpoint,
    dense: Mapping[str, tuple[str, tuple[int, ...]]],
    linears: Iterable[Linear],
    foresee: Foresee | None,
) -> ForeseenCheckpoint:
    """The `checkpoint`, which has no tensors, with those that it would have.

    - `dense`: name → dtype and shape of each tensor of the model in its own precision.
    - `foresee`: None where nothing is quantized.

    Raises CheckpointError, UnsupportedFormat.
    """
    tensors = {name: Foreseen(*tensor) for name, tensor in dense.items()}
    described: dict[str, str] = {}
    for linear in linears if foresee else ():
        assert foresee is not None
        stored = foresee(linear)
        if stored is None:
            continue
        # Experts stored as one are called as their parameter is, others as their weight.
        stacked = linear.experts is not None
        tensors.pop(linear.module if stacked else f"{linear.module}.weight")
        home = linear.module.rpartition(".")[0] if stacked else linear.module
        tensors |= {f"{home}.{suffix}": tensor for suffix, tensor in stored.items()}
        texts = (tensor.described for tensor in stored.values() if tensor.described)
        described |= {f"{home}.{name}": text for name, text in texts}
    file = checkpoint.config_file
    infos = {}
    for name, (dtype, shape, *_) in tensors.items():
        info = TensorInfo(name, file, dtype, shape, 0)
        infos[name] = info._replace(bytes=-(-info.elements * DTYPE_BITS[dtype] // 8))
    if not infos:
        raise CheckpointError(f"{file}: describes no weights")
    return ForeseenCheckpoint(
        checkpoint.path,
        checkpoint.source,
        checkpoint.config,
        infos,
        modelopt=checkpoint.modelopt,
        quantized_by=checkpoint.quantized_by,
        contents={name: tensor.content for name, tensor in tensors.items()},
        described=described,
    )

"""The tensors of a quantized linear: described once, matched with headers, promised by a config.

A family's `layout` function says what tensors a linear O × I is stored in, by suffix. `Headers.match`
checks a checkpoint's headers against it; a `PromisedCheckpoint` has the same tensors where nobody has
looked at any, since a config and the model's architecture tell which linears there are. What is then
said of it is said by the very code that reads real checkpoints, and is as good as the config's word.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import DTYPE_BITS, TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]
# Dtypes of scales that are plain floats, and of those that are powers of two in a byte each.
SCALES = ("BF16", "F16", "F32")
POWERS_OF_TWO = ("U8", "F8_E8M0")
# Shapes of a single value.
_SINGLE: tuple[Shape, ...] = ((1,), (1, 1), ())

# The phrase for libraries whose config doesn't list the linears.
UNTOLD = (
    "which linears are quantized (taken for it: all of the decoder's layers that the config leaves)"
)


class Tensor(NamedTuple):
    """A tensor of a quantized linear.

    - `dtype`, `shape`: as the library writes it.
    - `dtypes`, `shapes`: all that a checkpoint may have instead; none but those where empty. Errors
      name the first shape.
    - `optional`: whether a checkpoint may lack it.
    - `content`: its bytes, repeated, where they are read.
    - `described`: a name within its module, and what the file's metadata says of that.
    """

    dtype: str
    shape: Shape
    dtypes: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    optional: bool = False
    content: bytes = b"\0"
    described: tuple[str, str] | None = None


def single(
    dtype: str = "F32", shape: Shape = (), dtypes: tuple[str, ...] = (), *, optional: bool = False
) -> Tensor:
    """A tensor of a single value, which may have any rank."""
    return Tensor(dtype, shape, dtypes, _SINGLE, optional)


# The tensors of a linear by suffix, as `Library.split` gives them.
Layout = Mapping[str, Tensor]


@dataclass(frozen=True)
class Headers:
    """A module's tensors by suffix."""

    module: str
    tensors: Mapping[str, TensorInfo]

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.module}: {what}")

    def match(self, layout: Layout) -> None:
        """Raises CheckpointError for a tensor of the layout that is missing or another."""
        for suffix, tensor in layout.items():
            if suffix in self.tensors or not tensor.optional:
                self.expect(
                    suffix, tensor.dtypes or (tensor.dtype,), tensor.shapes or [tensor.shape]
                )

    def refuse_others(self, known: Iterable[str | None], what: str) -> None:
        """Raises UnsupportedFormat for tensors that are not `known`, in a format called `what`."""
        if unknown := self.tensors.keys() - set(known):
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{self.module}: {what} with {names} is not supported")

    def expect(self, suffix: str, dtypes: Iterable[str], shapes: Iterable[Shape]) -> TensorInfo:
        """The tensor's header. Raises CheckpointError where it is missing or another."""
        info, dtypes, shapes = self.header(suffix), tuple(dtypes), list(shapes)
        if info.dtype not in dtypes:
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has dtype {info.dtype}, "
                f"expected {' or '.join(dtypes)}"
            )
        if info.shape not in shapes:
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has shape {list(info.shape)}, "
                f"expected {list(shapes[0])}"
            )
        return info

    def matrix(self, suffix: str, dtypes: Iterable[str] = ()) -> tuple[int, int]:
        """The shape of a tensor that must be there, of two dimensions and not empty, and of a dtype of
        these if any are given."""
        info = self.header(suffix)
        if len(info.shape) != 2 or not info.elements:
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has shape {list(info.shape)}, not a matrix's"
            )
        self.expect(suffix, dtypes or [info.dtype], [info.shape])
        return info.shape[0], info.shape[1]

    def of_shape(
        self, suffix: str, sizes: tuple[int | None, ...], dtypes: Iterable[str] = ()
    ) -> Shape:
        """The shape of a tensor that must be there, not empty and of these sizes, of which None is any;
        and of a dtype of these if any are given."""
        info = self.header(suffix)
        same = len(info.shape) == len(sizes) and all(
            size in (None, stored) for size, stored in zip(sizes, info.shape, strict=True)
        )
        if not same or not info.elements:
            wanted = ", ".join("n" if size is None else str(size) for size in sizes)
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has shape {list(info.shape)}, not [{wanted}]"
            )
        return self.expect(suffix, dtypes or [info.dtype], [info.shape]).shape

    def header(self, suffix: str) -> TensorInfo:
        """Raises CheckpointError where the tensor is missing."""
        info = self.tensors.get(suffix)
        if info is None:
            raise self.wrong(f"quantized, and its tensor {suffix} is missing")
        return info


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


# The layout of a linear by the config alone, None for one that stays dense.
Promise = Callable[[Linear], Layout | None]


@dataclass(frozen=True, eq=False)
class PromisedCheckpoint(Checkpoint):
    """A checkpoint whose tensors nobody has looked at: a config promises them.

    `contents`: tensors' names → what their bytes are made of; `described`: the files' metadata.
    """

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


def promised(
    checkpoint: Checkpoint,
    dense: Mapping[str, tuple[str, Shape]],
    linears: Iterable[Linear],
    promise: Promise | None,
) -> PromisedCheckpoint:
    """The `checkpoint`, which has no tensors, with those that it would have.

    - `dense`: name → dtype and shape of each tensor of the model in its own precision.
    - `promise`: None where nothing is quantized.

    Raises CheckpointError, UnsupportedFormat.
    """
    tensors = {name: Tensor(*tensor) for name, tensor in dense.items()}
    described: dict[str, str] = {}
    for linear in linears if promise else ():
        assert promise is not None
        layout = promise(linear)
        if layout is None:
            continue
        # Experts stored as one are called as their parameter is, others as their weight.
        stacked = linear.experts is not None
        tensors.pop(linear.module if stacked else f"{linear.module}.weight")
        home = linear.module.rpartition(".")[0] if stacked else linear.module
        tensors |= {f"{home}.{suffix}": tensor for suffix, tensor in layout.items()}
        texts = (tensor.described for tensor in layout.values() if tensor.described)
        described |= {f"{home}.{name}": text for name, text in texts}
    file = checkpoint.config_file
    infos = {}
    for name, tensor in tensors.items():
        info = TensorInfo(name, file, tensor.dtype, tensor.shape, 0)
        infos[name] = info._replace(bytes=-(-info.elements * DTYPE_BITS[tensor.dtype] // 8))
    if not infos:
        raise CheckpointError(f"{file}: describes no weights")
    return PromisedCheckpoint(
        checkpoint.path,
        checkpoint.source,
        checkpoint.config,
        infos,
        modelopt=checkpoint.modelopt,
        quantized_by=checkpoint.quantized_by,
        contents={name: tensor.content for name, tensor in tensors.items()},
        described=described,
    )

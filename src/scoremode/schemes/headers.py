"""A quantized module's headers, and the checks of them that every library's formats need."""

from collections.abc import Mapping
from dataclasses import dataclass

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError

__all__ = ["SCALES", "Headers"]

# Dtypes of scales that are plain floats.
SCALES = ("BF16", "F16", "F32")
_ONE: list[tuple[int, ...]] = [(1,), (1, 1), ()]


@dataclass(frozen=True)
class Headers:
    """A module's tensors by suffix."""

    module: str
    tensors: Mapping[str, TensorInfo]

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.module}: {what}")

    def expect(
        self, suffix: str, dtypes: tuple[str, ...], shapes: list[tuple[int, ...]]
    ) -> TensorInfo:
        """The tensor's header. Raises CheckpointError where it is missing or another."""
        info = self._header(suffix)
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

    def matrix(self, suffix: str, dtypes: tuple[str, ...]) -> tuple[int, int]:
        """The shape of a tensor that must be there, of two dimensions and not empty."""
        info = self._header(suffix)
        if len(info.shape) != 2 or not info.elements:
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has shape {list(info.shape)}, not a matrix's"
            )
        self.expect(suffix, dtypes, [info.shape])
        return info.shape[0], info.shape[1]

    def of_shape(
        self, suffix: str, dtypes: tuple[str, ...], sizes: tuple[int | None, ...]
    ) -> tuple[int, ...]:
        """The shape of a tensor that must be there, not empty and of these sizes; None is any."""
        info = self._header(suffix)
        same = len(info.shape) == len(sizes) and all(
            size in (None, found) for size, found in zip(sizes, info.shape, strict=True)
        )
        if not same or not info.elements:
            wanted = ", ".join("n" if size is None else str(size) for size in sizes)
            raise CheckpointError(
                f"{info.file}: tensor {info.name} has shape {list(info.shape)}, not [{wanted}]"
            )
        return self.expect(suffix, dtypes, [info.shape]).shape

    def expect_one(self, suffix: str, dtypes: tuple[str, ...]) -> None:
        """A tensor of a single value, of any rank."""
        self.expect(suffix, dtypes, _ONE)

    def check_input(
        self,
        suffix: str,
        dtypes: tuple[str, ...] = SCALES,
        shapes: list[tuple[int, ...]] = _ONE,
    ) -> None:
        """Checks a static scale or zero point of the input where there is one. Weights alone don't
        need it; arithmetic that quantizes the input asks for it when the model is built."""
        if suffix in self.tensors:
            self.expect(suffix, dtypes, shapes)

    def _header(self, suffix: str) -> TensorInfo:
        info = self.tensors.get(suffix)
        if info is None:
            raise self.wrong(f"quantized, and its tensor {suffix} is missing")
        return info

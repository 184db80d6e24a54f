"""The quantized modules of a checkpoint of MLX, and their Schemes."""

from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.foreseen import Foresee
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.mlx.affine import Affine
from scoremode.schemes.mlx.config import METHOD, MlxConfig, parse_mlx
from scoremode.schemes.mlx.floats import MlxFloats
from scoremode.schemes.mlx.foreseen import foresee

__all__ = ["Modules"]


class Modules(Library):
    """Linears, and embeddings, with `scales` beside their weight."""

    methods = frozenset(("mlx",))
    marks = frozenset(("scales", "biases"))
    untold = (
        "which modules are quantized (taken for it: all linears and the embedding, where their inputs "
        "are whole groups)"
    )
    embeds = True

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_mlx(config)
        self._alike: dict[tuple, Affine | MlxFloats] = {}
        if not any(name.endswith(".scales") for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a module's scales: not decoded")

    @property
    def config(self) -> MlxConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    def scheme(
        self, module: str, tensors: Mapping[str, TensorInfo]
    ) -> tuple[Affine | MlxFloats, str]:
        stored = Headers(module, tensors)
        mode = self.config.of(module)
        if mode is None:
            raise stored.wrong("stored quantized, and the config says that it is not")
        read = {"weight", "scales", "bias"} | ({"biases"} if mode.name == "affine" else set())
        if unknown := set(tensors) - read:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(
                f"{module}: {METHOD} in mode {mode.name} with {names} is not supported"
            )
        weight = tensors.get("weight")
        if weight is not None and len(weight.shape) == 3:
            raise UnsupportedFormat(
                f"{module}: experts stored as one ({list(weight.shape)}): not decoded"
            )
        rows, width = stored.matrix("weight", ("U32",))
        groups = stored.matrix("scales", SCALES if mode.name == "affine" else ("U8",))[1]
        columns = groups * mode.size
        if width * 32 != columns * mode.bits:
            raise stored.wrong(
                f"{width} words a row are not {groups} groups of {mode.size} in {mode.bits} bits"
            )
        scale = stored.expect("scales", (tensors["scales"].dtype,), [(rows, groups)])
        if mode.name == "affine":
            stored.expect("biases", (scale.dtype,), [(rows, groups)])
        key = (rows, columns, mode)
        if key not in self._alike:
            shape = rows, columns
            self._alike[key] = (
                Affine(shape, mode.bits, mode.size)
                if mode.name == "affine"
                else MlxFloats(Scaling(shape, "group", mode.size), mode.name)
            )
        return self._alike[key], "mlx"

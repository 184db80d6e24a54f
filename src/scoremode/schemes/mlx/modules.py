"""The quantized modules of a checkpoint of MLX, and their Schemes.

A linear has a `weight` and its `scales`. So have a layer's experts, whose `gate_proj`, `up_proj` and
`down_proj` hold all of them as one [E, O, I], in a module `switch_mlp` or, of some models, `experts`.
Source: mlx-lm 0.32, `QuantizedSwitchLinear`.
"""

import re
from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.base import Scheme
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.foreseen import Foresee
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library
from scoremode.schemes.mlx.affine import Affine
from scoremode.schemes.mlx.config import METHOD, MlxConfig, parse_mlx
from scoremode.schemes.mlx.floats import MlxFloats
from scoremode.schemes.mlx.foreseen import foresee
from scoremode.schemes.stacked import Expert, Stacked

__all__ = ["Modules"]

_EXPERTS = re.compile(
    r"(.*\.(?:switch_mlp|experts)\.(?:gate_proj|up_proj|down_proj)\.)(weight|scales|biases)"
)


class Modules(Library):
    """Linears, embeddings and experts with `scales` beside their weight."""

    methods = frozenset(("mlx",))
    marks = frozenset(("scales", "biases"))
    untold = (
        "which modules are quantized (taken for it: all linears and the embedding, where their inputs "
        "are whole groups)"
    )
    embeds = True

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_mlx(config)
        self._alike: dict[tuple, Scheme] = {}
        if not any(name.endswith(".scales") for name in checkpoint.tensors):
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a module's scales: not decoded")

    @property
    def config(self) -> MlxConfig:
        return self._config

    @staticmethod
    def foresee(config: Mapping[str, Any], model: Mapping[str, Any]) -> Foresee:
        return foresee(config)

    @staticmethod
    def split(name: str) -> tuple[str, str]:
        if found := _EXPERTS.fullmatch(name):
            return f"{found[1]}weight", found[2]
        module, _, suffix = name.rpartition(".")
        return module, suffix

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Scheme, str]:
        stored = Headers(module, tensors)
        stacked = _EXPERTS.fullmatch(module) is not None
        mode = self.config.of(module.removesuffix(".weight") if stacked else module)
        if mode is None:
            raise stored.wrong("stored quantized, and the config says that it is not")
        parts = ("weight", "scales", *(("biases",) if mode.name == "affine" else ()))
        if unknown := set(tensors) - {*parts, "bias"}:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(
                f"{module}: {METHOD} in mode {mode.name} with {names} is not supported"
            )
        weight = tensors.get("weight")
        if weight is not None and len(weight.shape) == 3 and not stacked:
            raise UnsupportedFormat(
                f"{module}: a weight of 3 dimensions ({list(weight.shape)}), and no experts' by its "
                "name: not decoded"
            )
        # One matrix, or one of each expert.
        some = (None,) * (3 if stacked else 2)
        *count, rows, width = stored.of_shape("weight", ("U32",), some)
        floats = SCALES if mode.name == "affine" else ("U8",)
        groups = stored.of_shape("scales", floats, some)[-1]
        columns = groups * mode.size
        if width * 32 != columns * mode.bits:
            raise stored.wrong(
                f"{width} words a row are not {groups} groups of {mode.size} in {mode.bits} bits"
            )
        scale = stored.expect("scales", (tensors["scales"].dtype,), [(*count, rows, groups)])
        if mode.name == "affine":
            stored.expect("biases", (scale.dtype,), [scale.shape])
        key = (*count, rows, columns, mode)
        if key not in self._alike:
            shape = rows, columns
            one = (
                Affine(shape, mode.bits, mode.size)
                if mode.name == "affine"
                else MlxFloats(Scaling(shape, "group", mode.size), mode.name)
            )
            names = tuple((part, part) for part in parts)
            self._alike[key] = Stacked(count[0], Expert(one, names)) if stacked else one
        return self._alike[key], "mlx"

"""The quantized modules of a checkpoint whose `quant_method` is `fp8`, and their Schemes."""

from collections.abc import Mapping
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import TensorInfo
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fp8.blocks import BlockFloat8
from scoremode.schemes.fp8.config import METHOD, Fp8Config, parse_fp8
from scoremode.schemes.headers import SCALES, Headers
from scoremode.schemes.library import Library

__all__ = ["Modules"]

_SCALE = "weight_scale_inv"
# Of experts that are stored fused, a layer's in one tensor.
_FUSED = frozenset(f"{part}_proj_scale_inv" for part in ("gate_up", "gate", "up", "down"))
_BYTES = ("U8", "F8_E8M0")


class Modules(Library):
    """Linears with a `weight_scale_inv`; each has blocks of the one size that the config says."""

    methods = frozenset(("fp8",))
    marks = frozenset((_SCALE, *_FUSED))

    def __init__(self, checkpoint: Checkpoint, config: Mapping[str, Any]):
        self._config = parse_fp8(config)
        if self.marks.isdisjoint(name.rpartition(".")[2] for name in checkpoint.tensors):
            # Dense whatever the config says, or one scale a tensor as AutoFP8 and vLLM name it.
            raise UnsupportedFormat(f"{METHOD}, and no tensor is a {_SCALE}: not decoded")
        # Experts come by the ten thousand, and but for their names each is like the other.
        self._alike: dict[tuple, BlockFloat8] = {}

    @property
    def config(self) -> Fp8Config:
        return self._config

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[BlockFloat8, str]:
        stored = Headers(module, tensors)
        if fused := _FUSED & set(tensors):
            raise UnsupportedFormat(
                f"{module}: experts stored fused in float8 ({', '.join(sorted(fused))}): not decoded"
            )
        if unknown := set(tensors) - {"weight", _SCALE, "bias"}:
            names = ", ".join(sorted(unknown))
            raise UnsupportedFormat(f"{module}: blocks of float8 with {names} are not supported")
        weight = tensors.get("weight")
        if weight is not None and weight.dtype in ("I8", "U8", "F4"):
            raise UnsupportedFormat(
                f"{module}: weight has dtype {weight.dtype}, experts in FP4: not decoded"
            )
        if self.config.excepts(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        scaling = Scaling(stored.matrix("weight", ("F8_E4M3",)), "block", block=self.config.block)
        scale = stored.expect(_SCALE, (*SCALES, *_BYTES), [scaling.stored_shape])
        if scale.dtype in _BYTES and not self.config.inputs.powers_of_two:
            raise stored.wrong(
                f"its scales are powers of two ({scale.dtype}), and scale_fmt is not ue8m0"
            )
        key = (scaling, scale.dtype)
        if key not in self._alike:
            self._alike[key] = BlockFloat8(scaling, inputs=Inputs(self.config.inputs, ()))
        return self._alike[key], "fp8"

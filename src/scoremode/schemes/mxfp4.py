"""MXFP4: the experts of a checkpoint whose `quant_method` is `mxfp4`, as gpt-oss is published.

A projection of all experts of a layer is `*_blocks` uint8 [E, O, I / 32, 16], two e2m1 in a byte, the
first in the low nibble, and `*_scales` uint8 [E, O, I / 32], powers of two (E8M0). It lies
untransposed, where the library's parameter is [E, I, O]; gate and up take turns in the outputs of
`gate_up_proj`, as in the library's. The effective weight is exact in bfloat16.

Configs say nothing of inputs. Kernels before Blackwell leave them in bfloat16; on Blackwell vLLM and
FlashInfer quantize them to MXFP8, e4m3 in groups of 32 under the next power of two above a group's
largest magnitude / 448.
Source: transformers 5.23, `Mxfp4Config`, `replace_with_mxfp4_linear`, `convert_moe_packed_tensors`;
FlashInfer, `cvt_warp_fp16_to_mxfp8`, which vLLM's `FLASHINFER_TRTLLM_MXFP4_MXFP8` and
`FLASHINFER_CUTLASS_MXFP4_MXFP8` quantize with.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.checkpoint.safetensors_files import FLOATS, TensorInfo
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.compressed_tensors_weights import mx
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.fields import Fields, TensorFormat
from scoremode.schemes.fused_experts import Expert, Stacked
from scoremode.schemes.layout import POWERS_OF_TWO, Headers, Layout, Linear, Tensor
from scoremode.schemes.library import Library, TensorsDecide
from scoremode.schemes.patterns import NotConverted

METHOD = "quantization method 'mxfp4'"
# Said in configs that mean more than these experts: ModelOpt's, Quark's, compressed-tensors'.
_MORE = (
    *("quant_algo", "config_groups", "quantized_layers", "kv_cache_quant_algo", "kv_cache_scheme"),
    *("export", "global_quant_config", "transform_config", "activation_scheme", "dequantize"),
)


@dataclass(frozen=True)
class Mxfp4Config(TensorsDecide):
    """`not_converted`: modules that are not quantized."""

    not_converted: NotConverted


def parse_mxfp4(config: Mapping[str, Any]) -> Mxfp4Config:
    """Reads a `quantization_config` whose `quant_method` is `mxfp4`."""
    fields = Fields(config, method=METHOD)
    fields.refuse(*_MORE)
    return Mxfp4Config(NotConverted.of(fields, "modules_to_not_convert"))


_PROJECTION = re.compile(r"(.*\.experts\.(?:gate_up_proj|down_proj))(?:_blocks|_scales)?")
# Codes that share a scale, and their bytes.
_GROUP, _BYTES = 32, 16
_INPUTS = Inputs(
    TensorFormat(8, "float", "group", _GROUP, dynamic=True, powers_of_two=True), (), declared=False
)


def _layout(projection: str, groups: tuple[int, int, int]) -> Layout:
    """The tensors of all experts' projection, of E × O × I / 32 groups."""
    return {
        f"{projection}_blocks": Tensor("U8", (*groups, _BYTES)),
        f"{projection}_scales": Tensor("U8", groups, POWERS_OF_TWO),
    }


class Modules(Library[Mxfp4Config]):
    """Experts' projections that are stored as blocks and scales."""

    methods = frozenset(("mxfp4", "gpt_oss_mxfp4"))
    parse = staticmethod(parse_mxfp4)
    method = METHOD
    about = ("`mxfp4` (gpt-oss)", "yes", "W; W+A on request")
    experts = _PROJECTION
    stacks = True
    marks = frozenset(f"{p}_proj_{s}" for p in ("gate_up", "down") for s in ("blocks", "scales"))

    def check(self) -> None:
        tensors = self.checkpoint.tensors
        found = {name: _PROJECTION.fullmatch(name) for name in tensors}
        projections = {name: match[1] for name, match in found.items() if match}
        if all(name == projection for name, projection in projections.items()):
            raise UnsupportedFormat(f"{METHOD}, and no experts have blocks and scales: not decoded")
        for name in projections:
            dtype = tensors[name].dtype
            if projections[name] == name and dtype in FLOATS and not self._excepts(name):
                raise CheckpointError(
                    f"{name} is stored dense ({dtype.lower()}), and quantization_config says that it "
                    "is quantized"
                )

    def promise(self, linear: Linear) -> Layout | None:
        if linear.experts is None or self._excepts(linear.module):
            return None
        rows, columns = linear.shape
        own = linear.module.rpartition(".")[2]
        return _layout(own, (linear.experts, rows, columns // _GROUP))

    def scheme(self, module: str, tensors: Mapping[str, TensorInfo]) -> tuple[Stacked, str]:
        stored, own = Headers(module, tensors), module.rpartition(".")[2]
        blocks, scales = f"{own}_blocks", f"{own}_scales"
        stored.refuse_others((blocks, scales), METHOD)
        if self._excepts(module):
            raise stored.wrong("stored quantized, and modules_to_not_convert names it")
        experts, rows, groups, _ = stored.of_shape(blocks, (None, None, None, _BYTES))
        stored.match(_layout(own, (experts, rows, groups)))

        def make() -> Stacked:
            # A scale of 255 is NaN as in the OCP's specification, so that no score of it passes.
            scaling = Scaling((rows, groups * _GROUP), "group", _GROUP)
            one = mx(scaling, 4, inputs=_INPUTS, label="MXFP4A16", nan_scale=True)
            names = (("weight_packed", blocks), ("weight_scale", scales))
            return Stacked(experts, Expert(one, names), untransposes=True)

        return self.alike((own, experts, rows, groups), make), "mxfp4"

    def _excepts(self, projection: str) -> bool:
        """Tells whether the list names the experts' module, for that is what the library looks up."""
        return self.config.not_converted.name(projection.rpartition(".")[0])

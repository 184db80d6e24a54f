"""Writes quark.safetensors: weights as amd-quark 0.13 stores them, and its own dense ones as
`CASE.dense`.

By its real quantizers, which write a checkpoint and read it. Needs a CPU only:

    pip install torch==2.13.0 amd-quark==0.13
    python make_quark.py
"""

from importlib.metadata import version
from pathlib import Path

import quark.torch.kernel
import torch
from quark.torch.export.nn.modules.realquantizer import StaticScaledRealQuantizer
from quark.torch.quantization.config.config import QTensorConfig
from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
from quark.torch.quantization.observer.observer import (
    PerBlockMXObserver,
    PerChannelMinMaxObserver,
    PerGroupMinMaxObserver,
    PerTensorMinMaxObserver,
)
from safetensors.torch import save_file

OUT = Path(__file__).with_name("quark.safetensors")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
HALF = {"f16": torch.float16}
KINDS = {
    "fp8-tensor": (Dtype.fp8_e4m3, QSchemeType.per_tensor, None, None),
    "fp8-channel": (Dtype.fp8_e4m3, QSchemeType.per_channel, 0, None),
    "int8-tensor": (Dtype.int8, QSchemeType.per_tensor, None, None),
    "int8-channel": (Dtype.int8, QSchemeType.per_channel, 0, None),
    "mxfp4": (Dtype.fp4, QSchemeType.per_group, -1, 32),
}
# Signed or not, symmetric or not.
WORDS = {
    "int4": (Dtype.int4, True),
    "int4-asym": (Dtype.int4, False),
    "uint4": (Dtype.uint4, False),
}

OBSERVERS = {
    QSchemeType.per_tensor: PerTensorMinMaxObserver,
    QSchemeType.per_channel: PerChannelMinMaxObserver,
    QSchemeType.per_group: PerBlockMXObserver,
}


def main() -> None:
    torch.manual_seed(0)
    tensors = {}
    for name, dtype in DTYPES.items():
        for kind, (element, scheme, axis, size) in KINDS.items():
            weight = torch.randn(6, 96)
            spec = QTensorConfig(
                dtype=element, qscheme=scheme, ch_axis=axis, group_size=size, symmetric=True,
                is_dynamic=False, observer_cls=OBSERVERS[scheme],
                round_method=RoundType.half_even, scale_type=ScaleType.float,
                scale_format="e8m0" if size else "float32",
            )  # fmt: skip
            largest = {"fp8": 448.0, "int": 127.5, "mxf": 6.0}[kind[:3]]
            if size:
                groups = weight.view(6, -1, size).abs().amax(2)
                scale = torch.exp2((groups / largest).log2().ceil())
            elif axis is None:
                scale = weight.abs().max() / largest
            else:
                scale = weight.abs().amax(1) / largest
            quantizer = StaticScaledRealQuantizer(
                spec, None, False, True, dtype, torch.device("cpu"),
                scale_shape=tuple(scale.shape), zero_point_shape=tuple(scale.shape),
            )  # fmt: skip
            quantizer.scale = scale if size else scale.to(dtype)
            if element == Dtype.int8:
                quantizer.zero_point = torch.zeros(scale.shape, dtype=torch.int32)
            packed = quantizer.to_real_quantize_params(weight)
            quantizer.maybe_convert_and_transpose_scale()
            quantizer.pack_zero_point()
            dense = quantizer(packed)
            case = f"{kind}-{name}"
            found = {"weight": packed, "weight_scale": quantizer.scale, "dense": dense}
            if element == Dtype.int8:
                found["weight_zero_point"] = quantizer.zero_point
            tensors |= {f"{case}.{k}": v.detach().clone() for k, v in found.items()}
    for name, dtype in (DTYPES | HALF).items():
        for kind, (element, symmetric) in WORDS.items():
            for reorder in (True, False):
                found = four_bits(torch.randn(16, 96), element, symmetric, reorder, dtype)
                case = f"{kind}-{'reorder' if reorder else 'order'}-{name}"
                tensors |= {f"{case}.{k}": v.detach().clone() for k, v in found.items()}
    save_file(tensors, OUT, metadata={"amd-quark": version("amd-quark")})
    assert quark.torch.kernel is not None


def four_bits(
    weight: torch.Tensor, element: Dtype, symmetric: bool, reorder: bool, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Words of eight outputs, as `pack_method` has them, under scales of groups of 32."""
    spec = QTensorConfig(
        dtype=element, qscheme=QSchemeType.per_group, ch_axis=1, group_size=32, symmetric=symmetric,
        is_dynamic=False, observer_cls=PerGroupMinMaxObserver, round_method=RoundType.half_even,
        scale_type=ScaleType.float,
    )  # fmt: skip
    observer = PerGroupMinMaxObserver(spec, torch.device("cpu"))
    observer(weight)
    scale, zero_point = observer._calculate_qparams()
    quantizer = StaticScaledRealQuantizer(
        spec, None, reorder, True, dtype, torch.device("cpu"),
        scale_shape=tuple(scale.shape), zero_point_shape=tuple(scale.shape),
    )  # fmt: skip
    quantizer.scale, quantizer.zero_point = scale.to(dtype), zero_point.to(torch.int32)
    packed = quantizer.to_real_quantize_params(weight)
    quantizer.maybe_convert_and_transpose_scale()
    quantizer.pack_zero_point()
    return {
        "weight": packed,
        "weight_scale": quantizer.scale,
        "weight_zero_point": quantizer.zero_point,
        "dense": quantizer(packed),
    }


if __name__ == "__main__":
    main()

"""Writes inputs.safetensors: rows of inputs as each library's own quantizer rounds them.

`rows.bf16`, `rows.f16` and `rows.f32` are the inputs. Of those a case, such as `torchao-int8-row-f16`,
has `codes` and `scale` where the library gives them, else `dense`, their product. `static` is a scale
that was given. Needs a CPU only:

    pip install torch==2.13.0 torchao==0.18.0 amd-quark==0.13 nvidia-modelopt==0.47.0 \\
        bitsandbytes==0.50.0
    python make_inputs.py
"""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
from bitsandbytes.functional import int8_vectorwise_quant
from modelopt.torch.quantization.qtensor import MXFP8QTensor
from quark.torch.quantization.config.config import QTensorConfig
from quark.torch.quantization.config.type import Dtype, QSchemeType, RoundType, ScaleType
from quark.torch.quantization.observer.observer import (
    PerBlockMXObserver,
    PerChannelMinMaxObserver,
    PerTensorMinMaxObserver,
)
from quark.torch.quantization.tensor_quantize import (
    DynamicScaledFakeQuantize,
    StaticScaledFakeQuantize,
)
from safetensors.torch import save_file
from torchao.quantization import PerRow, PerTensor
from torchao.quantization.quantize_.workflows import Float8Tensor, Int8Tensor

OUT = Path(__file__).with_name("inputs.safetensors")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Tensors = dict[str, torch.Tensor]
SCALE = 0.0173


def rows(dtype: torch.dtype) -> torch.Tensor:
    """[1, 30, 96]: rows of many sizes, ties, zeros, denormals and large values."""
    torch.manual_seed(0)
    x = torch.randn(1, 30, 96) * torch.logspace(-3, 3, 30).view(1, -1, 1)
    # Halves and their neighbors under a scale of one, of int8 and then of float8.
    steps = torch.arange(-48, 48) * 2 + 0.5
    x[0, 0], x[0, 0, 0] = steps, 127.5
    x[0, 1], x[0, 1, 0] = steps * 0.75, -127.5
    x[0, 2] = torch.arange(96) / 64 + 1
    x[0, 2, 0], x[0, 3], x[0, 3, 0] = 448, torch.arange(-48, 48) * 8.5, 448
    x[0, 4], x[0, 4, ::2], x[0, 5] = 0, -0.0, torch.arange(-48, 48) * 2.0**-23
    x[0, 6] *= 1e4
    # The smallest of each dtype, and nearly the largest.
    x[0, 7] = torch.arange(-48, 48) * torch.finfo(dtype).smallest_normal / 64
    x[0, 8] = torch.linspace(-1, 1, 96) * (torch.finfo(dtype).max / 2)
    x[0, 9] = torch.arange(-48, 48) * 1e-6
    return x.to(dtype)


def torchao(x: torch.Tensor) -> dict[str, Tensors]:
    cases = {}
    for name, granularity in (("row", PerRow()), ("tensor", PerTensor())):
        # One scale for all says something where no row is 10,000 times another.
        x = x if name == "row" else x[:, 12:]
        q8, f8 = (
            Int8Tensor.from_hp(x, granularity),
            Float8Tensor.from_hp(x, granularity=granularity),
        )
        cases[f"torchao-int8-{name}"] = {"codes": q8.qdata, "scale": q8.scale}
        cases[f"torchao-float8-{name}"] = {"codes": f8.qdata.view(torch.uint8), "scale": f8.scale}
    return cases


def quark(x: torch.Tensor) -> dict[str, Tensors]:
    """In float32: in bfloat16 these round their quotients to it, which no kernel does."""
    x, cases = x.float(), {}
    kinds = {"int8": Dtype.int8, "float8": Dtype.fp8_e4m3}
    ways = {
        "row": (QSchemeType.per_channel, PerChannelMinMaxObserver, 1, None),
        "tensor": (QSchemeType.per_tensor, PerTensorMinMaxObserver, None, None),
    }
    for kind, element in kinds.items():
        for way, (scheme, observer, axis, size) in ways.items():
            quantizer = DynamicScaledFakeQuantize(spec(element, scheme, observer, axis, size))
            cases[f"quark-{kind}-{way}"] = {"dense": quantizer(x if way == "row" else x[:, 12:])}
        static = StaticScaledFakeQuantize(
            spec(
                element, QSchemeType.per_tensor, PerTensorMinMaxObserver, None, None, dynamic=False
            )
        )
        static.scale = torch.tensor(SCALE)
        static.disable_observer()
        dense = static(x)
        cases[f"quark-{kind}-static"] = {"dense": dense, "static": static.scale}
    mx = spec(Dtype.fp4, QSchemeType.per_group, PerBlockMXObserver, -1, 32)
    cases["quark-mxfp4"] = {"dense": DynamicScaledFakeQuantize(mx)(x)}
    return cases


def spec(element, scheme, observer, axis, size, dynamic: bool = True) -> QTensorConfig:
    return QTensorConfig(
        dtype=element, qscheme=scheme, ch_axis=axis, group_size=size, symmetric=True,
        is_dynamic=dynamic, observer_cls=observer, round_method=RoundType.half_even,
        scale_type=ScaleType.float32, scale_format="e8m0" if size else "float32",
        scale_calculation_mode="even" if size else None,
    )  # fmt: skip


def modelopt(x: torch.Tensor) -> dict[str, Tensors]:
    scale = MXFP8QTensor.get_weights_scaling_factor(x)
    codes = MXFP8QTensor.quantize_with_scale(x.float(), scale).view(torch.uint8)
    return {"modelopt-mxfp8": {"codes": codes, "scale": scale}}


def bitsandbytes(x: torch.Tensor) -> dict[str, Tensors]:
    """As `MatMul8bitLt` calls it: in float16, all tokens at once."""
    x, cases = x[0].clamp(-65504, 65504).half(), {}
    for threshold in (0.0, 6.0):
        codes, largest, columns = int8_vectorwise_quant(x.clone(), threshold)
        case = cases[f"bitsandbytes-int8-{threshold:g}"] = {"codes": codes, "largest": largest}
        if columns is not None:
            case["columns"] = columns
    return cases


def main() -> None:
    tensors = {}
    makers: tuple[Callable[[torch.Tensor], dict[str, Tensors]], ...] = (
        torchao,
        quark,
        modelopt,
        bitsandbytes,
    )
    for name, dtype in DTYPES.items():
        tensors[f"rows.{name}"] = rows(dtype)
        for make in makers:
            for case, found in make(rows(dtype)).items():
                tensors |= {f"{case}-{name}.{k}": v.contiguous().clone() for k, v in found.items()}
    libraries = ("torchao", "amd-quark", "nvidia-modelopt", "bitsandbytes")
    save_file(tensors, OUT, metadata={library: version(library) for library in libraries})


if __name__ == "__main__":
    main()

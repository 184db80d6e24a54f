"""Stored tensors as compressed-tensors makes them, the library's answers, and tiny checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES, preset_name_to_scheme
from compressed_tensors.quantization.utils import (
    calculate_block_padding,
    calculate_qparams,
    generate_gparam,
)
from safetensors.torch import save_file

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError
from scoremode.schemes.base import FactoredScheme, Scheme, Scratch
from scoremode.schemes.compressed_tensors import FORMATS, Stored
from scoremode.schemes.compressed_tensors_config import parse_quantization
from scoremode.schemes.compressed_tensors_weights import pack_quantized
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.packed import Packed

Tensors = dict[str, torch.Tensor]

# Every preset of the library that quantizes something.
PRESETS = [name for name in PRESET_SCHEMES if name != "UNQUANTIZED"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
# safetensors' names of dtypes.
DTYPE_NAMES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64",
    torch.int8: "I8", torch.uint8: "U8", torch.int16: "I16", torch.int32: "I32", torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e8m0fnu: "F8_E8M0",
}  # fmt: skip


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def arguments(bits: int, strategy: str, size: int | None, symmetric: bool) -> QuantizationArgs:
    """The library's integers; `size` counts only for groups."""
    group_size = size if strategy == "group" else None
    return QuantizationArgs(
        num_bits=bits, strategy=strategy, group_size=group_size, symmetric=symmetric
    )


def scheme_of(args: QuantizationArgs, shape: tuple[int, int], **changes: Any) -> Packed:
    settings: dict[str, Any] = {
        "bits": args.num_bits,
        "scaling": Scaling(shape, str(args.strategy), args.group_size),
        "has_zero_point": not args.symmetric,
    }
    return pack_quantized(**settings | changes)


def preset(name: str) -> tuple[QuantizationScheme, str]:
    """The library's scheme, and the format it stores it in."""
    scheme = preset_name_to_scheme(name, ["Linear"])
    return scheme, infer_module_format(torch.nn.Linear, scheme).value


def compress(
    weight: torch.Tensor, scheme: QuantizationArgs | QuantizationScheme, form: str | None = None
) -> Tensors:
    """The library's tensors of a dense weight, with scales from the extremes of each part.

    Static scales of the input, which its calibration would make, are made up.
    """
    scheme = _scheme(scheme)
    args = scheme.weights
    assert args is not None
    rows, columns = weight.shape
    whole = generate_gparam(weight.min(), weight.max()) if args.strategy == "tensor_group" else None
    if args.strategy == "block":
        height, width = args.block_structure
        more = calculate_block_padding(weight.shape, (height, width))
        blocks = torch.nn.functional.pad(weight, (0, more[1], 0, more[0]))
        by_scale = blocks.unflatten(1, (-1, width)).unflatten(0, (-1, height))
        by_scale = by_scale.transpose(1, 2).flatten(2)
    elif args.strategy in ("group", "tensor_group"):
        by_scale = weight.unflatten(1, (-1, args.group_size))
    else:
        by_scale = weight.reshape((1, 1, -1) if args.strategy == "tensor" else (rows, 1, columns))
    scale, zero_point = calculate_qparams(
        by_scale.amin(2), by_scale.amax(2), args, global_scale=whole
    )
    if args.strategy == "tensor":
        scale, zero_point = scale.view(1), zero_point.view(1)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    if whole is not None:
        state["weight_global_scale"] = whole
    stored = _compressor(scheme, form).compress(state, scheme)
    inputs = scheme.input_activations
    if inputs and inputs.dynamic is False:
        stored["input_scale"] = torch.tensor([0.0371], dtype=weight.dtype)
        if not inputs.symmetric:
            stored["input_zero_point"] = torch.tensor([-3], dtype=torch.int8)
    elif inputs and inputs.dynamic == "local":
        stored["input_global_scale"] = torch.tensor([37.25])
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def decompress(
    stored: Mapping[str, torch.Tensor],
    scheme: QuantizationArgs | QuantizationScheme,
    form: str | None = None,
) -> torch.Tensor:
    """The library's dense weight."""
    scheme, stored = _scheme(scheme), dict(stored)
    assert scheme.weights is not None
    packed = "weight_packed" in stored and scheme.weights.strategy in ("group", "channel")
    zero_point = stored.get("weight_zero_point")
    if packed and zero_point is not None and zero_point.shape[0] == 1:
        # 0.20.0 can't view a single row of words as bytes: it gets a second one, which it drops.
        stored["weight_zero_point"] = zero_point.repeat(2, 1)
    return _compressor(scheme, form).decompress(stored, scheme)["weight"]


def store(
    values: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    args: QuantizationArgs,
) -> Tensors:
    """The tensors of signed integers (int8), packed by the library."""
    stored = {
        "weight_packed": pack_to_int32(values, args.num_bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor(values.shape),
    }
    if zero_point is not None:
        packed = args.strategy != "tensor"
        stored["weight_zero_point"] = (
            pack_to_int32(zero_point, args.num_bits, packed_dim=0) if packed else zero_point
        )
    return stored


def build(
    stored: Mapping[str, torch.Tensor],
    group: Mapping[str, Any] | QuantizationArgs | QuantizationScheme,
    form: str | None = None,
    version: str | None = "0.20.0",
    **config: Any,
) -> FactoredScheme:
    """Our Scheme of the module `m` with these tensors, by a group's fields."""
    if not isinstance(group, Mapping):
        scheme = _scheme(group)
        form = form or infer_module_format(torch.nn.Linear, scheme).value
        group = scheme.model_dump(mode="json")
    config = {"version": version, **config}
    parsed = parse_quantization(quantization({"g": group}, form or "pack-quantized", **config))
    found = parsed.group_of("m")
    assert found is not None and found.weights is not None and parsed.format is not None
    infos = {
        suffix: TensorInfo(
            f"m.{suffix}",
            Path("file"),
            DTYPE_NAMES[tensor.dtype],
            tuple(tensor.shape),
            tensor.numel() * tensor.itemsize,
        )
        for suffix, tensor in stored.items()
    }
    return FORMATS[parsed.format].build(
        Stored(
            module="m",
            tensors=infos,
            config=parsed,
            group=found,
            weights=found.weights,
            read=lambda name: content_of(stored[name.removeprefix("m.")]),
        )
    )


def refusal(*args: Any, error: type[CheckpointError] = CheckpointError, **kwargs: Any) -> str:
    """The one line that `build` refuses with."""
    try:
        build(*args, **kwargs)
    except CheckpointError as caught:
        assert type(caught) is error, caught
        assert "\n" not in str(caught)
        return str(caught)
    raise AssertionError("it was built")


def decode(
    scheme: Scheme,
    stored: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Ours, into a buffer that holds NaN wherever nothing is written."""
    out = torch.full(scheme.shape, float("nan"), dtype=dtype)
    scheme.decode({n: stored[n] for n in scheme.tensors}, out, scratch or Scratch())
    return out


def factor(
    scheme: FactoredScheme, stored: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ours: codes, and the scales spread over them, in float64."""
    out = torch.full(scheme.shape, 77, dtype=torch.float32).to(dtype)
    scale = scheme.factor({n: stored[n] for n in scheme.tensors}, out, Scratch())
    rows, columns = scheme.shape
    group = scheme.codes.group or columns
    assert scale.dtype == torch.float32
    assert scale.shape in {(1, -(-columns // group)), (rows, -(-columns // group))}
    spread = scale.double().repeat_interleave(group, dim=1)[:, :columns]
    return out, spread.expand(rows, columns)


def random_weight(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator)
    return (weight + 0.5 * torch.randn(rows, 1, generator=generator)).to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """The same bits (so -0.0 is not 0.0), but for which NaN it is; `expected` as actual's dtype."""
    expected = expected.to(actual.dtype)
    assert actual.shape == expected.shape
    nan = expected.isnan()
    assert torch.equal(actual.isnan(), nan)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[actual.itemsize]
    bits = [t.contiguous().view(integer).masked_fill(nan, 0) for t in (actual, expected)]
    if not torch.equal(*bits):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        raise AssertionError("signs of zeros differ")


def content_of(tensor: torch.Tensor) -> bytes:
    """Its bytes as a file has them."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    quantization: Mapping[str, Any] | None = None,
    **config: Any,
) -> str:
    """A folder with one safetensors file; its path as the command line has it."""
    if quantization is not None:
        config["quantization_config"] = quantization
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")
    return str(folder)


def quantization(
    groups: Mapping[str, Any], form: str = "pack-quantized", **others: Any
) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": dict(groups),
        **others,
    }


def group(*targets: str, **weights: Any) -> dict[str, Any]:
    """A group of 4-bit weights in groups of 32, but for what is given."""
    settings = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    return {"targets": list(targets or ["Linear"]), "weights": settings | weights}


def _scheme(given: QuantizationArgs | QuantizationScheme) -> QuantizationScheme:
    if isinstance(given, QuantizationScheme):
        return given
    return QuantizationScheme(targets=["Linear"], weights=given)


def _compressor(scheme: QuantizationScheme, form: str | None) -> type[BaseCompressor]:
    form = form or infer_module_format(torch.nn.Linear, scheme).value
    return BaseCompressor.get_value_from_registry(form)

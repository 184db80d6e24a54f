"""Packed tensors as compressed-tensors makes them, and tiny checkpoints around them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

from scoremode.schemes.base import Scratch
from scoremode.schemes.pack_quantized import PackQuantized

Tensors = dict[str, torch.Tensor]


def arguments(bits: int, strategy: str, size: int | None, symmetric: bool) -> QuantizationArgs:
    """The library's; `size` counts only for groups."""
    group_size = size if strategy == "group" else None
    return QuantizationArgs(
        num_bits=bits, strategy=strategy, group_size=group_size, symmetric=symmetric
    )


def scheme_of(args: QuantizationArgs, shape: tuple[int, int], **changes: Any) -> PackQuantized:
    settings = {
        "shape": shape,
        "bits": args.num_bits,
        "strategy": args.strategy,
        "group_size": args.group_size,
        "has_zero_point": not args.symmetric,
        "has_g_idx": False,
    }
    return PackQuantized(**settings | changes)


def compress(weight: torch.Tensor, args: QuantizationArgs) -> Tensors:
    """The library's tensors of a dense weight, with scales from each group's extremes."""
    rows, columns = weight.shape
    by_scale = {
        "group": lambda: weight.unflatten(1, (-1, args.group_size)),
        "channel": lambda: weight.view(rows, 1, columns),
        "tensor": lambda: weight.view(1, 1, -1),
    }[args.strategy]()
    scale, zero_point = calculate_qparams(by_scale.amin(2), by_scale.amax(2), args)
    if args.strategy == "tensor":
        scale, zero_point = scale.view(1), zero_point.view(1)
    state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
    return PackedQuantizationCompressor.compress(state, _scheme(args))


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


def decompress(stored: Mapping[str, torch.Tensor], args: QuantizationArgs) -> torch.Tensor:
    """The library's dense weight."""
    stored = dict(stored)
    zero_point = stored.get("weight_zero_point")
    if zero_point is not None and zero_point.shape[0] == 1 and args.strategy == "group":
        # 0.20.0 can't view a single row of words as bytes: it gets a second one, which it drops.
        stored["weight_zero_point"] = zero_point.repeat(2, 1)
    return PackedQuantizationCompressor.decompress(stored, _scheme(args))["weight"]


def decode(
    scheme: PackQuantized,
    stored: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
    scratch: Scratch | None = None,
) -> torch.Tensor:
    """Ours, into a buffer that holds NaN wherever nothing is written."""
    out = torch.full(scheme.shape, float("nan"), dtype=dtype)
    scheme.decode({n: stored[n] for n in scheme.tensors}, out, scratch or Scratch())
    return out


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=0, atol=0)


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
    groups: Mapping[str, Mapping[str, Any]], form: str = "pack-quantized", **others: Any
) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {name: dict(group) for name, group in groups.items()},
        **others,
    }


def group(*targets: str, **weights: Any) -> dict[str, Any]:
    """A group of 4-bit weights in groups of 32, but for what is given."""
    settings = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    return {"targets": list(targets or ["Linear"]), "weights": settings | weights}


def _scheme(args: QuantizationArgs) -> QuantizationScheme:
    return QuantizationScheme(targets=["Linear"], weights=args)

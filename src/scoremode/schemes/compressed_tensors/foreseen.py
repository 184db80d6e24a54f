"""What a linear would be stored as, by a `quantization_config` of compressed-tensors alone."""

from collections.abc import Mapping
from typing import Any

from scoremode.schemes.compressed_tensors.config import Group, parse_quantization
from scoremode.schemes.compressed_tensors.pack_quantized import has_dense_words
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["foresee"]


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_quantization(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        group = parsed.group_of(linear.module)
        if group is None or group.weights is None:
            return None
        form = str(group.format or parsed.format)
        dense_words = has_dense_words(parsed.version)
        return {
            **_weight(linear, group.weights, form, dense_words=dense_words is not False),
            **_inputs(group, form),
        }

    return tensors


def _weight(
    linear: Linear, weights: TensorFormat, form: str, *, dense_words: bool
) -> dict[str, Foreseen]:
    rows, columns = linear.shape
    scales = _scaling(linear, weights).stored_shape
    by_tensor = weights.strategy == "tensor"
    of_scales = (1,) if by_tensor else scales
    zero = {} if weights.symmetric else {"weight_zero_point": Foreseen("I8", of_scales)}
    scale = {"weight_scale": Foreseen(linear.dtype, of_scales)}
    if form == "pack-quantized":
        bits = weights.bits

        def words(values: int) -> int:
            return -(-values * bits // 32) if dense_words else -(-values // (32 // bits))

        shape = b"".join(n.to_bytes(8, "little") for n in linear.shape)
        if zero and not by_tensor:
            zero = {"weight_zero_point": Foreseen("I32", (words(rows), scales[1]))}
        order = {}
        if weights.actorder == "group":
            size = weights.group_size or columns
            places = b"".join((i // size).to_bytes(4, "little") for i in range(columns))
            order = {"weight_g_idx": Foreseen("I32", (columns,), places)}
        return {
            "weight_packed": Foreseen("I32", (rows, words(columns))),
            "weight_shape": Foreseen("I64", (2,), shape),
            **scale,
            **zero,
            **order,
        }
    if form == "nvfp4-pack-quantized":
        return {
            "weight_packed": Foreseen("U8", (rows, columns // 2)),
            "weight_scale": Foreseen("F8_E4M3", scales),
            "weight_global_scale": Foreseen("F32", (1,)),
        }
    if form.startswith("mxfp"):
        packed = {"weight_packed": Foreseen("U8", (rows, columns * weights.bits // 8))}
        if weights.bits == 8:
            packed = {"weight": Foreseen("F8_E4M3", linear.shape)}
        return packed | {"weight_scale": Foreseen("U8", scales)}
    dtype = "I8" if weights.type == "int" else "F8_E4M3"
    return {"weight": Foreseen(dtype, linear.shape), **scale, **zero}


def _scaling(linear: Linear, weights: TensorFormat) -> Scaling:
    if weights.strategy == "block":
        return Scaling(linear.shape, "block", block=weights.block)
    if weights.strategy in ("group", "tensor_group"):
        return Scaling(linear.shape, "group", weights.group_size)
    return Scaling(linear.shape, weights.strategy)


def _inputs(group: Group, form: str) -> dict[str, Foreseen]:
    inputs = group.inputs
    if inputs is None or inputs.dynamic is True:
        return {}
    if inputs.dynamic == "local":
        return {"input_global_scale": Foreseen("F32", (1,))}
    zero = {} if inputs.symmetric else {"input_zero_point": Foreseen("I8", (1,))}
    return {"input_scale": Foreseen("F32", (1,))} | zero

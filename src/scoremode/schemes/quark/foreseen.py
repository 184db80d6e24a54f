"""What a linear would be stored as, by a `quantization_config` of AMD Quark alone.

Scales have 32 bits where they are no powers of two. Those of a cache are left out: two numbers a layer.
"""

from collections.abc import Mapping
from typing import Any

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.quark.config import METHOD, Layer, parse_quark
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["foresee"]


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read."""
    parsed = parse_quark(config)

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        layer = parsed.of(linear.module)
        if layer.weights is None or parsed.excludes(linear.module):
            return None
        return {**_weight(linear, layer.weights), **_inputs(layer)}

    return tensors


def _weight(linear: Linear, weights: TensorFormat) -> dict[str, Foreseen]:
    scaling = Scaling(linear.shape, weights.strategy, weights.group_size, block=weights.block)
    scales = scaling.stored_shape
    if weights.is_mx and weights.bits == 4:
        codes = Foreseen("U8", (linear.shape[0], -(-linear.shape[1] // 2)))
        return {"weight": codes, "weight_scale": Foreseen("U8", scales)}
    if weights.bits == 4 and weights.type != "float" and weights.strategy == "group":
        return _in_words(linear, weights)
    if weights.bits != 8 or weights.strategy not in ("tensor", "channel", "block"):
        raise UnsupportedFormat(
            f"{linear.module}: {METHOD} with weights {weights}: what is stored is known from its "
            "tensors alone"
        )
    of_scales = {"tensor": (), "channel": scales[:1]}.get(weights.strategy, scales)
    scale = {"weight_scale": Foreseen("F32", of_scales)}
    if weights.type == "int":
        return {
            "weight": Foreseen("I8", linear.shape),
            **scale,
            "weight_zero_point": Foreseen("I8", of_scales),
        }
    return {"weight": Foreseen("F8_E4M3", linear.shape), **scale}


def _in_words(linear: Linear, weights: TensorFormat) -> dict[str, Foreseen]:
    """Words of eight outputs; zero points of symmetric ones are stored as well."""
    (rows, columns), size = linear.shape, weights.group_size
    if rows % 8 or size is None or columns % size:
        raise UnsupportedFormat(
            f"{linear.module}: {METHOD} with weights {weights}, which {rows} x {columns} don't fill"
        )
    return {
        "weight": Foreseen("I32", (columns, rows // 8)),
        "weight_scale": Foreseen("F32", (columns // size, rows)),
        "weight_zero_point": Foreseen("I32", (columns // size, rows // 8)),
    }


def _inputs(layer: Layer) -> dict[str, Foreseen]:
    if layer.inputs is None or layer.inputs.dynamic:
        return {}
    zero = {"input_zero_point": Foreseen("I8", ())} if layer.inputs.type == "int" else {}
    return {"input_scale": Foreseen("F32", ())} | zero

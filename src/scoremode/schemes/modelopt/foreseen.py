"""What a linear would be stored as, by a config of ModelOpt alone.

Scales have the dtypes and shapes that ModelOpt 0.47 writes. Of AWQ a `pre_quant_scale` is left out,
which the linears have that no norm comes before: 16 / O bits a weight.
"""

import re
from collections.abc import Mapping
from typing import Any

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.foreseen import Foresee, Foreseen, Linear
from scoremode.schemes.modelopt.config import METHOD, Algorithm, parse_modelopt

__all__ = ["foresee"]

# Routers that are linears. Exports leave them, and not all list them.
_ROUTER = re.compile(r"(.*\.)?(router|mlp\.gate|block_sparse_moe\.gate|shared_expert_gate)(\..*)?")
_ONE = Foreseen("F32", ())


def foresee(config: Mapping[str, Any]) -> Foresee:
    """Raises CheckpointError, UnsupportedFormat for a config that can't be read, and where it has no
    list of what is excluded: every export leaves the head at least, so the list was left out."""
    parsed = parse_modelopt(config)
    fields = config.get("quantization") or config
    listed = [name for name in ("exclude_modules", "ignore") if fields.get(name) is not None]
    if parsed.algorithm is not None and not listed:
        raise UnsupportedFormat(
            f"{METHOD} with quant_algo {parsed.stated} and no exclude_modules: which linears are "
            "quantized is known from its tensors alone"
        )

    def tensors(linear: Linear) -> Mapping[str, Foreseen] | None:
        algorithm = parsed.algorithm_of(linear.module)
        if algorithm is None or parsed.excluded.has(linear.module):
            return None
        named = parsed.claims(linear.module)
        if not named and (not linear.in_layer or _ROUTER.fullmatch(linear.module)):
            return None
        return _stored(linear, algorithm)

    return tensors


def _stored(linear: Linear, algorithm: Algorithm) -> dict[str, Foreseen]:
    name, (rows, columns) = algorithm.name, linear.shape
    inputs = {"input_scale": _ONE}
    if name.endswith("AWQ") and name != "NVFP4_AWQ":
        if algorithm.group is None:
            raise UnsupportedFormat(
                f"{METHOD} with quant_algo {name} and no group_size: it is known from its tensors alone"
            )
        scales = Scaling(linear.shape, "group", algorithm.group).stored_shape
        stored = {
            "weight": Foreseen("U8", (-(-rows // 2), columns)),
            "weight_scale": Foreseen("F32", scales),
        }
        return stored | ({"weight_scale_2": _ONE, **inputs} if name == "W4A8_AWQ" else {})
    if "NVFP4" in name:
        scales = Scaling(linear.shape, "group", 16).stored_shape
        stored = {
            "weight": Foreseen("U8", (rows, -(-columns // 2))),
            "weight_scale": Foreseen("F8_E4M3", scales),
            "weight_scale_2": _ONE,
        }
        return stored | ({} if name == "W4A16_NVFP4" else inputs)
    stored = {"weight": Foreseen("F8_E4M3", linear.shape)}
    if name == "MXFP8":
        scales = Scaling(linear.shape, "group", 32).stored_shape
        return stored | {"weight_scale": Foreseen("U8", scales)}
    if name == "FP8_PER_CHANNEL_PER_TOKEN":
        return stored | {"weight_scale": Foreseen("F32", (rows,))}
    if name == "FP8_PB_WO":
        assert algorithm.group is not None
        block = algorithm.group, algorithm.group
        down, across = Scaling(linear.shape, "block", block=block).stored_shape
        return stored | {"weight_scale": Foreseen("F32", (down, 1, across, 1))}
    return stored | {"weight_scale": _ONE, **inputs}

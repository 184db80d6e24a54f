"""`quantization_config` of gpt-oss: all experts in MXFP4, and everything else in bfloat16.

Source: transformers 5.23, `Mxfp4Config`, `replace_with_mxfp4_linear`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.library import TensorsDecide
from scoremode.schemes.not_converted import NotConverted

__all__ = ["METHOD", "Mxfp4Config", "parse_mxfp4"]

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
    """Reads a `quantization_config` whose `quant_method` is `mxfp4`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    for name in _MORE:
        if value := fields.any(name):
            raise not_decoded(METHOD, name, value)
    return Mxfp4Config(NotConverted.of(fields, "modules_to_not_convert"))

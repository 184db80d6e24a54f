"""`quantization_config` of bitsandbytes, as transformers writes it.

What a weight is its tensors say, and those of 4 bits have a record of their own beside them; the
config tells 4 bits from 8, what LLM.int8 does with inputs, and which linears are not quantized.
Source: transformers 5.23, `BitsAndBytesConfig`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import CheckpointError
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.library import TensorsDecide
from scoremode.schemes.not_converted import NotConverted
from scoremode.schemes.patterns import is_one_of_layers

__all__ = ["METHOD", "BitsAndBytesConfig", "parse_bitsandbytes"]

METHOD = "quantization method 'bitsandbytes'"


@dataclass(frozen=True)
class BitsAndBytesConfig(TensorsDecide):
    """What of the config decides what a weight and an input mean.

    - `bits`: 4 or 8; `threshold`: the magnitude from which LLM.int8 multiplies a column of inputs
      apart.
    - `not_converted`: the modules that are not quantized.
    """

    bits: int
    threshold: float
    not_converted: NotConverted

    def claims(self, module: str) -> bool:
        """True for a decoder layer's linear that the list doesn't name: stored dense, transformers 4
        refuses it in 4 bits, and quantizes it in 8."""
        return is_one_of_layers(module) and not self.not_converted.spares(module)


def parse_bitsandbytes(config: Mapping[str, Any]) -> BitsAndBytesConfig:
    """Reads a `quantization_config` whose `quant_method` is `bitsandbytes`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    four, eight = (
        bool(fields.flag(name, False) or fields.flag(f"_{name}", False))
        for name in ("load_in_4bit", "load_in_8bit")
    )
    if four == eight:
        which = "both" if four else "neither"
        raise CheckpointError(
            f"quantization_config can't be understood: {which} of load_in_4bit and load_in_8bit"
        )
    if fields.flag("llm_int8_has_fp16_weight", False):
        raise not_decoded(METHOD, "llm_int8_has_fp16_weight", True)
    threshold = fields.any("llm_int8_threshold", 6.0)
    if type(threshold) not in (int, float) or not 0 <= threshold < math.inf:
        raise fields.wrong("llm_int8_threshold", "a number that is not negative")
    kind = fields.text("bnb_4bit_quant_type")
    if four and kind not in (None, "nf4", "fp4"):
        raise not_decoded(METHOD, "bnb_4bit_quant_type", kind)
    skipped = NotConverted.of(fields, "llm_int8_skip_modules")
    return BitsAndBytesConfig(4 if four else 8, float(threshold), skipped)

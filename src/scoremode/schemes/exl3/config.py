"""`quantization_config` of ExLlamaV3 (`quant_method: exl3`).

Its `bits` are an average over all linears, which one has how many its tensors tell, and so do they tell
the codebook: what it says of calibration, output scales and `tensor_storage` changes no weight.
Source: exllamav3 1.4.1, `conversion/compile.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.schemes.exl3.trellis import CODEBOOKS
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.library import TensorsDecide

__all__ = ["METHOD", "Exl3Config", "parse_exl3"]

METHOD = "quantization method 'exl3'"


@dataclass(frozen=True)
class Exl3Config(TensorsDecide):
    """Nothing that a weight's meaning depends on."""


def parse_exl3(config: Mapping[str, Any]) -> Exl3Config:
    """Reads a `quantization_config` whose `quant_method` is `exl3`.

    Raises UnsupportedFormat for a codebook that is not decoded, CheckpointError for what can't be
    understood.
    """
    fields = Fields(config, "its top")
    for name in ("bits", "head_bits"):
        value = fields.any(name)
        if value is not None and type(value) not in (int, float):
            raise fields.wrong(name, "a number")
    codebook = fields.text("codebook")
    if codebook is not None and codebook not in CODEBOOKS:
        raise not_decoded(METHOD, "codebook", codebook)
    return Exl3Config()

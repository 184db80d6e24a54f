"""`quantization_config` of torchao, as transformers writes it.

It says how a model was quantized; what a weight is its file's metadata says, tensor by tensor.
Source: transformers 5.23, `TorchAoConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.library import TensorsDecide
from scoremode.schemes.not_converted import NotConverted

__all__ = ["METHOD", "TorchAoConfig", "parse_torchao"]

METHOD = "quantization method 'torchao'"


@dataclass(frozen=True)
class TorchAoConfig(TensorsDecide):
    """The modules that are not quantized.

    A linear that is stored dense is dense: torchao leaves those whose sizes its products can't take,
    and transformers loads what it finds.
    """

    not_converted: NotConverted


def parse_torchao(config: Mapping[str, Any]) -> TorchAoConfig:
    """Reads a `quantization_config` whose `quant_method` is `torchao`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    for name in ("include_input_output_embeddings", "untie_embedding_weights"):
        if fields.flag(name, False):
            raise not_decoded(METHOD, name, True)
    return TorchAoConfig(NotConverted.of(fields, "modules_to_not_convert"))

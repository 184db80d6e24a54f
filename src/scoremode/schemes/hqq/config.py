"""`quantization_config` of HQQ, as transformers writes it.

One `quant_config` is for all linears, or there is one for each kind of them by its tag: a module's
name without `model`, `layers` and numbers. Each module's tensors say the same once more, and they
decide.
Source: transformers 5.23, `HqqConfig`, `prepare_for_hqq_linear`; hqq 0.2.8, `BaseQuantizeConfig`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.library import TensorsDecide
from scoremode.schemes.patterns import is_one_of_layers, plain

__all__ = ["METHOD", "HqqConfig", "Parameters", "parse_hqq", "tag_of"]

METHOD = "quantization method 'hqq'"


@dataclass(frozen=True)
class Parameters:
    """What a config says of a weight; None where it says nothing.

    - `as_float`: whether codes are stored as the floats of the same bytes.
    """

    bits: float | None
    group_size: int | None
    axis: int | None
    as_float: bool = False


@dataclass(frozen=True)
class HqqConfig(TensorsDecide):
    """What of the config the modules' tensors are held to.

    - `parameters`: by tag, under "" those of all; `skipped`: tags and names that are not quantized.
    """

    parameters: Mapping[str, Parameters]
    skipped: frozenset[str]

    def claims(self, module: str) -> bool:
        """True for a decoder layer's linear that has parameters: stored dense, transformers quantizes
        it as it loads it."""
        return is_one_of_layers(module) and self.of(module) is not None and not self.spares(module)

    def spares(self, module: str) -> bool:
        """Tells whether the list names the module or its kind, whatever their names begin with."""
        names = {plain(name) for name in self.skipped}
        return plain(module) in names or plain(tag_of(module)) in names

    def skips(self, module: str) -> bool:
        return module in self.skipped or tag_of(module) in self.skipped

    def of(self, module: str) -> Parameters | None:
        """What it says of a module, None where nothing."""
        return self.parameters.get("") or self.parameters.get(tag_of(module))


def tag_of(module: str) -> str:
    """The kind of a linear: `self_attn.q_proj` of `model.layers.3.self_attn.q_proj`."""
    parts = module.split(".")
    return ".".join(p for p in parts if p not in ("model", "layers") and not p.isnumeric())


def parse_hqq(config: Mapping[str, Any]) -> HqqConfig:
    """Reads a `quantization_config` whose `quant_method` is `hqq`.

    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    quant = fields.object("quant_config")
    found: dict[str, Parameters] = {}
    if quant is not None and quant.any("weight_quant_params") is not None:
        found[""] = _parameters(quant)
    elif quant is not None:
        for tag in config["quant_config"]:
            kind = quant.object(tag)
            # The library leaves a kind dense that is named and not described.
            if kind is not None:
                found[tag] = _parameters(kind)
    return HqqConfig(found, frozenset(fields.names("skip_modules")))


def _parameters(fields: Fields) -> Parameters:
    for name in ("scale_quant_params", "zero_quant_params"):
        if fields.any(name):
            raise not_decoded(METHOD, name, fields.any(name))
    weight = fields.object("weight_quant_params") or Fields({}, "weight_quant_params")
    if not weight.flag("channel_wise", True):
        raise UnsupportedFormat(f"{METHOD} with channel_wise False: not decoded")
    bits = weight.any("nbits")
    if bits is not None and type(bits) not in (int, float):
        raise weight.wrong("nbits", "a number")
    as_float = bool(weight.flag("view_as_float", False))
    return Parameters(bits, weight.whole("group_size"), weight.whole("axis"), as_float)

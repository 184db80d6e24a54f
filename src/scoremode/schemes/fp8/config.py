"""`quantization_config` of transformers' FineGrainedFP8, as DeepSeek, Qwen and others publish it.

Which linears are quantized is told by their tensors: a checkpoint's list of others may be missing
(DeepSeek's, whose head is dense all the same) or name them by other names (GLM-5's), and transformers
uses a dense weight as it is wherever it finds one.
Source: transformers 5.23, `FineGrainedFP8Config`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.schemes.fields import Fields, not_decoded
from scoremode.schemes.not_converted import NotConverted
from scoremode.schemes.tensor_format import TensorFormat, UnreadCache, declared_cache

__all__ = ["METHOD", "Fp8Config", "parse_fp8"]

METHOD = "quantization method 'fp8'"
# Said in configs that mean more than blocks of float8: ModelOpt's, Quark's, embeddings in float8.
_MORE = (
    *("quant_algo", "config_groups", "quantized_layers", "moe_quant_algo"),
    *("export", "modules_to_convert", "dequantize"),
)


@dataclass(frozen=True)
class Fp8Config:
    """What of the config decides what a weight means.

    - `block`: rows and columns that share a scale, None for one scale a tensor or a row; `says_block`:
      whether that is said, and no default of transformers'.
    - `static`: whether inputs have one stored scale; otherwise they have one a token and block of
      columns, or one a token.
    - `powers_of_two`: whether scales are such.
    - `fp4_experts`: whether weights of 8-bit integers are pairs of e2m1.
    - `not_converted`: modules that are not quantized.
    - `kv_cache`: how keys and values are declared to be quantized.
    """

    block: tuple[int, int] | None
    says_block: bool
    static: bool
    powers_of_two: bool
    fp4_experts: bool
    not_converted: NotConverted
    kv_cache: TensorFormat | UnreadCache | None = None

    def claims(self, module: str) -> bool:
        """False: a linear without a quantized one's tensors is dense."""
        return False

    @property
    def inputs(self) -> TensorFormat:
        """How a linear's input is quantized."""
        if self.static:
            return TensorFormat(8, "float", "tensor")
        if self.block is None:
            return TensorFormat(8, "float", "token", dynamic=True, powers_of_two=self.powers_of_two)
        return TensorFormat(
            8, "float", "group", self.block[1], dynamic=True, powers_of_two=self.powers_of_two
        )

    def excepts(self, module: str) -> bool:
        """Tells whether the config's list names the module."""
        return self.not_converted.name(module)


def parse_fp8(config: Mapping[str, Any], expert_dtype: Any = None) -> Fp8Config:
    """Reads a `quantization_config` whose `quant_method` is `fp8`.

    `expert_dtype`: what the model's own config says of it, as DeepSeek-V4's does.
    Raises UnsupportedFormat for what is not decoded, CheckpointError for what can't be understood.
    """
    fields = Fields(config, "its top")
    for name in _MORE:
        if fields.any(name):
            raise not_decoded(METHOD, name, fields.any(name))
    wanted = {"fmt": ("e4m3", "float8_e4m3fn"), "scale_fmt": ("float", "ue8m0")}
    for name, values in wanted.items():
        if fields.text(name) not in (None, *values):
            raise not_decoded(METHOD, name, fields.any(name))
    said = fields.text("expert_dtype")
    experts = expert_dtype if said is None else said
    if experts not in (None, "fp8", "fp4"):
        raise not_decoded(METHOD, "expert_dtype", experts)
    scheme = fields.text("activation_scheme", "dynamic") or ""
    if scheme.lower() not in ("dynamic", "static"):
        raise not_decoded(METHOD, "activation_scheme", scheme)
    return Fp8Config(
        _block(fields),
        says_block=fields.any("weight_block_size") is not None,
        static=scheme.lower() == "static",
        powers_of_two=fields.text("scale_fmt") == "ue8m0",
        fp4_experts=experts == "fp4",
        # MiniMax calls the list ignored_layers.
        not_converted=NotConverted.of(fields, "modules_to_not_convert", "ignored_layers"),
        kv_cache=declared_cache(lambda: _cache(fields)),
    )


def _cache(fields: Fields) -> TensorFormat | None:
    """AutoFP8, AMD and Tencent write `static`: float8 e4m3 under stored scales, one a tensor."""
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if (value := fields.any(name)) == "static":
            return TensorFormat(8, "float", "tensor")
        if value:
            raise not_decoded(METHOD, name, value)
    return None


def _block(fields: Fields) -> tuple[int, int] | None:
    value = fields.any("weight_block_size", [128, 128])
    if value is None:
        return None
    match value:
        case [int(rows), int(columns)] if bool not in (type(rows), type(columns)):
            if 0 < rows < 1 << 31 and 0 < columns < 1 << 31:
                return rows, columns
    raise fields.wrong("weight_block_size", "rows and columns")

"""Other libraries' quantized checkpoints: recognised, so that each is refused by its name.

Sources: transformers 5.23, `QuantizationMethod`; vLLM 0.33, `QuantizationMethods`; each library's own
files.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from scoremode.schemes.fields import shown

__all__ = ["foreign_method", "foreign_tensors", "method_of", "sparse_format"]

_VLLM = "vLLM can score it: --engine vllm"
# quant_method → whose it is, and what to do.
_METHODS = {
    "deepseek_v4_fp8": f"DeepSeek; {_VLLM}",
    "fbgemm_fp8": "FBGEMM of transformers",
    "inc": f"Intel Neural Compressor; {_VLLM}",
    "exl2": "ExLlamaV2; measure it with ExLlamaV2 itself",
    "quanto": "optimum-quanto",
    "aqlm": "AQLM",
    "vptq": "VPTQ",
    "spqr": "SpQR",
    "eetq": "EETQ",
    "higgs": "HIGGS",
    "bitnet": "BitNet",
    "fp_quant": "FP-Quant",
    "sinq": "SINQ",
}
# Fields that tell a config without a quant_method.
_FIELDS = {
    "quant_algo": "modelopt",
    "quantization": "modelopt",
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "_load_in_4bit": "bitsandbytes",
    "_load_in_8bit": "bitsandbytes",
    "zero_point": "awq",
    "desc_act": "gptq",
}
# Tensors that no module of other libraries has: whose they are, where no config says it, or another's.
_SUFFIXES = {
    "qweight": "GPTQ or AWQ",
    "trellis": "EXL3",
    "weight_scale_inv": "float8 of transformers and DeepSeek",
    "SCB": "bitsandbytes",
    "absmax": "bitsandbytes",
    "W_q": "HQQ",
    "weight_scale_2": "ModelOpt",
    "weight_packed": "compressed-tensors",
    "biases": "MLX",
    "_weight_qdata": "torchao",
}
_SPARSE = {"sparse-bitmask", "sparse-24-bitmask", "marlin-24"}


def method_of(config: Mapping[str, Any]) -> str | None:
    """The `quant_method` in lower case, or the one that the config's fields tell; None if none does."""
    method = config.get("quant_method")
    if method is None and "config_groups" not in config:
        fields = (library for field, library in _FIELDS.items() if field in config)
        method = next(fields, "mlx" if {"bits", "group_size"} <= set(config) else None)
    return None if method is None else str(method).lower()


def foreign_method(config: Mapping[str, Any]) -> str:
    """The reason why a `quantization_config` that is of no library that is read here is refused."""
    about = _METHODS.get(method_of(config) or "")
    words = f"quantization method {shown(config.get('quant_method', method_of(config)))}"
    return f"{words} ({about}): not decoded" if about else f"{words}: not known"


def foreign_tensors(suffixes: Iterable[str]) -> str | None:
    """Whose tensors these are, by their suffixes; None if nothing tells."""
    return next((_SUFFIXES[suffix] for suffix in sorted(suffixes) if suffix in _SUFFIXES), None)


def sparse_format(name: Any) -> str | None:
    """The reason why a sparse format of compressed-tensors is refused; None for any other name."""
    if not isinstance(name, str) or name not in _SPARSE:
        return None
    return f"sparse format {name!r}: not supported, by the newest compressed-tensors neither"

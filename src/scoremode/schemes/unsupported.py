"""Other libraries' quantized checkpoints, and transforms of inputs that a checkpoint declares: both
are recognised, so that each is refused by its name.

Sources: transformers 5.23, `QuantizationMethod`; vLLM 0.33, `QuantizationMethods`; each library's own
files.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from scoremode.checkpoint.config import TRANSFORM, quantizations
from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.model_files import MODELOPT, own_files
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fields import shown

_VLLM = "vLLM can score it: --engine vllm"
# quant_method → whose it is, and what to do.
METHODS = {
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
_SPARSE = {"sparse-bitmask", "sparse-24-bitmask", "marlin-24"}


def foreign_method(config: Mapping[str, Any]) -> str:
    """The reason why a `quantization_config` that is of no library that is read here is refused."""
    method = config.get("quant_method")
    about, words = METHODS.get(str(method).lower()), f"quantization method {shown(method)}"
    return f"{words} ({about}): not decoded" if about else f"{words}: not known"


def refuse_transforms(checkpoint: Checkpoint) -> None:
    """Raises UnsupportedFormat where a file says that weights were changed together with their inputs:
    AutoRound's `rotation_config` and `hadamard_config`, compressed-tensors' `transform_config`,
    GPTQModel's `rotation`, which older releases write to `quantize_config.json` alone.
    """
    said: list[tuple[str, Mapping[str, Any]]] = []
    for part in (checkpoint.config, checkpoint.text_config):
        # Its other objects are other models', such as an encoder.
        said.append(("config.json", {k: v for k, v in part.items() if TRANSFORM.search(k)}))
    said += [(f"config.json, {where}", what) for where, what in quantizations(checkpoint.config)]
    if checkpoint.modelopt is not None:
        said.append((MODELOPT, checkpoint.modelopt))
    if checkpoint.quantization and checkpoint.is_folder:
        said += own_files(checkpoint.path).items()
    for where, what in said:
        for name, value in _transforms(what, where):
            raise UnsupportedFormat(
                f"{checkpoint.path}: {name} {shown(value)} says that weights were changed together "
                "with their inputs; changing inputs so is not built"
            )


def _transforms(fields: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        path = f"{where}, {name}"
        # Names with a dot are modules'; `meta` is how GPTQModel was asked to quantize.
        if name == "meta" or not isinstance(name, str):
            continue
        if "." not in name and TRANSFORM.search(name):
            if _is_none(value):
                continue
            yield path, value
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield from _transforms(item, path)


def _is_none(value: Any) -> bool:
    """Tells whether a transform's field says that there is none: empty, `false` however written,
    switched off (`{"enable": false, …}`), or compressed-tensors' `transform_config` without a group."""
    if isinstance(value, Mapping):
        off = any(value.get(name) is False for name in ("enable", "enabled"))
        return off or not value or (set(value) == {"config_groups"} and not value["config_groups"])
    if isinstance(value, list):
        return all(map(_is_none, value))
    return not value or str(value).lower() in ("none", "null", "no", "off", "false", "identity")


def sparse_format(name: Any) -> str | None:
    """The reason why a sparse format of compressed-tensors is refused; None for any other name."""
    if not isinstance(name, str) or name not in _SPARSE:
        return None
    return f"sparse format {name!r}: not supported, by the newest compressed-tensors neither"

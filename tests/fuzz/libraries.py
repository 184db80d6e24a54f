"""What a module of another library than compressed-tensors is, without scoremode: by plain torch, a
value at a time where that is easy to read. That of a family is beside its maker."""

from typing import Any

import torch
from fuzz import words
from support.family import Input, all_families

Tensors = dict[str, torch.Tensor]
_NAMES = {"awq_marlin": "awq", "gptq_marlin": "gptq", "auto_round": "auto-round"}
_NAMES |= {"intel/auto-round": "auto-round"}
METHODS = {name for name, family in all_families().items() if family.weight is not None}
METHODS |= {"awq", "gptq", "auto-round"}
# Fields that tell a config without a method, in this order.
_FIELDS = {
    "quant_algo": None,
    "quantization": None,
    "load_in_4bit": "bitsandbytes",
    "load_in_8bit": "bitsandbytes",
    "_load_in_4bit": "bitsandbytes",
    "_load_in_8bit": "bitsandbytes",
    "zero_point": "awq",
    "desc_act": "gptq",
}


def method_of(config: Any) -> str | None:
    """Which of these wrote the config, None for any other."""
    if not isinstance(config, dict):
        return None
    method = config.get("quant_method")
    if method is None and "config_groups" not in config:
        mlx = "mlx" if {"bits", "group_size"} <= set(config) else None
        return next((_FIELDS[name] for name in _FIELDS if name in config), mlx)
    method = str(method).lower()
    method = _NAMES.get(method, method)
    return method if method in METHODS else None


def weight_of(
    method: str, stored: Tensors, module: str, config: dict[str, Any], metadata: dict[str, str]
) -> torch.Tensor:
    """float32 [O, I]; `stored` has the module's tensors by what follows its name, `metadata` what
    files have beside tensors."""
    own = all_families().get(method)
    if own is None or own.weight is None:
        return words.weight(method, stored, module, config)
    return own.weight(stored, module, config, metadata).float()


def input_of(
    method: str, stored: Tensors, module: str, config: dict[str, Any], metadata: dict[str, str]
) -> Input | None:
    """How the module's input is declared to be quantized, None if it isn't."""
    own = all_families().get(method)
    return own.input(stored, module, config, metadata) if own is not None else None

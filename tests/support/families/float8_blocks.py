"""Checkpoints in blocks of float8 (`quant_method: fp8`), and the dense ones of the same weights."""

from pathlib import Path
from typing import Any, cast

import torch
from support import family
from support.family import LINEAR, Family, Pair, Tensors, listed
from torch.nn import functional
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from scoremode.schemes.fp8 import Modules

__all__ = ["LINEAR"]
E4M3 = torch.float8_e4m3fn


def config(block: tuple[int, int] = (128, 128), **others: Any) -> dict[str, Any]:
    fields = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    return fields | {"weight_block_size": list(block)} | others


def spread(scale: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Each element's own scale."""
    rows = scale.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]


def quantize(
    weight: torch.Tensor, block: tuple[int, int], scale_dtype: torch.dtype = torch.float32
) -> Tensors:
    """A scale a block from its largest magnitude, that of a short one too."""
    rows, columns = weight.shape
    exact = functional.pad(weight.float(), (0, -columns % block[1], 0, -rows % block[0]))
    blocks = exact.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0]))
    scale = blocks.abs().amax((1, 3)) / 448
    if scale_dtype in (torch.uint8, torch.float8_e8m0fnu):
        scale = torch.exp2(scale.log2().ceil())
    else:
        scale = scale.to(scale_dtype).float()
    codes = (weight.float() / spread(scale, block, weight.shape)).clamp(-448, 448).to(E4M3)
    if scale_dtype == torch.uint8:
        return {"weight": codes, "weight_scale_inv": scale.log2().add(127).to(torch.uint8)}
    return {"weight": codes, "weight_scale_inv": scale.to(scale_dtype)}


def dequantize(stored: Tensors, block: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    scale = stored["weight_scale_inv"]
    exact = scale.float()
    if scale.dtype == torch.uint8:
        exact = torch.exp2(exact - 127)
    weight = stored["weight"]
    return (weight.float() * spread(exact, block, weight.shape)).to(dtype)


def transformers_weight(stored: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The library's dense weight, of a linear or of all experts."""
    operation = Fp8Dequantize(cast(Any, None))
    return operation._dequantize_one(stored["weight"], stored["weight_scale_inv"], dtype)


def make_pair(
    folder: Path,
    name: str,
    block: tuple[int, int],
    scale_dtype: torch.dtype = torch.float32,
    **others: Any,
) -> Pair:
    """A random bfloat16 model, its linears in blocks; and a dense one of what they stand for."""

    def stored(weight: torch.Tensor) -> Tensors:
        found = quantize(weight, block, scale_dtype)
        return found | {"dense": dequantize(found, block, torch.bfloat16)}

    return family.make_pair(folder, name, stored, config(block, **others))


BLOCKS = [[], [128], [0, 1], [-1, 128], [True, 1], ["1", 1], 128, "128x128", [1, 2, 3], {}]
FAMILY = Family(
    Modules,
    config(),
    spare=listed("modules_to_not_convert"),
    not_decoded=(
        ({"activation_scheme": "sometimes"}, "activation_scheme 'sometimes'"),
        ({"fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"scale_fmt": "e4m3"}, "scale_fmt 'e4m3'"),
        ({"expert_dtype": "fp6"}, "expert_dtype 'fp6'"),
        ({"modules_to_convert": ["embed_tokens"]}, "modules_to_convert ['embed_tokens']"),
        ({"config_groups": {"g": {}}}, "config_groups {'g': {}}"),
        ({"dequantize": True}, "dequantize True"),
    ),
    not_understood=(
        *(({"weight_block_size": size}, "is not rows and columns") for size in BLOCKS),
        *(({"weight_block_size": size}, "is not rows and") for size in ([1 << 31, 1], [1.0, 1])),
        *(({"activation_scheme": value}, "activation_scheme") for value in (1, [], True)),
        *(({"fmt": value}, "is not a string") for value in (8, {})),
        *(({"scale_fmt": value}, "is not a string") for value in (1, [])),
        *(
            ({"modules_to_not_convert": value}, "modules_to_not_convert")
            for value in ("lm_head", [1], {}, [None], ["("], ["a{9999999999999999}"])
        ),
        *(({"ignored_layers": value}, "is not a list of names") for value in ("lm_head", [1])),
    ),
)

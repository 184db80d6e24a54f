"""Tensors that a library's config alone promises, and those that it stores."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.schemes.layout import Layout, Promise
from scoremode.schemes.library import Library


def promises_of(library: type[Library[Any]]) -> Callable[..., Promise]:
    """`promise(config, …)` of the library, with fields of the model's config beside it."""

    def promise(config: Mapping[str, Any], **model: Any) -> Promise:
        checkpoint = Checkpoint(Path("model"), "model", {"model_type": "m", **model}, {})
        return library(checkpoint, config).promise

    return promise


# safetensors' names of torch's dtypes.
NAMES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
}
Header = tuple[str, tuple[int, ...]]


def headers(stored: Mapping[str, torch.Tensor]) -> dict[str, Header]:
    """Dtype and shape of each stored tensor."""
    return {suffix: (NAMES[t.dtype], tuple(t.shape)) for suffix, t in stored.items()}


def promised_headers(layout: Layout | None) -> dict[str, Header]:
    """The same of tensors that a config promises."""
    assert layout is not None
    return {suffix: (tensor.dtype, tensor.shape) for suffix, tensor in layout.items()}

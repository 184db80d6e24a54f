"""Tensors that a library's config alone promises."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.schemes.layout import Promise
from scoremode.schemes.library import Library


def promises_of(library: type[Library[Any]]) -> Callable[..., Promise]:
    """`promise(config, …)` of the library, with fields of the model's config beside it."""

    def promise(config: Mapping[str, Any], **model: Any) -> Promise:
        checkpoint = Checkpoint(Path("model"), "model", {"model_type": "m", **model}, {})
        return library(checkpoint, config).promise

    return promise

"""A request for a module in memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.engines.torch.live.options import LiveOptions
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.runs.request import Request

if TYPE_CHECKING:
    from torch import nn

__all__ = ["InMemory", "in_memory"]


class InMemory:
    """A module in memory with places for what a request names by a path: `model`, a folder with its
    config, and `tokenizer`."""

    def __init__(self, checkpoint: ModuleInMemory, tokenizer: str):
        self._checkpoint, self.tokenizer = checkpoint, tokenizer

    @property
    def model(self) -> str:
        return str(self._checkpoint.path)

    def request(self, asked: Request) -> Request:
        """The same request, of the module. Raises UsageError."""
        assert isinstance(asked.options, TorchOptions)
        if asked.noise_floor is not None:
            raise UsageError("noise_floor: runs a base from its files, and takes a model's folder")
        return replace(asked, options=LiveOptions(self._checkpoint, asked.options))


@contextmanager
def in_memory(module: "nn.Module", tokenizer: Any) -> Iterator[InMemory]:
    """A module as it is asked for in a block.

    `tokenizer`: a folder or hub id, or a tokenizer of transformers' that can be saved. Raises
    UsageError, CheckpointError.
    """
    with tempfile.TemporaryDirectory(prefix="scoremode-") as home:
        folder = Path(home) / type(module).__name__
        folder.mkdir()
        checkpoint = ModuleInMemory.of(module, folder)
        if tokenizer is None:
            raise UsageError(
                f"{checkpoint.source}: has no tokenizer: give tokenizer=, a folder, a hub id or a "
                "tokenizer of transformers'"
            )
        if hasattr(tokenizer, "save_pretrained"):
            saved = Path(home) / "tokenizer"
            tokenizer.save_pretrained(saved)
            tokenizer = saved
        yield InMemory(checkpoint, str(tokenizer))

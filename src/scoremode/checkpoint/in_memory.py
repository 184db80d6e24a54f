"""A model in memory in a checkpoint's place: what a run wants to know of one, and no files."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError
from scoremode.lib.json import canonical

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["ModuleInMemory"]


@dataclass(frozen=True, eq=False)
class ModuleInMemory(Checkpoint):
    """A `torch.nn.Module` of transformers' as it is now; `path` is a folder that has its config.

    Its hash is of the bytes of its state_dict.
    """

    module: "nn.Module" = field(kw_only=True, repr=False)
    _versions: tuple[int, ...] = field(kw_only=True, repr=False)

    @classmethod
    def of(cls, module: "nn.Module", folder: Path) -> "ModuleInMemory":
        """The module, whose config is written to `folder`. Raises CheckpointError for one that has
        none."""
        name = type(module).__name__
        config: Any = getattr(module, "config", None)
        if not hasattr(config, "to_json_string"):
            raise CheckpointError(
                f"{name}: has no config of transformers', which says what model it is: give a model's "
                "folder, a hub id, or a causal language model of transformers'"
            )
        text = config.to_json_string(use_diff=False)
        (folder / "config.json").write_text(text, encoding="utf-8")
        source = f"{name} in memory"
        return cls(
            folder, source, json.loads(text), {}, module=module, _versions=_versions_of(module)
        )

    @property
    def place(self) -> str:
        return self.source

    @cached_property
    def bytes(self) -> int:
        """Bytes of all that its state_dict holds, tensors that share memory once."""
        found = {part.data_ptr(): part.nbytes for _, t in self._tensors() for part in _plain(t)}
        return sum(found.values())

    def check_unchanged(self) -> None:
        """Raises CheckpointError where a tensor was written to, or is another one."""
        if _versions_of(self.module) != self._versions:
            raise CheckpointError(f"{self.source}: was changed while it was in use")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of its config and of the names, dtypes and shapes of its state_dict."""
        digest = sha256(canonical(self.config).encode())
        for name, tensor in self._tensors():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        return digest.hexdigest()

    def hash_files(self) -> dict[str, str]:
        """sha256 of the state_dict: names in order, each with its tensor's bytes; of the first call."""
        return self._hashes

    @cached_property
    def _hashes(self) -> dict[str, str]:
        import torch

        digest = sha256()
        for name, tensor in self._tensors():
            digest.update(name.encode() + b"\0")
            for part in _plain(tensor):
                whole = part.detach().cpu().contiguous()
                content: Any = whole.view(-1).view(torch.uint8).numpy()
                digest.update(memoryview(content))
        return {"state_dict": digest.hexdigest()}

    def hashing(self) -> Any:
        """Begins nothing: its bytes are hashed when they are asked for."""

    def stop_hashing(self) -> None:
        """Ends nothing."""

    def summary(self) -> dict[str, Any]:
        """The record's facts of it. What its modules will be stored as is not known before it is
        saved, so there are no bits per weight."""
        dtypes: dict[str, int] = {}
        for _, tensor in self._tensors():
            name = str(tensor.dtype).removeprefix("torch.")
            dtypes[name] = dtypes.get(name, 0) + sum(part.nbytes for part in _plain(tensor))
        return {
            "parameters": None,
            "bytes": self.bytes,
            "gib": round(self.bytes / 2**30, 4),
            "bits_per_weight": {"body": None, "file": None},
            "formats": {name: {"bytes": size} for name, size in dtypes.items()},
            "not_decoded": "a module in memory, which computes by itself",
            "kv_cache_declared": None,
        }

    def _tensors(self) -> "Iterator[tuple[str, torch.Tensor]]":
        import torch

        state: dict[str, Any] = self.module.state_dict()
        for name in sorted(state):
            if isinstance(state[name], torch.Tensor):
                yield name, state[name]


def _versions_of(module: "nn.Module") -> tuple[int, ...]:
    """Numbers that change when a parameter or buffer is written to, or replaced."""
    tensors = [part for t in (*module.parameters(), *module.buffers()) for part in _plain(t)]
    return tuple(number for t in tensors for number in (t.data_ptr(), t._version))


def _plain(tensor: "torch.Tensor") -> "Iterator[torch.Tensor]":
    """The tensors that one of a class of its own is made of, such as torchao's codes and scales; a
    plain one itself."""
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        yield tensor
        return
    names, _ = flatten()
    for name in names:
        yield from _plain(getattr(tensor, name))

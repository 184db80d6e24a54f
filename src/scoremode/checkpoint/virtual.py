"""Checkpoints that no folder holds: mixtures of several, a model in memory, and one by its record.

A mixture is one checkpoint with some of its modules taken from others, read like any checkpoint. Every
module's tensors come from one part, all of them, so that a name is never in two.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.bulk_io import Hashing
from scoremode.checkpoint.files import Checkpoint
from scoremode.errors import CheckpointError
from scoremode.lib.hub import on_hub
from scoremode.lib.json import canonical

if TYPE_CHECKING:
    import torch
    from torch import nn

# Characters of a pattern that stands in a mixture's name.
_SHORT = 40


@dataclass(frozen=True, eq=False)
class Taken:
    """Modules that a mixture has from another checkpoint.

    - `pattern`: what the user named them by; `is_base`: whether `other` is the base that the mixture is
      compared with.
    - `modules`: their names; `tensors`: the names of their tensors in `other`.
    - `differing`: tensors that neither checkpoint quantizes, that the mixture doesn't take, that belong
      with what it takes, and that are not the same in both.
    """

    pattern: str
    other: Checkpoint
    is_base: bool
    modules: frozenset[str]
    tensors: frozenset[str]
    differing: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern,
            "source": self.other.source,
            "path": self.other.place,
            "fingerprint": self.other.fingerprint,
            "is_base": self.is_base,
            "modules": len(self.modules),
            "differing": list(self.differing),
        }


@dataclass(frozen=True, eq=False)
class Mixture(Checkpoint):
    """A checkpoint whose tensors are those of `own`, and of others where they were `taken`.

    Its config, its name and its place are `own`'s.
    """

    own: Checkpoint = field(kw_only=True)
    taken: Sequence[Taken] = field(kw_only=True)

    @classmethod
    def of(cls, own: Checkpoint, removed: frozenset[str], taken: Sequence[Taken]) -> "Mixture":
        """The mixture without the tensors `removed` from `own`, and with those `taken`."""
        tensors = {name: info for name, info in own.tensors.items() if name not in removed}
        layouts = {k: v for k, v in own.layouts.items() if not _is_of(k, removed)}
        opened = dict(own.opened)
        for take in taken:
            tensors |= {name: take.other.tensors[name] for name in sorted(take.tensors)}
            theirs = take.other.layouts
            layouts |= {k: v for k, v in theirs.items() if _is_of(k, take.tensors)}
            opened |= take.other.opened
        words = "".join(f" + {_what(t)} of {Path(_name(t.other.source)).name}" for t in taken)
        return cls(
            own.path, f"{own.source}{words}", own.config, tensors, opened, own.modelopt,
            own.quantized_by, layouts, own.files, own=own, taken=taken,
        )  # fmt: skip

    @property
    def parts(self) -> list[Checkpoint]:
        """Every checkpoint that it reads, `own` first, none twice."""
        found = {id(part): part for part in (self.own, *(take.other for take in self.taken))}
        return list(found.values())

    @cached_property
    def owners(self) -> Mapping[str, Checkpoint]:
        """Tensor → the checkpoint that has it."""
        theirs = {name: take.other for take in self.taken for name in take.tensors}
        return {name: theirs.get(name, self.own) for name in self.tensors}

    @cached_property
    def bytes(self) -> int:
        """Bytes of a file that held what is left of `own`'s and what is taken."""
        before = sum(info.bytes for info in self.own.tensors.values())
        return self.own.bytes - before + sum(info.bytes for info in self.tensors.values())

    def read(self, name: str) -> "torch.Tensor":
        self._info(name)
        return self.owners[name].read(name)

    def check_unchanged(self) -> None:
        for part in self.parts:
            part.check_unchanged()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of its parts' fingerprints and of which modules are whose."""
        digest = sha256(self.own.fingerprint.encode())
        for take in self.taken:
            names = " ".join(sorted(take.tensors))
            digest.update(f"{take.other.fingerprint} {names}\n".encode())
        return digest.hexdigest()

    def hash_files(self) -> dict[str, str]:
        """Hashes as of any checkpoint, the other parts' files prefixed by their sources' names."""
        self.hashing()
        found = dict(self.own.hash_files())
        for part in self.parts[1:]:
            found |= {f"{part.source}/{name}": sha for name, sha in part.hash_files().items()}
        return found

    def hashing(self) -> Hashing:
        """Begins to hash the files of all parts; the result is of `own`'s."""
        for part in self.parts[1:]:
            part.hashing()
        return self.own.hashing()

    def stop_hashing(self) -> None:
        for part in self.parts:
            part.stop_hashing()

    def mixture_json(self) -> dict[str, Any]:
        """The record's `checkpoint.mixture`."""
        return {"source": self.own.source, "taken": [take.to_json() for take in self.taken]}


def _is_of(layout: str, tensors: frozenset[str]) -> bool:
    """Tells whether a layout, by its parameter's name, is of a module of these tensors."""
    home = layout.removesuffix(".weight")
    return layout in tensors or any(name.startswith(f"{home}.") for name in tensors)


def _what(take: Taken) -> str:
    """The pattern as a part of a name, or how many modules a long one named."""
    return take.pattern if len(take.pattern) <= _SHORT else f"{len(take.modules)} modules"


def _name(source: str) -> str:
    return (on_hub(source) or (source, ""))[0]


class Unread(Checkpoint):
    """A model whose tensors nobody reads here: others compute it, or have done so."""

    def hash_files(self) -> dict[str, str]:
        """The hashes by which it is known again: none."""
        return {}

    def hashing(self) -> Any:
        """Begins nothing: there are no files, or they are hashed when they are asked for."""

    def stop_hashing(self) -> None:
        """Ends nothing."""

    def summary(self) -> dict[str, Any]:
        """The record's facts of it, in place of those that headers give."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class ModuleInMemory(Unread):
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


@dataclass(frozen=True, eq=False)
class RecordedCheckpoint(Unread):
    """A checkpoint by what a record says of it, whose predictions lie under `path`: none of it is read.

    - `section`: the record's section `checkpoint`.
    - `read_through`: reads the predictions through, and gives the hashes for the section's `files`.
    - `unchanged`: raises where they are no longer what was opened.
    """

    section: Mapping[str, Any] = field(kw_only=True, repr=False)
    read_through: Callable[[], dict[str, str]] = field(kw_only=True, repr=False)
    unchanged: Callable[[], None] = field(kw_only=True, repr=False, default=lambda: None)

    @property
    def place(self) -> str:
        return self.section.get("path") or self.source

    @cached_property
    def fingerprint(self) -> str:
        return self.section["fingerprint"]

    def check_unchanged(self) -> None:
        self.unchanged()

    def hash_files(self) -> dict[str, str]:
        return self.read_through()

    def summary(self) -> dict[str, Any]:
        """The record's facts of it, but for where it is and what its files are."""
        place = ("source", "path", "fingerprint", "files")
        return {name: value for name, value in self.section.items() if name not in place}


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

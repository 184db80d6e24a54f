"""Mixtures: one checkpoint with some of its modules taken from others, which nobody has written.

A mixture is read like any checkpoint. Every module's tensors are one part's, all of them, so that a
name is never in two.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.hashing import Hashing

if TYPE_CHECKING:
    import torch

__all__ = ["Mixture", "Taken"]

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
            tensors |= {name: take.other.tensors[name] for name in take.tensors}
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
        """As of a checkpoint, with the other ones' files behind their sources' names."""
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
    return source.removeprefix("hub:").partition("@")[0] if source[:4] == "hub:" else source

"""A request's model: its checkpoint, with the modules that the user takes from others."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.virtual import Mixture
from scoremode.errors import CheckpointError, UsageError

__all__ = ["Swap", "mixture_section", "opened", "reopened", "swaps_of"]


@dataclass(frozen=True)
class Swap:
    """Modules to be taken from another checkpoint.

    - `pattern`: as `schemes.mixing.modules_named` reads it.
    - `source`: a folder, a GGUF file or a hub id, `revision` of the last.
    - `is_base`: whether it is the base that the run is compared with.
    - `fingerprint`: what it must have, or None.
    """

    pattern: str
    source: str
    revision: str | None = None
    is_base: bool = False
    fingerprint: str | None = None

    @property
    def flag(self) -> str:
        return "--keep-dense" if self.is_base else "--swap"


def swaps_of(
    keep_dense: Sequence[str], swap: Sequence[str], reference: str | None, revision: str | None
) -> tuple[Swap, ...]:
    """The swaps of a command line: patterns whose modules stay as the base `reference` has them, and
    `PATTERN=OTHER`. Raises UsageError."""
    found = []
    for words in swap:
        found.append(_swap(words))
    if keep_dense:
        assert reference is not None
        source, of, fingerprint = _base_of(reference, revision, keep_dense[0])
        found += [Swap(p, source, of, True, fingerprint) for p in keep_dense]
    return tuple(found)


def _swap(words: str) -> Swap:
    """`PATTERN=OTHER`. Both may hold an equals sign, a regular expression as well as a path: what is
    behind one of them must be there, and else the last one separates."""
    places = [i for i, c in enumerate(words) if c == "=" and 0 < i < len(words) - 1]
    if not places:
        raise UsageError(f"--swap {words}: give PATTERN=OTHER, such as layers.0=path/to/other")
    here = [i for i in places if os.path.exists(words[i + 1 :])]  # noqa: PTH110  a name too long
    if len(here) > 1:
        raise UsageError(
            f"--swap {words}: OTHER may be {words[here[0] + 1 :]} or {words[here[1] + 1 :]}, and both "
            "are there: rename one, or give a link to it"
        )
    at = here[0] if here else places[-1]
    return Swap(words[:at], words[at + 1 :])


def opened(
    model: str,
    revision: str | None,
    swaps: Sequence[Swap],
    *,
    code: bool,
    notify: Callable[[str], None] = lambda _: None,
) -> Checkpoint:
    """The checkpoint of `model`, or the mixture that the swaps make of it; `notify` is told where what
    is taken may not fit the rest. Raises UsageError, CheckpointError, UnsupportedModel."""
    own = open_checkpoint(model, revision, code=code)
    if not swaps:
        return own
    from scoremode.schemes.mixing import Take, mixed

    others: dict[tuple[str, str | None], Checkpoint] = {}
    takes = []
    for swap in swaps:
        key = swap.source, swap.revision
        if key not in others:
            others[key] = open_checkpoint(swap.source, swap.revision)
        other = others[key]
        if swap.fingerprint not in (None, other.fingerprint):
            raise CheckpointError(
                f"{swap.flag} {swap.pattern}: {other.source} is not the base any more: its fingerprint "
                f"is {other.fingerprint[:12]}…, and was {str(swap.fingerprint)[:12]}…"
            )
        takes.append(Take(swap.pattern, other, swap.flag, swap.is_base))
    mixture = mixed(own, takes)
    for take in mixture.taken:
        if take.differing:
            first, *more = take.differing
            are = f", nor are {len(more)} more" if more else ""
            notify(
                f"{take.pattern} of {take.other.source}: beside it {first} is not the same in both"
                f"{are}: scales or rotations were moved into other modules, so those taken do not fit "
                "the rest"
            )
    return mixture


def reopened(
    section: Mapping[str, Any],
    model: str,
    places: Callable[[Mapping[str, Any]], str],
    *,
    code: bool,
) -> Checkpoint:
    """The checkpoint in `model` as a record's section `checkpoint` has it, a mixture too.

    `places`: where each of the others lies, given what the record says of it.
    """
    mixture = section.get("mixture")
    if mixture is None:
        return open_checkpoint(model, code=code)
    swaps = [
        Swap(take["pattern"], places(take), None, take["is_base"]) for take in mixture["taken"]
    ]
    return opened(model, None, swaps, code=code)


def mixture_section(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a record's section `checkpoint` has of a mixture alone."""
    return {"mixture": checkpoint.mixture_json()} if isinstance(checkpoint, Mixture) else {}


def _base_of(
    reference: str, revision: str | None, pattern: str
) -> tuple[str, str | None, str | None]:
    """The base's checkpoint, its revision and the fingerprint that it must have."""
    from scoremode.reference.stored import StoredReference, is_run
    from scoremode.runs.baselines import is_logits_file

    path = Path(reference)
    if is_run(path):
        stored = StoredReference(path).record["checkpoint"]
        return stored["path"], None, stored["fingerprint"]
    if is_logits_file(path):
        raise UsageError(
            f"--keep-dense {pattern}: {reference} holds log-probabilities and no weights: --swap "
            f"{pattern}=BASE names the base's checkpoint"
        )
    return reference, revision, None

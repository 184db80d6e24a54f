"""Making a mixture: which modules a pattern names, and which tensors they are in each checkpoint."""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import FLOATS
from scoremode.checkpoint.virtual import Mixture, Taken
from scoremode.errors import UnsupportedModel, UsageError, words_of
from scoremode.schemes.resolve import Schemes, resolve

# Norms, biases and the like; tables and matrices are what quantizers change.
_SMALL = 1 << 20
# A layer's name, which ends with the first number in its tensors' names.
_LAYER = re.compile(r"^(.*?\.\d+)\.")


@dataclass(frozen=True, eq=False)
class Take:
    """A wish for modules of another checkpoint.

    - `pattern`: as in `modules_named`; `flag`: what the user wrote it with, for errors.
    """

    pattern: str
    other: Checkpoint
    flag: str
    is_base: bool = False


def modules_named(pattern: str, flag: str) -> Callable[[str], bool]:
    """Tells which modules a pattern names.

    `re:…` is a regular expression that matches from the name's start, as llm-compressor's. Any other
    is a name or a glob of one, which may begin behind any dot, and names all modules within as well:
    `layers.0` and `layers.0.*` are decoder layer 0, `down_proj` is each layer's. Raises UsageError.
    """
    if pattern.startswith("re:"):
        try:
            found = re.compile(pattern.removeprefix("re:"))
        except re.error as error:
            why = words_of(error, named=False)
            raise UsageError(f"{flag} {pattern}: is not a regular expression ({why})") from None
        return lambda module: found.match(module) is not None
    if not pattern:
        raise UsageError(f"{flag}: the pattern is empty")
    glob = fnmatch.translate(pattern).removesuffix(r"\z").removesuffix(r"\Z")
    whole = re.compile(rf"(?:.*\.)?{glob}(?:\..*)?")
    return lambda module: whole.fullmatch(module) is not None


def mixed(own: Checkpoint, takes: Sequence[Take]) -> Mixture:
    """The mixture of `own` with the modules that are taken from others.

    Raises UsageError for a pattern that names no module, or one that another checkpoint's pattern names
    as well; UnsupportedModel for a checkpoint of another kind of model; and as `resolve` does.
    """
    ours = _tensors_by_module(own, resolve(own))
    taken: list[Taken] = []
    removed: set[str] = set()
    for take in takes:
        _check_kind(own, take)
        is_named = modules_named(take.pattern, take.flag)
        schemes = resolve(take.other)
        theirs = _tensors_by_module(take.other, schemes)
        names = {module for module in theirs if is_named(module)}
        gone = {module for module in ours if is_named(module)}
        for checkpoint, found in ((take.other, names), (own, gone)):
            if not found:
                raise UsageError(
                    f"{take.flag} {take.pattern}: {checkpoint.source} has no such module"
                )
        _check_taken_once(take, names, taken)
        # Taken already from the same checkpoint, by another pattern.
        for before in taken:
            if before.other is take.other:
                names -= before.modules
        removed |= {tensor for module in gone for tensor in ours[module]}
        tensors = frozenset(tensor for module in names for tensor in theirs[module])
        taken.append(Taken(take.pattern, take.other, take.is_base, frozenset(names), tensors))
    result = Mixture.of(own, frozenset(removed), taken)
    return Mixture.of(own, frozenset(removed), [_compared(result, take) for take in taken])


def _check_kind(own: Checkpoint, take: Take) -> None:
    ours, theirs = (c.text_config.get("model_type") for c in (own, take.other))
    if ours != theirs:
        raise UnsupportedModel(
            f"{take.flag} {take.pattern}: {take.other.source} is a {theirs}, and {own.source} a {ours}"
        )


def _check_taken_once(take: Take, names: set[str], taken: Sequence[Taken]) -> None:
    for before in taken:
        twice = names & before.modules
        if twice and before.other is not take.other:
            raise UsageError(
                f"{take.flag} {take.pattern}: {min(twice)} is taken from {before.other.source} "
                f"already, by {before.pattern}"
            )


def _tensors_by_module(checkpoint: Checkpoint, schemes: Schemes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in checkpoint.tensors:
        found[schemes.split(name)[0]].append(name)
    return found


def differing(own: Checkpoint, other: Checkpoint) -> list[str]:
    """Norms, biases and the like that neither checkpoint quantizes, and that are not the same in both:
    what tells that scales or rotations were moved into other modules."""
    found = []
    for name, info in own.tensors.items():
        theirs = other.tensors.get(name)
        if theirs is None or len(info.shape) != 1 or info.elements > _SMALL:
            continue
        if info.dtype not in FLOATS or theirs.dtype not in FLOATS:
            continue
        pair = [part.read(name).float() for part in (own, other)]
        if pair[0].shape != pair[1].shape or bool((pair[0] != pair[1]).any()):
            found.append(name)
    return found


def _compared(mixture: Mixture, take: Taken) -> Taken:
    """`take` with the tensors that tell that its modules fit the rest of the mixture no more.

    AWQ and SmoothQuant multiply norms by what they divide the next linear by, rotations move norms into
    linears: of such a checkpoint a linear alone computes something else beside another's norm. Norms in
    layers that the mixture takes nothing of, or all of, do no harm.
    """
    layers = {found[1] for name in take.tensors if (found := _LAYER.match(name))}
    names = []
    for name in differing(mixture.own, take.other):
        layer = _LAYER.match(name)
        is_near = layer is None or layer[1] in layers
        if is_near and name not in take.tensors and mixture.owners.get(name) is mixture.own:
            names.append(name)
    return Taken(take.pattern, take.other, take.is_base, take.modules, take.tensors, tuple(names))

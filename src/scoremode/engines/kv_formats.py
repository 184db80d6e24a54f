"""Names of the formats that keys and values can be cached in, apart from their arithmetic.

A name is a format, what one scale is for where there is a choice, and whether the head's dimension is
rotated before: `int8-token`, `int4-g32-had`, `q4_0-had64`. docs/long-contexts.md defines each and says
who deploys it; `engines.torch.kv_cache.formats` computes them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from scoremode.errors import UsageError

AS_DECLARED: Literal["as-declared"] = "as-declared"
AS_IT_IS: Literal["none"] = "none"

# What one scale may be for, by format, its default first: `one` is a scale of 1; `tensor` and `head`
# are known before a token is seen; `token` is of a token's head, made of it.
_SCALES: Mapping[str, Sequence[str]] = {
    "fp8_e4m3": ("one", "tensor", "head", "token"),
    "fp8_e5m2": ("one", "tensor", "head", "token"),
    "int8": ("token", "tensor", "head"),
    "nvfp4": ("one", "tensor"),
}
_FLOATS = ("f16", "bf16")
# ggml's blocks of 32 values.
_GGML = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_GROUPED = re.compile(r"int([2-8])-g(16|32|64|128)")
_ROTATED = re.compile(r"-had(16|32|64|128|256)?$")
# Other tools' names for the same.
_ALIASES = {
    "fp8": "fp8_e4m3", "fp8-tensor": "fp8_e4m3-tensor", "fp8-head": "fp8_e4m3-head",
    "fp8-token": "fp8_e4m3-token",
    "fp8_per_token_head": "fp8_e4m3-token", "int8_per_token_head": "int8-token",
    "float16": "f16", "bfloat16": "bf16",
}  # fmt: skip
_KNOWN = (
    "none, f16, bf16, fp8_e4m3, fp8_e5m2, int8, int2-g32 … int8-g128, q8_0, q5_1, q5_0, q4_1, q4_0, "
    "nvfp4; with -tensor, -head or -token for its scales, -paired for llama.cpp's order of keys, and "
    "-had or -had64 for a rotation"
)
# Why a name that is published is not one of ours.
_REFUSED = {
    "kivi": "keys are in groups of tokens with the last ones as they are, so that what a token sees "
    "depends on where it looks from; its values are int2-g32 or int4-g32",
    "turboquant": "not emulated; --engine vllm runs it",
    "ultraquant": "not emulated; --engine vllm runs it",
    "int4_per_token_head": "not emulated; --engine vllm runs it",
    "nvfp4_4over6": "not emulated; --engine vllm runs it",
    "fp8_ds_mla": "is of a compressed state, not of keys and values",
    "nvfp4_ds_mla": "is of a compressed state, not of keys and values",
    "iq4_nl": "not emulated: its scale is searched for, by what no two builds agree on",
    "fp8_inc": "is of one make of device; fp8_e4m3 is what it holds",
}


@dataclass(frozen=True)
class KvFormat:
    """The format of one side of a cache.

    - `scale`: what one scale is for: `one`, `tensor`, `head`, `token`; None where blocks have theirs.
    - `bits`, `group`: of integers with a minimum and a scale a group along the head's dimension.
    - `paired`: values that position rotation turns together lie beside each other, as in llama.cpp's
      files of Llama-like models, and not half a head apart.
    - `hadamard`: values that are rotated together, 0 for as many as a power of two that divides the
      head's dimension, None for no rotation.
    """

    name: str
    scale: str | None = None
    bits: int | None = None
    group: int | None = None
    paired: bool = False
    hadamard: int | None = None

    def __str__(self) -> str:
        name = f"int{self.bits}-g{self.group}" if self.name == "int" else self.name
        if self.scale not in (None, "one"):
            name += f"-{self.scale}"
        name += "-paired" if self.paired else ""
        return name if self.hadamard is None else f"{name}-had{self.hadamard or ''}"

    @property
    def as_it_is(self) -> bool:
        """True where nothing is rounded beyond the dtype that is computed in."""
        return self.name == AS_IT_IS

    @property
    def is_static(self) -> bool:
        """True where its scales are known before a token is seen, and are not 1."""
        return self.scale in ("tensor", "head")

    @property
    def block(self) -> int | None:
        """Values along the head's dimension that share a scale, None for all of a head."""
        if self.name in _GGML:
            return 32
        return 16 if self.name == "nvfp4" else self.group

    def rotated(self, size: int) -> int | None:
        """The number of a head's `size` values that are rotated together."""
        return (size & -size) if self.hadamard == 0 else self.hadamard


@dataclass(frozen=True)
class RecordedScales:
    """Scales that a run's record says, of each layer one, or one a head; None for a side without."""

    k: tuple[tuple[float, ...], ...] | None
    v: tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class KvCache:
    """A cache's formats.

    - `scales`: a file of scales, or a record's; None for those that are measured in the run.
    """

    k: KvFormat
    v: KvFormat
    scales: str | RecordedScales | None = None

    def __str__(self) -> str:
        return str(self.k) if self.k == self.v else f"k={self.k},v={self.v}"

    @cached_property
    def is_static(self) -> bool:
        return self.k.is_static or self.v.is_static


def parse_kv_cache(text: str) -> KvCache:
    """The formats of `int8`, or of `k=int8,v=int4-g32`. Raises UsageError."""
    if "=" not in text:
        form = _parse(text, text)
        return KvCache(form, replace(form, paired=False))
    sides: dict[str, KvFormat] = {}
    for part in text.split(","):
        side, _, name = part.partition("=")
        if side not in ("k", "v") or side in sides:
            raise UsageError(f"--kv-cache {text}: is not k=FORMAT,v=FORMAT")
        sides[side] = _parse(name, text)
        if side == "v" and sides[side].paired:
            raise UsageError(f"--kv-cache {text}: position turns no values: -paired is for keys")
    if len(sides) != 2:
        raise UsageError(f"--kv-cache {text}: says nothing of the other side: k=FORMAT,v=FORMAT")
    return KvCache(sides["k"], sides["v"])


def _parse(name: str, text: str) -> KvFormat:
    for refused, why in _REFUSED.items():
        if name.startswith(refused):
            raise UsageError(f"--kv-cache {text}: {name} {why}")
    hadamard = None
    if found := _ROTATED.search(name):
        hadamard, name = int(found[1] or 0), name[: found.start()]
    name = _ALIASES.get(name, name)
    if hadamard is None and name in (AS_IT_IS, *_FLOATS):
        return KvFormat(name)
    if name.removesuffix("-paired") in _GGML:
        paired = name.endswith("-paired")
        return KvFormat(name.removesuffix("-paired"), paired=paired, hadamard=hadamard)
    if found := _GROUPED.fullmatch(name):
        return KvFormat("int", bits=int(found[1]), group=int(found[2]), hadamard=hadamard)
    base, dash, scale = name.partition("-")
    scales = _SCALES.get(base, ())
    if dash and scale in scales and scale != "one":
        return KvFormat(base, scale, hadamard=hadamard)
    if scales and not dash:
        return KvFormat(base, scales[0], hadamard=hadamard)
    raise UsageError(f"--kv-cache {text}: is none of {_KNOWN}")


def is_declared(name: str) -> bool:
    """Tells whether what a record says of the cache is a checkpoint's scheme, in its own words, such as
    `float8 tensor static`."""
    return name.startswith("float8")


def cache_of(engine: Mapping[str, Any]) -> "Literal['none', 'as-declared'] | KvCache":
    """The torch engine's option that a record's `engine` section was made with; its measured scales are
    given then. Raises UsageError for a section that does not say its scales."""
    name = engine.get("kv_cache_dtype")
    if name is None or engine.get("engine") != "torch" or engine["arithmetic"] == "llama.cpp":
        return AS_IT_IS
    if is_declared(name):
        return AS_DECLARED
    cache = parse_kv_cache(name)
    scales = (engine.get("kv_cache") or {}).get("scales")
    if scales is not None:
        each = {s: scales.get(s) and tuple(map(tuple, scales[s])) for s in ("k", "v")}
        return replace(cache, scales=RecordedScales(**each))
    if "kv_scales_sha256" in engine:
        raise UsageError(f"{name}: its scales were a file's, of which only the hash is known")
    return cache

"""`quantization_config` of compressed-tensors, as small values of our own.

No release of the library parses every checkpoint that people have, so the fields are read here and
by no name but their own: a group called NVFP4A16 whose fields say W4A4 is W4A4.
Source: compressed-tensors' QuantizationConfig, QuantizationScheme, QuantizationArgs (0.17, 0.20).

A group that is only a name and its targets means a preset (0.20, `PRESET_SCHEMES`; a test compares
each).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.fields import Fields, TensorFormat, UnreadCache, declared_cache, shown
from scoremode.schemes.patterns import EMBEDDINGS, Patterns, parts_of

_TOKEN = TensorFormat(8, "int", "token", dynamic=True)
_FP8_TOKEN = replace(_TOKEN, type="float")
_FP8_GROUP = TensorFormat(8, "float", "group", 128, dynamic=True)
_NVFP4 = TensorFormat(4, "float", "tensor_group", 16, scale_dtype="float8_e4m3fn")
_INT8 = (TensorFormat(8, "int", "channel"), _TOKEN)
_SPARSE = {"sparse-bitmask", "sparse-24-bitmask", "marlin-24"}


def sparse_format(name: Any) -> str | None:
    """The reason why a sparse format of compressed-tensors is refused; None for any other name."""
    if not isinstance(name, str) or name not in _SPARSE:
        return None
    return f"sparse format {name!r}: not supported, by the newest compressed-tensors neither"


def _mx(bits: int, *, dynamic: bool = False) -> TensorFormat:
    return TensorFormat(bits, "float", "group", 32, dynamic=dynamic, scale_dtype="uint8")


_PRESETS: dict[str, tuple[TensorFormat | None, TensorFormat | None]] = {
    "UNQUANTIZED": (None, None),
    "W4A16_ASYM": (TensorFormat(4, "int", "group", 128, symmetric=False), None),
    "W8A8": _INT8,
    "INT8": _INT8,
    "W4AFP8": (TensorFormat(4, "int", "group", 128), _FP8_TOKEN),
    "FP8": (TensorFormat(8, "float", "tensor"), TensorFormat(8, "float", "tensor")),
    "FP8_DYNAMIC": (TensorFormat(8, "float", "channel"), _FP8_TOKEN),
    "FP8_BLOCK": (TensorFormat(8, "float", "block", block=(128, 128)), _FP8_GROUP),
    "NVFP4A16": (_NVFP4, None),
    "NVFP4": (_NVFP4, replace(_NVFP4, dynamic="local")),
    "MXFP4A16": (_mx(4), None),
    "MXFP4": (_mx(4), _mx(4, dynamic=True)),
    "MXFP4XFP8": (_mx(4), _FP8_GROUP),
    "MXFP6A16": (_mx(6), None),
    "MXFP6A8": (_mx(6), _mx(8, dynamic=True)),
    "MXFP8A16": (_mx(8), None),
    "MXFP8": (_mx(8), _mx(8, dynamic=True)),
}


def preset_formats(name: str) -> tuple[TensorFormat | None, TensorFormat | None]:
    """Weights and inputs of a preset. Raises KeyError for an unknown one."""
    name = name.upper()
    if name in _PRESETS:
        return _PRESETS[name]
    match = re.fullmatch(r"W([2-8])A(4|8|16)", name)
    if match is None or int(match[1]) > int(match[2]):
        raise KeyError(name)
    bits = int(match[2])
    inputs = replace(_TOKEN, bits=bits) if bits < 16 else None
    return TensorFormat(int(match[1]), "int", "group", 128), inputs


# Ranks of a claim: 0 by exact name, 1 by pattern.
_CLASS = 2


@dataclass(frozen=True)
class Group:
    """An entry of `config_groups`: its targets and formats. `format` may be its own."""

    name: str
    targets: tuple[str, ...]
    format: str | None
    weights: TensorFormat | None
    inputs: TensorFormat | None
    outputs: TensorFormat | None

    def rank(self, module: str, kind: str) -> int | None:
        """Tells how well its targets name a module: exactly, by a pattern, or by its class."""
        rank = self.patterns.rank(module)
        return _CLASS if rank is None and self.patterns.has(kind) else rank

    @cached_property
    def patterns(self) -> Patterns:
        return Patterns(self.targets, f"group {self.name}, targets")


@dataclass(frozen=True)
class QuantizationConfig:
    """The fields of a compressed-tensors config that decide what a weight means."""

    format: str | None
    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    kv_cache: TensorFormat | UnreadCache | None
    version: str | None

    def group_of(self, module: str) -> Group | None:
        """The group that a linear or an embedding belongs to, None if none or if it is ignored.

        An exact name goes before a pattern, and a pattern before the class, which is `Embedding` by
        the names that embeddings have and else `Linear`. A fused module that the config doesn't name
        belongs where its parts do. Raises CheckpointError where two groups of the same rank claim
        it and differ, or where its parts do.
        """
        ignored, rank, group = self._claim(module)
        parts = parts_of(module)
        if not parts or ignored or (rank is not None and rank < _CLASS):
            return group
        first, *others = (self.group_of(part) for part in parts)
        for other in others:
            if (other and _formats(other)) != (first and _formats(first)):
                raise CheckpointError(
                    f"{module} is one tensor, and the quantization config treats its parts "
                    f"{', '.join(part.rpartition('.')[2] for part in parts)} differently"
                )
        return first

    def claims(self, module: str) -> bool:
        """Tells whether the linear `module` is to be quantized."""
        group = self.group_of(module)
        return group is not None and group.weights is not None

    @cached_property
    def ignored(self) -> Patterns:
        return Patterns(self.ignore, "ignore")

    def _claim(self, module: str) -> tuple[bool, int | None, Group | None]:
        """Tells whether the name is ignored, and else the group with the best claim and its rank."""
        kind = "Embedding" if module.rpartition(".")[2] in EMBEDDINGS else "Linear"
        if self.ignored.has(kind) or self.ignored.rank(module) is not None:
            return True, None, None
        claims: dict[int, list[Group]] = {}
        for group in self.groups:
            rank = group.rank(module, kind)
            if rank is not None:
                claims.setdefault(rank, []).append(group)
        if not claims:
            return False, None, None
        first, *others = claims[min(claims)]
        for other in others:
            if _formats(other) != _formats(first):
                raise CheckpointError(
                    f"quantization groups {first.name} and {other.name} both claim {module} "
                    "and differ"
                )
        return False, min(claims), first


def _formats(group: Group) -> tuple:
    return group.format, group.weights, group.inputs, group.outputs


def parse_quantization(config: Mapping[str, Any]) -> QuantizationConfig:
    """Reads a `quantization_config`.

    Raises UnsupportedFormat for sparse formats, and CheckpointError for one that can't be understood.
    """
    fields = Fields(config)
    sparsity = fields.any("sparsity_config") or {}
    sparse = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
    if sparse not in (None, "dense"):
        why = sparse_format(sparse) or f"sparse format {shown(sparse)}: not known"
        raise UnsupportedFormat(why)
    groups = fields.any("config_groups") or {}
    # A cache may be all that is quantized.
    if not isinstance(groups, Mapping) or not (groups or fields.any("kv_cache_scheme")):
        raise CheckpointError("quantization_config has no config_groups")
    result = QuantizationConfig(
        format=_format(fields),
        groups=tuple(_group(name, group) for name, group in groups.items()),
        ignore=fields.names("ignore"),
        kv_cache=declared_cache(lambda: _cache(fields)),
        version=fields.text("version"),
    )
    # Patterns that don't compile are found here, whatever is asked of the config later.
    assert result.ignored and all(group.patterns for group in result.groups)
    return result


def _cache(fields: Fields) -> TensorFormat | None:
    cache = fields.object("kv_cache_scheme")
    return None if cache is None else _tensor_format(cache)


def _group(name: str, group: Any) -> Group:
    if isinstance(group, list):
        # The short form {"W4A16": ["Linear"]} names a preset of the library.
        targets = Fields({"targets": group}, f"group {name}").names("targets")
        try:
            weights, inputs = preset_formats(name)
        except KeyError:
            raise UnsupportedFormat(f"quantization group {name!r}: not a known preset") from None
        return Group(name, targets, None, weights, inputs, None)
    fields = Fields(group, f"group {name}")
    if not isinstance(fields.any("targets"), list):
        raise fields.wrong("targets", "a list of names")
    weights, inputs, outputs = (
        None if part is None else _tensor_format(part)
        for part in map(fields.object, ("weights", "input_activations", "output_activations"))
    )
    if weights is not None and weights.dynamic:
        raise UnsupportedFormat(f"quantization group {name!r} has dynamic weights: not supported")
    targets = fields.names("targets")
    if weights is None and (inputs or outputs):
        # Such as attention's queries; nothing here would do it, nor say that it isn't done.
        first, *others = targets or ("nothing",)
        raise UnsupportedFormat(
            f"quantization group {name!r} quantizes activations ({inputs or outputs}) of "
            f"{first}{f' and {len(others)} more' if others else ''} and no weights: not supported"
        )
    return Group(name, targets, _format(fields), weights, inputs, outputs)


def _format(fields: Fields) -> str | None:
    name = fields.text("format")
    if name == "":
        raise fields.wrong("format", "a format's name")
    return name


def _tensor_format(args: Fields) -> TensorFormat:
    group_size, strategy = args.whole("group_size"), args.text("strategy")
    if group_size is not None and not (group_size == -1 or 0 <= group_size < 1 << 31):
        raise args.wrong("group_size", "a size")
    if strategy is None:
        # The library's own defaults: a group size implies groups, -1 channels, nothing a tensor.
        strategy = {None: "tensor", -1: "channel"}.get(group_size, "group")
    actorder = args.any("actorder")
    if isinstance(actorder, bool):
        actorder = "group" if actorder else None
    elif actorder is not None:
        # The library's older names.
        actorder = (args.text("actorder") or "").lower()
        actorder = {"dynamic": "group", "static": "weight"}.get(actorder, actorder)
    if actorder not in (None, "group", "weight"):
        raise args.wrong("actorder", "an order of activations")
    dynamic = args.any("dynamic", False)
    if not isinstance(dynamic, bool) and dynamic != "local":
        raise args.wrong("dynamic", "true, false or 'local'")
    scale_dtype = args.text("scale_dtype")
    result = TensorFormat(
        bits=args.whole("num_bits", 8) or 0,
        type=(args.text("type", "int") or "").lower(),
        strategy=strategy.lower(),
        group_size=group_size if group_size is not None and group_size > 0 else None,
        symmetric=bool(args.flag("symmetric", True)),
        dynamic=dynamic,
        actorder=actorder,
        block=_block(args),
        scale_dtype=None if scale_dtype is None else scale_dtype.removeprefix("torch."),
    )
    if result.block is not None and result.strategy != "block":
        raise args.wrong("block_structure", f"of strategy {result.strategy}")
    if result.group_size is not None and result.strategy not in ("group", "tensor_group"):
        raise args.wrong("group_size", f"of strategy {result.strategy}")
    return result


def _block(args: Fields) -> tuple[int, int] | None:
    """Rows × columns; older releases wrote `128x128`."""
    value = args.any("block_structure")
    if isinstance(value, str):
        # A size has few digits; and Python's \d matches those of other alphabets, too.
        parts = re.fullmatch(r"([0-9]{1,9})x([0-9]{1,9})", value)
        pair = [int(n) for n in parts.groups()] if parts else value
        return Fields({"block_structure": pair}, args.where).block("block_structure")
    return args.block("block_structure")

"""`quantization_config` of compressed-tensors, as small values of our own.

No release of the library parses every checkpoint that people have, so the fields are read here and
by no name but their own: a group called NVFP4A16 whose fields say W4A4 is W4A4.
Source: compressed-tensors' QuantizationConfig, QuantizationScheme, QuantizationArgs (0.17, 0.20).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.foreign import foreign_config, sparse_format
from scoremode.schemes.names import EMBEDDINGS, matches, parts_of
from scoremode.schemes.presets import preset_formats
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["Group", "QuantizationConfig", "parse_quantization"]

# Ranks of a claim: 0 by exact name, 1 by pattern.
_CLASS = 2


@dataclass(frozen=True)
class Group:
    """One entry of `config_groups`: its targets and formats. `format` may be its own."""

    name: str
    targets: tuple[str, ...]
    format: str | None
    weights: TensorFormat | None
    inputs: TensorFormat | None
    outputs: TensorFormat | None


@dataclass(frozen=True)
class QuantizationConfig:
    """All of a compressed-tensors `quantization_config` that decides what a weight means."""

    format: str | None
    groups: tuple[Group, ...]
    ignore: tuple[str, ...]
    kv_cache: TensorFormat | None
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

    def _claim(self, module: str) -> tuple[bool, int | None, Group | None]:
        """Whether the name is ignored, and else the group with the best claim and its rank."""
        kind = "Embedding" if module.rpartition(".")[2] in EMBEDDINGS else "Linear"
        if kind in self.ignore or any(matches(module, name) is not None for name in self.ignore):
            return True, None, None
        claims: dict[int, list[Group]] = {}
        for group in self.groups:
            ranks = [matches(module, target) for target in group.targets]
            if kind in group.targets:
                ranks.append(_CLASS)
            rank = min((r for r in ranks if r is not None), default=None)
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

    Raises UnsupportedFormat for another library's, for sparse formats and for transforms, and
    CheckpointError for one that can't be understood.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"quantization_config is a {type(config).__name__}, not an object")
    foreign = foreign_config(config)
    if foreign is not None:
        raise UnsupportedFormat(foreign)
    sparsity = config.get("sparsity_config") or {}
    sparse = sparsity.get("format") if isinstance(sparsity, Mapping) else sparsity
    if sparse not in (None, "dense"):
        raise UnsupportedFormat(sparse_format(sparse) or f"sparse format {sparse!r}: not known")
    if config.get("transform_config"):
        raise UnsupportedFormat("transform_config (online rotations): not supported")
    groups = config.get("config_groups") or {}
    # A cache may be all that is quantized.
    if not isinstance(groups, Mapping) or not (groups or config.get("kv_cache_scheme")):
        raise CheckpointError("quantization_config has no config_groups")
    try:
        return QuantizationConfig(
            format=config.get("format"),
            groups=tuple(_group(name, group) for name, group in groups.items()),
            ignore=_patterns(config.get("ignore") or []),
            kv_cache=_tensor_format(config.get("kv_cache_scheme")),
            version=config.get("version"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise CheckpointError(f"quantization_config can't be understood: {error!r}") from None


def _group(name: str, group: Mapping[str, Any] | list[str]) -> Group:
    if not isinstance(group, Mapping):
        # The short form {"W4A16": ["Linear"]} names a preset of the library.
        try:
            weights, inputs = preset_formats(name)
        except KeyError:
            raise UnsupportedFormat(f"quantization group {name!r}: not a known preset") from None
        return Group(name, _patterns(group), None, weights, inputs, None)
    result = Group(
        name=name,
        targets=_patterns(group["targets"]),
        format=group.get("format"),
        weights=_static(name, _tensor_format(group.get("weights"))),
        inputs=_tensor_format(group.get("input_activations")),
        outputs=_tensor_format(group.get("output_activations")),
    )
    if result.weights is None and (result.inputs or result.outputs):
        # Such as attention's queries; nothing here would do it, nor say that it isn't done.
        first, *others = result.targets or ("nothing",)
        raise UnsupportedFormat(
            f"quantization group {name!r} quantizes activations ({result.inputs or result.outputs}) "
            f"of {first}{f' and {len(others)} more' if others else ''} and no weights: not supported"
        )
    return result


def _patterns(names: list[str]) -> tuple[str, ...]:
    """Names and `re:` patterns, each known to compile."""
    if isinstance(names, str):
        raise TypeError(f"{names!r} is not a list of names")
    for name in names:
        if name.startswith("re:"):
            re.compile(name[3:])
    return tuple(names)


def _static(name: str, weights: TensorFormat | None) -> TensorFormat | None:
    if weights is not None and weights.dynamic:
        raise UnsupportedFormat(f"quantization group {name!r} has dynamic weights: not supported")
    return weights


def _tensor_format(args: Mapping[str, Any] | None) -> TensorFormat | None:
    if args is None:
        return None
    group_size = args.get("group_size")
    strategy = args.get("strategy")
    if strategy is None:
        # The library's own defaults: a group size implies groups, -1 channels, nothing a tensor.
        strategy = {None: "tensor", -1: "channel"}.get(group_size, "group")
    actorder = args.get("actorder")
    if isinstance(actorder, bool):
        actorder = "group" if actorder else None
    if actorder is not None:
        # The library's older names.
        actorder = {"dynamic": "group", "static": "weight"}.get(actorder.lower(), actorder.lower())
    scale_dtype = args.get("scale_dtype")
    dynamic = args.get("dynamic", False)
    if dynamic not in (True, False, "local"):
        raise ValueError(f"dynamic is {dynamic!r}")
    return TensorFormat(
        bits=int(args.get("num_bits", 8)),
        type=str(args.get("type", "int")).lower(),
        strategy=str(strategy).lower(),
        group_size=int(group_size) if group_size is not None and int(group_size) > 0 else None,
        symmetric=bool(args.get("symmetric", True)),
        dynamic=dynamic,
        actorder=actorder,
        block=_block(args.get("block_structure")),
        scale_dtype=None if scale_dtype is None else str(scale_dtype).removeprefix("torch."),
    )


def _block(value: Any) -> tuple[int, int] | None:
    """Rows × columns; older releases wrote `128x128`."""
    if value is None:
        return None
    rows, columns = value.split("x") if isinstance(value, str) else value
    if int(rows) < 1 or int(columns) < 1:
        raise ValueError(f"block_structure is {value!r}")
    return int(rows), int(columns)

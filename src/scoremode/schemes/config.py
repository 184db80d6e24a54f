"""`quantization_config` of compressed-tensors, as small values of our own.

No release of the library parses every checkpoint that people have, so the fields are read here and
by no name but their own: a group called NVFP4A16 whose fields say W4A4 is W4A4.
Source: compressed-tensors' QuantizationConfig, QuantizationScheme, QuantizationArgs (0.17, 0.20).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.presets import preset_formats
from scoremode.schemes.tensor_format import TensorFormat

__all__ = ["Group", "QuantizationConfig", "parse_quantization"]


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

    def ignores(self, module: str) -> bool:
        return any(_matches(module, pattern) is not None for pattern in self.ignore)

    def group_of(self, module: str) -> Group | None:
        """The group that a linear or an embedding belongs to, None if none or if it is ignored.

        An exact name goes before a pattern, and a pattern before the class, which is `Embedding` by
        the names that embeddings have and else `Linear`. Raises CheckpointError where two groups of
        the same rank claim it and differ.
        """
        kind = "Embedding" if module.rpartition(".")[2] in _EMBEDDINGS else "Linear"
        if self.ignores(module):
            return None
        claims: dict[int, list[Group]] = {}
        for group in self.groups:
            ranks = [_matches(module, target) for target in group.targets]
            if kind in group.targets:
                ranks.append(2)
            rank = min((r for r in ranks if r is not None), default=None)
            if rank is not None:
                claims.setdefault(rank, []).append(group)
        if not claims:
            return None
        first, *others = claims[min(claims)]
        for other in others:
            if _formats(other) != _formats(first):
                raise CheckpointError(
                    f"quantization groups {first.name} and {other.name} both claim {module} "
                    "and differ"
                )
        return first


def _formats(group: Group) -> tuple:
    return group.format, group.weights, group.inputs, group.outputs


_EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings", "tok_embeddings"}
# Names of modules that an engine fuses, and of their parts: a config may use either.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def _matches(module: str, pattern: str) -> int | None:
    """0 for the exact name, 1 for a `re:` pattern (matched from the start), None for neither.

    A part is also matched by the name of what it is fused into, and that by the name of a part.
    """
    names = _names(module)
    if pattern in names:
        return 0
    if pattern.startswith("re:") and any(re.match(pattern[3:], name) for name in names):
        return 1
    return None


@lru_cache(maxsize=1 << 16)
def _names(module: str) -> tuple[str, ...]:
    """The module's own name, and those it has fused or in parts."""
    parent, dot, last = module.rpartition(".")
    others = [whole for whole, parts in _FUSED.items() if last in parts]
    return (module, *(f"{parent}{dot}{name}" for name in (*others, *_FUSED.get(last, ()))))


def parse_quantization(config: Mapping[str, Any]) -> QuantizationConfig:
    """Reads a `quantization_config`.

    Raises UnsupportedFormat for another library's, for sparse formats and for transforms, and
    CheckpointError for one that can't be understood.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"quantization_config is a {type(config).__name__}, not an object")
    method = config.get("quant_method", "compressed-tensors")
    if method != "compressed-tensors":
        raise UnsupportedFormat(f"quantization method {method!r}: not supported yet")
    sparsity = config.get("sparsity_config") or {}
    sparse = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    if sparse != "dense":
        raise UnsupportedFormat(f"sparse format {sparse!r}: not supported")
    if config.get("transform_config"):
        raise UnsupportedFormat("transform_config (online rotations): not supported")
    groups = config.get("config_groups") or {}
    if not isinstance(groups, Mapping) or not groups:
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
    return Group(
        name=name,
        targets=_patterns(group["targets"]),
        format=group.get("format"),
        weights=_static(name, _tensor_format(group.get("weights"))),
        inputs=_tensor_format(group.get("input_activations")),
        outputs=_tensor_format(group.get("output_activations")),
    )


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

"""The model's parameter names → the checkpoint's, by transformers' own conversion rules.

They cover a base model saved without its head, layers that were renamed since, and parameters that
the library makes of other tensors (experts stacked, projections fused or cut apart). A quantized
module counts as its parameter, a `weight` or one of all experts.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.resolve import Schemes

if TYPE_CHECKING:
    from transformers.core_model_loading import WeightConverter

__all__ = ["Conversion", "Names"]


@dataclass
class Conversion:
    """One use of a converter of the library's.

    - `target`: the full name of the parameter that it makes, the first if it makes several.
    - `sources`: for each of its source patterns, in the converter's order, the checkpoint's names
      by the index that stands for the pattern's `*` (0 without one).
    """

    converter: "WeightConverter"
    target: str
    sources: dict[str, dict[int, str]] = field(default_factory=dict)

    def in_order(self, pattern: str, count: int) -> list[str]:
        """The names of a source pattern at the indices below `count`.

        Raises CheckpointError for an index that is missing or that the model doesn't have.
        """
        names = self.sources[pattern]
        for index in range(count):
            if index not in names:
                wanted = pattern.replace("*", str(index)).strip(".")
                raise CheckpointError(f"no tensor {wanted} for expert {index} of {self.target}")
        for index, name in names.items():
            if index >= count:
                raise CheckpointError(
                    f"tensor {name} is of expert {index}, and {self.target} has {count} experts"
                )
        return [names[index] for index in range(count)]


class Names:
    """The names that the checkpoint has for the model's parameters and buffers, or for what it makes
    them of."""

    def __init__(self, skeleton: Skeleton, checkpoint: Checkpoint, schemes: Schemes):
        self._skeleton = skeleton
        self._stored: dict[str, str] = {}
        self._conversions: dict[str, Conversion] = {}
        self._renamed: dict[str, str] = {}
        # Sorted as the library does it, since a rule may wait for a name that comes first.
        names = sorted(_logical_names(checkpoint, schemes))
        self._map({name: name for name in names})
        if self.stored(skeleton.embedding_name) is None:
            prefixes = _prefixes(skeleton, names)
            if prefixes:
                self._map({name: _without(name, prefixes) for name in names})

    def _map(self, names: Mapping[str, str]) -> None:
        """Fills all tables; `names`: of each of the checkpoint's tensors what the library may know."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            WeightConverter,
            WeightRenaming,
            rename_source_key,
        )

        rules = get_model_conversion_mapping(self._skeleton.model) or []
        # MLX's name for what the library calls experts, whatever stands around it.
        switched = WeightRenaming(r"\.switch_mlp\.", ".experts.")
        rules = [switched, *rules]
        renamings = [r for r in rules if isinstance(r, WeightRenaming)]
        converters = [r for r in rules if isinstance(r, WeightConverter)]
        by_pattern = {p: c for c in converters for p in c.source_patterns}
        base = self._skeleton.model.base_model_prefix
        known = dict.fromkeys(
            (*self._skeleton.tensor_names(), *_experts_apart(self._skeleton)), True
        )
        for table in (self._stored, self._conversions, self._renamed):
            table.clear()
        for name, own in names.items():
            renamed, pattern = rename_source_key(own, renamings, converters, base, known)
            if renamed not in known and own in known:
                renamed, pattern = own, None
            self._renamed[name] = renamed
            if pattern is None:
                other = self._stored.setdefault(renamed, name)
                if other != name and renamed in known:
                    raise CheckpointError(
                        f"tensors {other} and {name} are both the model's {renamed}"
                    )
                continue
            converter = by_pattern[pattern]
            before, _ = rename_source_key(own, renamings, [])
            self._add_source(converter, pattern, name, before, renamed)

    def _add_source(
        self, converter: "WeightConverter", pattern: str, name: str, before: str, target: str
    ) -> None:
        """`before`: `name` as the converter sees it."""
        conversion = self._conversions.get(target)
        if conversion is None:
            conversion = Conversion(converter, target, {p: {} for p in converter.source_patterns})
            first = converter.target_patterns[0]
            for other in converter.target_patterns:
                self._conversions[target.replace(first, other)] = conversion
        index = 0
        if "*" in pattern:
            match = re.search(pattern.replace("*.", r"(?P<index>\d+)\."), before)
            if match is None:
                raise UnsupportedModel(f"tensor {name} has no index where {pattern} has its *")
            index = int(match["index"])
        other = conversion.sources[pattern].setdefault(index, name)
        if other != name:
            raise CheckpointError(f"tensors {other} and {name} are both of the model's {target}")

    def language_model(self) -> str | None:
        """The prefix of the language model's names, where the checkpoint has it apart from others."""
        base = self._skeleton.model.base_model_prefix
        table = self._skeleton.embedding_name.rpartition(".")[0].rpartition(".")[2]
        stored = self.stored(self._skeleton.embedding_name)
        prefix, found, _ = (stored or "").rpartition(f"{table}.")
        return prefix if found and prefix not in ("", f"{base}.") else None

    def renamed(self, stored: str) -> str:
        """The library's name for a tensor of the checkpoint, whether the model has it or not."""
        return self._renamed.get(stored, stored)

    def stored(self, name: str) -> str | None:
        """The one tensor that is the parameter, None if the checkpoint has no such tensor."""
        return self._stored.get(name)

    def conversion(self, name: str) -> Conversion | None:
        """Returns how the parameter is made of other tensors, None if it isn't."""
        return self._conversions.get(name)


def _logical_names(checkpoint: Checkpoint, schemes: Schemes) -> Iterable[str]:
    for name in checkpoint.tensors:
        module, suffix = schemes.split(name)
        if module not in schemes.quantized or suffix == "bias":
            yield name
    yield from map(schemes.parameter_of, schemes.quantized)


def _experts_apart(skeleton: Skeleton) -> Iterable[str]:
    """Names of the linears that experts are stored as, all of a kind as one or each by itself, where
    the library has no rule for them. Only of names that it knows does it change a prefix."""
    for prefix, layer in zip(skeleton.layer_names, skeleton.layers, strict=True):
        for path, module in layer.named_modules():
            down = module._parameters.get("down_proj")
            if down is None or down.dim() != 3:
                continue
            homes = [f"{prefix}.{path}", *(f"{prefix}.{path}.{e}" for e in range(len(down)))]
            for part in ("gate_proj", "up_proj", "down_proj"):
                yield from (f"{h}.{part}.{suffix}" for h in homes for suffix in ("weight", "bias"))


def _prefixes(skeleton: Skeleton, names: Iterable[str]) -> list[str]:
    """Prefixes of the language model's names in a checkpoint that the library has no rule for.

    They are told by the embedding's table, beside which the decoder layers lie: where that is
    `language_model.model.embed_tokens.weight`, the head is `language_model.lm_head.weight`.
    """
    base = skeleton.model.base_model_prefix
    table = skeleton.embedding_name.removeprefix(f"{base}.")
    first = skeleton.layer_names[0].removeprefix(f"{base}.")
    candidates = {n.removesuffix(table) for n in names if n.endswith(f".{table}")}
    found = [c for c in candidates if any(n.startswith(f"{c}{first}.") for n in names)]
    if len(found) != 1:
        return []
    # The base model may be called otherwise (Nemotron-H's backbone); beside it lies the head.
    outer = found[0].rstrip(".").rpartition(".")[0]
    head = next((n for n, m in skeleton.model.named_modules() if m is skeleton.head), "")
    has_head = any(name.startswith(f"{outer}.{head}.") for name in names)
    return [found[0], *([f"{outer}."] if outer and has_head else [])]


def _without(name: str, prefixes: Iterable[str]) -> str:
    prefix = next((p for p in prefixes if name.startswith(p)), "")
    return name.removeprefix(prefix)

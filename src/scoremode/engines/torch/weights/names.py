"""The model's parameter names → the checkpoint's, by transformers' own conversion rules.

They cover a base model saved without its head, layers that were renamed since, and parameters that
the library makes of other tensors (experts stacked, projections fused or cut apart). A quantized
module counts as its parameter, a `weight` or one of all experts.

What has no faster way of its own (`Converted`: projections stored fused and used apart or the other way
round, transposed or interleaved weights) is made by running the library's own rule on what the tensors
decode to. What nothing in the model uses is named, and an error unless it may be so (`find_unused`).
"""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.torch.kv_cache.layer_caches import CACHE_TENSORS
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.slot import Source, decoded
from scoremode.errors import CheckpointError, UnsupportedModel, words_of
from scoremode.schemes.base import Scratch
from scoremode.schemes.resolve import Schemes

if TYPE_CHECKING:
    from transformers.core_model_loading import WeightConverter

# What configs call the layers behind the last, which predict tokens after the next: DeepSeek and GLM,
# MiniMax, MiMo and Ernie.
_PREDICTION_LAYERS = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers")
# Tables that old checkpoints store and that are computed now.
_COMPUTED = (
    r"\.rotary_emb\.inv_freq$",
    r"\.attn(\.attention)?\.masked_bias$",
    r"^(transformer\.)?h\.\d+\.attn(\.attention)?\.bias$",
)


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
        plain = [name for name in checkpoint.tensors if not _is_packed(name, schemes)]
        names = sorted([*plain, *map(schemes.parameter_of, schemes.quantized)])
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


def find_unused(
    checkpoint: Checkpoint, skeleton: Skeleton, schemes: Schemes, names: Names, used: Set[str]
) -> list[str]:
    """Names of tensors that aren't `used`: an encoder's, layers' that only predict.

    Raises CheckpointError for one that belongs to a layer or module of the model.
    """
    known = {name.rpartition(".")[0] for name in used}
    ignorable = [*(skeleton.model._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED]
    if schemes.config is not None:
        # Whatever the config says of a cache, or doesn't: weights are the same.
        ignorable += CACHE_TENSORS
    counts = [getattr(skeleton.config, name, None) for name in _PREDICTION_LAYERS]
    extra = max((n for n in counts if isinstance(n, int)), default=0)
    predicted = range(len(skeleton.layers), len(skeleton.layers) + extra)
    language = names.language_model()
    if language is not None:
        # What holds the language model and others has parameters of its own, too.
        known = {name for name in known if not language.startswith(f"{name}.")}
    # All that lies in a plain model is its own: one more norm there would be another model's.
    base = f"{skeleton.model.base_model_prefix}."
    within = language or (base if skeleton.text_alone is None else None)
    unused = []
    for name in checkpoint.tensors:
        if name in used:
            continue
        module, _ = schemes.split(name)
        if _is_packed(name, schemes):
            # The Scheme of a quantized module in use knows all of its tensors.
            source = Source(schemes.home_of(module), schemes.quantized[module])
            if not used.isdisjoint(source.tensor_names().values()):
                continue
        elif module in schemes.quantized and not checkpoint.read(name).any():
            # AutoGPTQ gives all quantized linears a bias, of zeros.
            continue
        unused.append(name)
        parents = {name.rsplit(".", n)[0] for n in range(1, name.count(".") + 1)}
        layer = skeleton.layer_of(names.renamed(name))
        belongs = (
            parents & known
            or (layer is not None and layer not in predicted)
            or (within is not None and name.startswith(within) and layer is None)
        )
        if belongs and not any(re.search(pattern, name) for pattern in ignorable):
            raise CheckpointError(
                f"{checkpoint.path}: tensor {name} belongs to a layer or module of the "
                "model, and nothing in it uses such a tensor"
            )
    return unused


def _is_packed(name: str, schemes: Schemes) -> bool:
    """Tells whether a tensor is part of a quantized module, and not its bias."""
    module, suffix = schemes.split(name)
    return module in schemes.quantized and suffix != "bias"


class Converted:
    """A Scheme whose tensors are those of its sources, under their full names.

    `sources`: for each of the conversion's patterns the tensors in index order; `name`: the full name
    of the parameter, one of those that the converter makes. Raises CheckpointError where the rule
    can't be applied to tensors of these shapes.
    """

    def __init__(
        self, conversion: Conversion, sources: Mapping[str, list[Source]], name: str, model: Any
    ):
        self._conversion, self._sources = conversion, dict(sources)
        self._name, self._model = name, model
        # Inputs that any of the sources wants quantized; the product of a whole has no place for it.
        self.inputs = next((s.scheme.inputs for _, _, s in self._all() if s.scheme.inputs), None)
        self.label = " + ".join(sorted({s.scheme.label for _, _, s in self._all()}))
        self.tensors = tuple(n for _, _, s in self._all() for n in s.tensor_names().values())
        empty = {
            pattern: [torch.empty(s.scheme.shape, device="meta") for s in sources]
            for pattern, sources in self._sources.items()
        }
        # The shape is what the rule makes of tensors without values.
        self.shape = tuple(self._convert(empty).shape)

    def __str__(self) -> str:
        first, *others = self.tensors
        return f"{first} and {len(others)} other tensors" if others else first

    def decode(
        self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor, scratch: Scratch
    ) -> None:
        values: dict[str, list[torch.Tensor]] = {pattern: [] for pattern in self._sources}
        for pattern, i, source in self._all():
            dense = decoded(source, f"source {pattern} {i}", tensors, out, scratch)
            values[pattern].append(dense)
        out.copy_(self._convert(values))

    @property
    def parts(self) -> list[Source]:
        """All sources, of all patterns."""
        return [source for _, _, source in self._all()]

    def _all(self) -> list[tuple[str, int, Source]]:
        return [(p, i, s) for p, sources in self._sources.items() for i, s in enumerate(sources)]

    def _convert(self, collected: dict[str, list[torch.Tensor]]) -> torch.Tensor:
        """Does what WeightConverter.convert does, for the one parameter that is wanted."""
        converter, target = self._conversion.converter, self._conversion.target
        values: dict[str, Any] = dict(collected)
        try:
            for operation in converter.operations:
                values = operation.convert(
                    values,
                    source_patterns=converter.source_patterns,
                    target_patterns=converter.target_patterns,
                    full_layer_name=target,
                    model=self._model,
                    config=self._model.config,
                    missing_keys=None,
                )
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self}: can't be made into {self._name} ({words_of(error, 160)})"
            ) from None
        # Results are called by target patterns, the first of which the library found in `target`.
        before, _, after = next((target.partition(k) for k in values if k in target), ("", "", ""))
        for key, value in values.items():
            if before + key + after == self._name:
                return value[0] if isinstance(value, list) else value
        raise CheckpointError(
            f"{self}: the library makes {', '.join(values)} of them, and no {self._name}"
        )

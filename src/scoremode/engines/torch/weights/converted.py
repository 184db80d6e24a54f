"""Parameters that the library makes of other tensors, by running its own rule on what they decode to.

For everything that has no faster way of its own: projections stored fused and used apart or the other
way round, transposed or interleaved weights.
"""

from collections.abc import Mapping
from typing import Any

import torch

from scoremode.engines.torch.weights.names import Conversion
from scoremode.engines.torch.weights.sources import Source
from scoremode.errors import CheckpointError, words_of
from scoremode.schemes.base import Scratch

__all__ = ["Converted"]


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
        decoded: dict[str, list[torch.Tensor]] = {pattern: [] for pattern in self._sources}
        for pattern, i, source in self._all():
            role, shape = f"source {pattern} {i}", tuple(source.scheme.shape)
            dense = scratch.get(role, shape, out.dtype, out.device)
            packed = {s: tensors[name] for s, name in source.tensor_names().items()}
            source.scheme.decode(packed, dense, scratch)
            decoded[pattern].append(dense)
        out.copy_(self._convert(decoded))

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

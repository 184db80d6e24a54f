"""Places of the weights of each expert, for the library's fused experts modules.

Such a module holds all experts in one parameter a projection, `gate_up_proj` [E, 2I, D] (or `up_proj`
without gates) and `down_proj` [E, D, I], some transposed, some with biases. A checkpoint stores that,
packed maybe and then transposed or not; or gate and up apart, each of all experts and never transposed
(MLX's `gate_proj`, `up_proj` and `down_proj` [E, O, I]); or each expert's linears apart: under names
that the library's conversion rules stack and concatenate, or as llm-compressor unrolls modules that
have no such rule (`experts.N.gate_proj`, `up_proj`, `down_proj`; gpt-oss, Llama 4), or as GPTQModel did
before 5.8, gates and ups still in turns (`experts.gate_up.N` and `experts.down.N`; gpt-oss).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from scoremode.engines.torch.weights.names import Names
from scoremode.engines.torch.weights.slot import Binding
from scoremode.errors import CheckpointError, UnsupportedModel
from scoremode.schemes.base import Dense

# What transformers' use_experts_implementation gives a module, since 5.0.
_MARKS = ("has_bias", "is_transposed", "_apply_gate")

# In which of the layouts above a projection is stored, in their order.
Layout = Literal["fused", "stacked", "apart", "unrolled"]
# A tensor's name, the parameter and the shape it is for, which expert's share of it, and the layout.
Make = Callable[[str, str, tuple[int, ...], int | None, Layout], Binding]
# Rules that do no more than put experts, and gate and up, one after the other.
_STACKED = (["MergeModulelist(dim=0)"], ["MergeModulelist(dim=0)", "Concatenate(dim=1)"])


@dataclass(frozen=True)
class ExpertLinear:
    """One expert's weight [O, I], or [I, O] where `is_transposed`: a slice of a transposed parameter
    that is stored dense; its bias [O]."""

    weight: Binding
    bias: Binding | None
    is_transposed: bool = False


@dataclass(frozen=True)
class ExpertWeights:
    """All experts of one module, by index.

    - `first`: of each the linears whose outputs make up `gate_up_proj`'s (gate and up, or the one
      that holds both) or `up_proj`'s.
    - `down`: of each its `down_proj`.
    - `interleaved`: whether the module's gate expects gate and up in turns, not one after the other;
      means nothing where they are stored as one.
    """

    module: nn.Module
    first: list[list[ExpertLinear]]
    down: list[ExpertLinear]
    interleaved: bool

    def bindings(self, expert: int | None = None) -> list[Binding]:
        """The bindings of one expert, or of all."""
        experts = range(len(self.down)) if expert is None else [expert]
        linears = [linear for e in experts for linear in (*self.first[e], self.down[e])]
        return [b for linear in linears for b in (linear.weight, linear.bias) if b is not None]

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the module that its experts' weights stand for."""
        found = (self.module._parameters[b.name] for b in self.bindings(0))
        return [parameter for parameter in found if parameter is not None]


def is_experts(module: nn.Module) -> bool:
    """Tells whether the module runs through transformers' experts interface."""
    return all(hasattr(module, mark) for mark in _MARKS)


def find_experts(module: Any, full_name: str, names: Names, make: Make) -> ExpertWeights | None:
    """Bindings for each expert; None where the checkpoint stores the parameters in another layout,
    which only the whole of it can be converted from.

    Raises CheckpointError for experts that are missing, too many, or of a wrong shape.
    """
    first_name = "gate_up_proj" if has_gate(module) else "up_proj"
    found = [_Projection(module, full_name, p, names) for p in (first_name, "down_proj")]
    if any(p.layout is None for p in found):
        return None
    first, down = ([p.linears(e, make) for e in range(p.count)] for p in found)
    by_part = found[0].layout in ("stacked", "unrolled")
    interleaved = by_part and _is_interleaved(module, full_name)
    return ExpertWeights(module, first, [linear for (linear,) in down], interleaved)


def has_gate(module: nn.Module) -> bool:
    return getattr(module, "has_gate", True)


def _is_interleaved(module: nn.Module, full_name: str) -> bool:
    """Tells whether gates and ups are interleaved: for experts that no rule of the library's puts
    together, the module itself has to say."""
    if not has_gate(module):
        return False
    if not hasattr(module, "is_concatenated"):
        raise UnsupportedModel(
            f"{full_name}: this transformers doesn't say in what order its gates and ups lie; a "
            "newer one does"
        )
    return not module.is_concatenated


class _Projection:
    """A projection of a module: in which of the layouts above it is stored."""

    def __init__(self, module: Any, full_name: str, name: str, names: Names):
        shape = tuple(module._parameters[name].shape)
        self.count: int = shape[0]
        self._name, self._has_bias = name, module.has_bias
        self._is_transposed: bool = module.is_transposed
        self._outputs, self._inputs = shape[:0:-1] if module.is_transposed else shape[1:]
        self._shape = shape
        self._weights: list[list[str]] = []
        self._biases: list[list[str]] = []
        self.layout: Layout | None = self._find(module, full_name, names)

    def _find(self, module: Any, experts: str, names: Names) -> Layout | None:
        weight, bias = f"{experts}.{self._name}", f"{experts}.{self._name}_bias"
        stored = names.stored(weight)
        if stored is None and self._name == "gate_up_proj":
            # As a tensor of a GGUF file, which ends as other weights do.
            stored = names.stored(f"{weight}.weight")
        if stored is not None:
            if not self._has_bias:
                biases = []
            elif (stored_bias := names.stored(bias)) is not None:
                biases = [[stored_bias]]
            else:
                raise CheckpointError(f"no tensor for parameter {bias}")
            self._weights, self._biases = [[stored]] * self.count, biases * self.count
            return "fused"
        conversion = names.conversion(weight)
        if conversion is not None:
            if module.is_transposed or self._has_bias:
                return None
            if [repr(o) for o in conversion.converter.operations] not in _STACKED:
                return None
            by_part = [conversion.in_order(p, self.count) for p in conversion.sources]
            self._weights = [list(parts) for parts in zip(*by_part, strict=True)]
            return "apart"
        parts = ("gate_proj", "up_proj") if self._name == "gate_up_proj" else (self._name,)

        def stored_of(modules: list[str], suffix: str, needs: str) -> list[str]:
            found = [names.stored(f"{module}.{suffix}") for module in modules]
            if None in found:
                missing = f"{modules[found.index(None)]}.{suffix}"
                raise CheckpointError(f"no tensor {missing}, which {needs}")
            return [name for name in found if name is not None]

        of_all, every = [f"{experts}.{part}" for part in parts], range(self.count)
        if any(names.stored(f"{module}.weight") for module in of_all):
            self._weights = [stored_of(of_all, "weight", f"{experts} needs")] * self.count
            if self._has_bias:
                self._biases = [stored_of(of_all, "bias", f"{experts} needs")] * self.count
            return "stacked"
        apart = [[f"{experts}.{e}.{part}" for part in parts] for e in every]
        if not any(names.stored(f"{modules[0]}.weight") for modules in apart):
            whole = f"{experts}.{self._name.removesuffix('_proj')}"
            apart = [[f"{whole}.{e}"] for e in every]
            if not any(names.stored(f"{modules[0]}.weight") for modules in apart):
                return None
        needs = [f"expert {e} needs" for e in every]
        self._weights = [stored_of(apart[e], "weight", needs[e]) for e in every]
        if self._has_bias:
            self._biases = [stored_of(apart[e], "bias", needs[e]) for e in every]
        return "unrolled"

    def linears(self, expert: int, make: Make) -> list[ExpertLinear]:
        """Linears of one expert, in the order of their outputs."""
        assert self.layout is not None
        weights = self._weights[expert]
        biases = self._biases[expert] if self._has_bias else [None] * len(weights)
        outputs = self._outputs // len(weights)
        of_all = self.layout in ("fused", "stacked")
        index, count = (expert, (self.count,)) if of_all else (None, ())
        shape, bias_shape = (*count, outputs, self._inputs), (*count, outputs)
        if self.layout == "fused":
            shape = self._shape
        linears = []
        for part, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            made = make(weight, f"{self._name}.{part}", shape, index, self.layout)
            is_slice = self.layout == "fused" and isinstance(made.scheme, Dense)
            of_bias = f"{self._name}_bias.{part}"
            linears.append(
                ExpertLinear(
                    made,
                    None if bias is None else make(bias, of_bias, bias_shape, index, self.layout),
                    is_slice and self._is_transposed,
                )
            )
        return linears

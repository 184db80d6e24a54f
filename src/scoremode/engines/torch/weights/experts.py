"""Fused experts, one expert at a time, through transformers' experts interface.

The library's modules call whatever function is registered under the config's name for it; ours takes
each expert's weights from the Slot instead of from one parameter that holds them all. So packed
experts are never all dense at once unless they fit, and an expert's linear is one method.

Experts run in the order of their indices, each on its tokens in order; every token's outputs are then
weighted and summed over its choices and rounded once, as the library's grouped implementation does it.
Nothing depends on how many experts are held dense.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from scoremode.engines.torch.matmul.linears import InputFactor, QuantizedMatmul
from scoremode.engines.torch.model.skeleton import Skeleton
from scoremode.engines.torch.weights.expert_weights import (
    ExpertLinear,
    ExpertWeights,
    has_gate,
    is_experts,
)
from scoremode.engines.torch.weights.slot import Binding, Slot
from scoremode.lib.fallback import attempt
from scoremode.schemes.fused_experts import Expert, Stacked

# What transformers knows it by.
_IMPLEMENTATION = "scoremode"
# Where a module finds what runs it.
_ATTRIBUTE = "_scoremode_experts"
# Where it may find what does the same as its own gate: from gates and ups, None if it can't.
GATE = "_scoremode_gate"
# Tokens whose outputs are weighted and summed together: bounds what lies in float32.
_SUM_TOKENS = 2048


def choose_experts(model: nn.Module) -> None:
    """Has the model's fused experts run through this file's implementation."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    grouped = ALL_EXPERTS_FUNCTIONS["grouped_mm"]

    def forward(module: nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Parameters that had to be converted whole are there whole: the library's own function.
        run = getattr(module, _ATTRIBUTE, grouped)
        assert run is not None, "a layer runs whose experts are not in the Slot"
        return run(module, *args, **kwargs)

    ALL_EXPERTS_FUNCTIONS.register(_IMPLEMENTATION, forward)
    for module in model.modules():
        if type(module).__name__ == "Llama4TextExperts":
            _adopt(module)
        elif is_experts(module):
            config: Any = module.config
            config._experts_implementation = _IMPLEMENTATION


def _adopt(experts: Any) -> None:
    """Has Llama 4's experts, which stand beside the interface, run as if they had it.

    Each gets all tokens [E · n, D], one expert's after the other's, scaled by the router before. By
    zero, if they are others': of these it makes zero, and they are left out.
    """
    experts.has_bias, experts.is_transposed, experts.is_concatenated = False, True, True

    def apply_gate(gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return up * experts.act_fn(gate)

    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        count: int = experts.num_experts
        states = hidden_states.view(-1, experts.hidden_size)
        chosen = torch.arange(count, device=states.device).repeat_interleave(len(states) // count)
        chosen.masked_fill_(~states.any(-1), count)
        weights = states.new_ones(len(states), 1)
        run = getattr(experts, _ATTRIBUTE)
        assert run is not None, "a layer runs whose experts are not in the Slot"
        return run(experts, states, chosen.unsqueeze(1), weights)

    experts._apply_gate, experts.forward = apply_gate, forward


@dataclass(frozen=True)
class ExpertPart:
    """One linear of one expert: its weight [O, I], or what multiplies with its codes; bias [O]; what
    multiplies its input before."""

    weight: torch.Tensor | QuantizedMatmul
    bias: torch.Tensor | None
    factor: InputFactor | None = None

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[n, I] → [n, O]."""
        if self.factor is not None:
            x = self.factor(x)
        if isinstance(self.weight, QuantizedMatmul):
            return self.weight(x, self.bias)
        return functional.linear(x, self.weight, self.bias)

    def apply_to(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Writes the same to `out` [n, O], without a copy where nothing is behind the product."""
        if isinstance(self.weight, QuantizedMatmul) or self.factor is not None or not x.is_cuda:
            out.copy_(self.apply(x))
        elif self.bias is None:
            torch.mm(x, self.weight.T, out=out)
        else:
            torch.addmm(self.bias, x, self.weight.T, out=out)


class Experts:
    """The experts of all layers, as many of a layer's decoded at once as `budget` bytes allow.

    The first ones stay decoded for a pass; the others take turns in one place, for each micro-batch
    anew.
    """

    def __init__(
        self, skeleton: Skeleton, layers: list[list[ExpertWeights]], slot: Slot, budget: int
    ):
        # Of the largest expert: some of a packed model's may be dense and need no place.
        sizes = [sum(_bytes_of_expert(weights, slot) for weights in layer) for layer in layers]
        counts = [len(weights.down) for layer in layers for weights in layer]
        self._most = max(counts, default=0)
        largest = max(sizes, default=0)
        self._places = max(1, budget // largest) if largest else self._most
        self._layers = [[_Module(w, slot, self._places) for w in layer] for layer in layers]
        modules = [m for layer in skeleton.layers for m in layer.modules() if is_experts(m)]
        self._has_whole = len(modules) > len(counts)

    def fill(self, layer: int) -> None:
        """Decodes what stays for a pass, and connects the layer's modules with it."""
        for module in self._layers[layer]:
            module.fill()

    def empty(self, layer: int) -> None:
        for module in self._layers[layer]:
            module.empty()

    def describe(self) -> str | None:
        """Says how many experts are decoded at once; None for a model without such modules."""
        if self._has_whole:
            return "converted whole, a layer at a time"
        if not self._most:
            return None
        if self._places >= self._most:
            return "a layer at a time"
        return f"{self._places} at a time"


# One expert's linears before the activation, and its `down_proj`.
_Expert = tuple[list[ExpertPart], ExpertPart]


class _Module:
    """One fused experts module with its experts in the Slot."""

    def __init__(self, weights: ExpertWeights, slot: Slot, places: int):
        self._weights, self._slot = weights, slot
        self.count = len(weights.down)
        bindings = weights.bindings()
        parts = [part for b in bindings for part in (b.matmul, b.factor)]
        self._loaded = [part for part in parts if part is not None]
        self._staying = self.count if places >= self.count else places - 1
        self._decoded: list[_Expert] = []
        self.empty()

    def fill(self) -> None:
        whole = self._decode_whole() if self._staying == self.count else None
        self._decoded = whole or [self._decode(e, place=e) for e in range(self._staying)]
        setattr(self._weights.module, _ATTRIBUTE, self._run)

    def empty(self) -> None:
        self._decoded = []
        for part in self._loaded:
            part.unload()
        setattr(self._weights.module, _ATTRIBUTE, None)

    def _expert(self, index: int) -> _Expert:
        """The expert's first parts and its `down`, valid until the next expert that doesn't stay."""
        if index < self._staying:
            return self._decoded[index]
        return self._decode(index, place=self._staying)

    def _decode(self, index: int, place: int) -> _Expert:
        first = [self._part(linear, place) for linear in self._weights.first[index]]
        return first, self._part(self._weights.down[index], place)

    def _decode_whole(self) -> list[_Expert] | None:
        """All experts, each of their linears in all at once; None where they are not stored as one."""
        by_linear = [*zip(*self._weights.first, strict=True), self._weights.down]
        stacks = [stack for one in by_linear if (stack := self._stack(one[0])) is not None]
        if len(stacks) < len(by_linear):
            return None
        parts = [
            [
                ExpertPart(weight, self._bias(linear, place=e))
                for e, (weight, linear) in enumerate(zip(self._slot.dense(stack), one, strict=True))
            ]
            for stack, one in zip(stacks, by_linear, strict=True)
        ]
        return [(list(first), down) for *first, down in zip(*parts, strict=True)]

    def _stack(self, first: ExpertLinear) -> Binding | None:
        """The binding [E, O, I] of all experts, of which this is the first; None where they can't be
        decoded at once."""
        weight = first.weight
        if weight.matmul is not None or not isinstance(weight.scheme, Expert):
            return None
        stacked = Stacked(self.count, weight.scheme)
        if stacked.together is None:
            return None
        return replace(weight, role=f"{weight.role} of all", scheme=stacked, index=None)

    def _bias(self, linear: ExpertLinear, place: int) -> torch.Tensor | None:
        return None if linear.bias is None else self._slot.dense(linear.bias, place)

    def _part(self, linear: ExpertLinear, place: int) -> ExpertPart:
        bias = self._bias(linear, place)
        self._slot.load_factor(linear.weight)
        factor = linear.weight.factor
        if linear.weight.matmul is not None:
            return ExpertPart(self._slot.load(linear.weight, place), bias, factor)
        weight = self._slot.dense(linear.weight, place)
        if linear.is_transposed:
            weight = weight.T
        return ExpertPart(weight, bias, factor)

    def _run(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Hidden states [N, D], each token's experts and their weights [N, K] → [N, D].

        An index that is no expert's adds nothing, as in the library.
        """
        choices = top_k_index.shape[-1]
        # Choices [N·K] by expert and then by token, and where each of a token's [N, K] stands in that.
        experts, order = torch.sort(top_k_index.reshape(-1), stable=True)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order), device=order.device)
        places = places.view(-1, choices)
        outputs = torch.zeros(
            (len(order), hidden_states.shape[-1]),
            dtype=hidden_states.dtype,
            device=hidden_states.device,
        )
        hit, counts = torch.unique_consecutive(experts, return_counts=True)
        begin = 0
        for expert, count in zip(hit.tolist(), counts.tolist(), strict=True):
            chosen = order[begin : begin + count]
            begin += count
            if 0 <= expert < self.count:
                first, down = self._expert(expert)
                tokens = hidden_states[chosen // choices]
                parts = [part.apply(tokens) for part in first]
                acted = _act(module, parts, self._weights.interleaved)
                own = outputs[begin - count : begin]
                if getattr(module, "has_post_expert_norm", False):
                    own.copy_(module.post_expert_norm(down.apply(acted)))
                else:
                    down.apply_to(own, acted)
        if (sums := _summed(outputs, places, top_k_weights)) is not None:
            return sums
        blocks = zip(places.split(_SUM_TOKENS), top_k_weights.split(_SUM_TOKENS), strict=True)
        sums = [(outputs[chosen] * weights.unsqueeze(-1)).sum(1) for chosen, weights in blocks]
        return torch.cat(sums).to(hidden_states.dtype)


def _act(module: Any, parts: list[torch.Tensor], interleaved: bool) -> torch.Tensor:
    """The module's own gate or activation on the first linears' outputs [n, O]."""
    if (gate := getattr(module, GATE, None)) is not None:
        if len(parts) == 2:
            gated, up = parts
        elif module.is_concatenated:
            gated, up = parts[0].chunk(2, dim=-1)
        else:
            gated, up = parts[0][..., ::2], parts[0][..., 1::2]
        if (acted := gate(gated, up)) is not None:
            return acted
    if len(parts) == 1:
        (whole,) = parts
    elif interleaved:
        whole = torch.stack(parts, dim=-1).flatten(-2)
    else:
        whole = torch.cat(parts, dim=-1)
    return module._apply_gate(whole) if has_gate(module) else module.act_fn(whole)


def _summed(
    outputs: torch.Tensor, places: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor | None:
    """The weighted sums [N, D] by one kernel; None where there is none for it."""
    if outputs.dtype == torch.float32 or weights.dtype not in (outputs.dtype, torch.float32):
        return None
    sums = torch.empty((len(places), outputs.shape[-1]), dtype=outputs.dtype, device=outputs.device)

    def run() -> None:
        # Imports Triton, which need not be there.
        from scoremode.engines.torch.fused.kernels import weighted_sums

        weighted_sums(sums, outputs, places, weights)

    return sums if attempt("experts' sums", outputs.device, run) else None


def bytes_of_experts(weights: ExpertWeights, slot: Slot) -> int:
    """Memory that all of a module's experts take decoded."""
    return len(weights.down) * _bytes_of_expert(weights, slot)


def _bytes_of_expert(weights: ExpertWeights, slot: Slot) -> int:
    experts = range(len(weights.down))
    return max(sum(map(slot.bytes_of, weights.bindings(e))) for e in experts)

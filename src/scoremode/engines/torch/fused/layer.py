"""The residual addition before a layer's second norm, in one kernel with it.

The addition is no module's: it stands in the layer's own forward. For layers of the common form

    h = hidden + self_attn(input_layernorm(hidden));  h + mlp(post_attention_layernorm(h))

the forward is written here, and used where the layer's own code, run on stand-ins for its four parts,
hands the same tensors from one to the next and gives the same sum.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.fused.forwards import FUSED, OTHERWISE, Note, is_usual
from scoremode.engines.torch.fused.proofs import (
    Given,
    NotFused,
    differing,
    random,
    running_its_code,
    shell,
)

__all__ = ["PARTS", "layer_forward", "prove_layer"]

# In the order in which the layer calls them.
PARTS: tuple[str, ...] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
# A keyword that no layer knows.
_EXTRA = "scoremode"


class _Attention(nn.Module):
    """A stand-in for the attention: notes what it is called with."""

    def __init__(self, out: torch.Tensor):
        super().__init__()
        self.out = out
        self.calls: list[dict[str, Any]] = []

    def forward(self, **kwargs: Any) -> tuple[torch.Tensor, None]:
        self.calls.append(kwargs)
        return self.out.clone(), None


def prove_layer(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> frozenset[str]:
    """The arguments that the layer hands on to its attention as they are; `scoremode` among them if
    unknown ones are.

    Raises NotFused for a layer that does more than this file's forward.
    """
    named, _ = _parameters(layer.forward)
    given = {name: object() for name in (*named, _EXTRA)}
    plain = {n: d for n, d in named.items() if d is not inspect.Parameter.empty}
    handed = _run(layer, given, dtype, device)
    # What is not given may be taken another way.
    if _run(layer, {**given, **plain}, dtype, device) != handed:
        raise NotFused("its arguments change what it computes")
    return handed


def _run(
    layer: nn.Module, values: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> frozenset[str]:
    x, normed, attended, normed_again, out = random(5, 1, 4, 16).to(device, dtype)
    first, second, mlp = Given(normed), Given(normed_again), Given(out)
    attention = _Attention(attended)
    parts = dict(zip(PARTS, (first, attention, second, mlp), strict=True))
    with running_its_code():
        result = shell(layer, modules=parts)(x, **values)
    if [len(p.inputs) for p in (first, second, mlp)] != [1, 1, 1] or len(attention.calls) != 1:
        raise NotFused("its parts are not called once each")
    (call,) = attention.calls
    steps = [
        (x, first.inputs[0]),
        (normed, call.pop("hidden_states", None)),
        (x + attended, second.inputs[0]),
        (normed_again, mlp.inputs[0]),
        (x + attended + out, result),
    ]
    if any(differing(ours, theirs) > 0 for ours, theirs in steps):
        raise NotFused("computes something else")
    if any(name not in values or value is not values[name] for name, value in call.items()):
        raise NotFused("its attention is given something else")
    return frozenset(call)


def layer_forward(
    layer: Any, handed: frozenset[str], form: str, eps: float, dtype: torch.dtype, note: Note
) -> Callable[..., torch.Tensor]:
    """A forward for `layer`, whose second norm has `form` and `eps`."""
    from scoremode.engines.torch.fused.kernels import NormForm, rms_norm

    number = NormForm[form]
    signature = inspect.signature(layer.forward)
    _, others = _parameters(layer.forward)
    note(FUSED)

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        extra = values.pop(others, {}) if others else {}
        hidden = values.pop("hidden_states")
        rest = {name: value for name, value in values.items() if name in handed}
        if _EXTRA in handed:
            rest |= extra
        attended = layer.self_attn(hidden_states=layer.input_layernorm(hidden), **rest)[0]
        norm = layer.post_attention_layernorm
        if is_usual(attended, dtype) and is_usual(hidden, dtype):
            normed, hidden = rms_norm(attended, norm.weight, eps, number, hidden)
        else:
            note(OTHERWISE)
            hidden = hidden + attended
            normed = norm(hidden)
        del attended
        return hidden + layer.mlp(normed)

    return forward


def _parameters(forward: Callable[..., Any]) -> tuple[dict[str, Any], str | None]:
    """A bound forward's parameters besides the hidden state, with their defaults, and the name of its
    unnamed ones. Raises NotFused."""
    named, others = {}, None
    parameters = list(inspect.signature(forward).parameters.values())
    if not parameters or parameters[0].name != "hidden_states":
        raise NotFused("its first argument is not the hidden state")
    for p in parameters[1:]:
        if p.kind is p.VAR_KEYWORD:
            others = p.name
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            named[p.name] = p.default
        else:
            raise NotFused("has positional arguments without a name")
    if others is None:
        raise NotFused("takes no other arguments")
    return named, others

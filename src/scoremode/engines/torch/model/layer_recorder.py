"""Stand-ins for decoder layers: they note what a layer would have been called with, and don't run it.

What they note is right only if nothing happens between two layers but handing the hidden state over.
Each must get the very tensor that the one before it returned, unchanged, and whatever else it is given
must be there before the first layer runs. What is not so is `NotSeparable`: such a model's layers
can't be run apart from its forward.

A container may be handed from layer to layer for what is in it (DeepSeek-V4's two position tables), or
for what layers write into it, which a layer that runs later and apart would not find. So layers get
read-only copies.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import nn

from scoremode.errors import UnsupportedModel

# A layer's index and what it is called with → what it returns.
RunLayer = Callable[[int, tuple[Any, ...], dict[str, Any]], Any]
_SHARED = "its layers use what others return beside the hidden state"


class NotSeparable(UnsupportedModel):
    """The model's layers can't be run apart from its forward; run whole it may be fine."""


class Reached(BaseException):
    """Ends a forward at the point of interest; no library code may swallow it."""


@dataclass(frozen=True)
class Call:
    """The arguments that one decoder layer is called with besides the hidden state [B, T, D].

    `at` is where the hidden state goes: an index of `args`, or a keyword.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    at: int | str

    def run(
        self, layer: nn.Module, hidden: torch.Tensor, others: Mapping[str, Any] | None = None
    ) -> Any:
        """Returns what `layer` returns; `others` replace or join what it was called with."""
        kwargs = self.kwargs | dict(others or {})
        if isinstance(self.at, int):
            args = (*self.args[: self.at], hidden, *self.args[self.at + 1 :])
            return layer(*args, **kwargs)
        return layer(*self.args, **kwargs, **{self.at: hidden})


@dataclass
class Tape:
    """The state that the stand-ins share: whether they record, hand through, or put in a result.

    - `rest`: what layers return beside the hidden state, of what kind alone is known.
    - `run`: runs a layer by its index after all, with what it was called with.
    """

    hidden: torch.Tensor | None = None
    calls: list[Call] = field(default_factory=list)
    embedded: torch.Tensor | None = None
    stop_at_first: bool = False
    result: torch.Tensor | None = None
    rest: tuple[Any, ...] | None = None
    perturb: bool = False
    version: int = 0
    run: RunLayer | None = None

    def rewind(
        self,
        *,
        stop_at_first: bool = False,
        result: torch.Tensor | None = None,
        perturb: bool = False,
    ) -> None:
        """Begins anew: stops at the first layer, gives `result` for the last one's output, or has all
        but the last seem to return something else."""
        self.hidden, self.embedded, self.calls = None, None, []
        self.stop_at_first, self.result, self.perturb = stop_at_first, result, perturb

    def let_go(self) -> None:
        """Holds no states any more: those of a long window are gigabytes."""
        self.hidden = self.embedded = self.result = None


class _Unknown:
    """A stand-in for what a layer that runs later would return. No model gets far with it."""


class Unread(torch.Tensor):
    """A stand-in for a tensor that a layer that runs later would return: to hand on, not to look at.

    GLM-5's layers are all given the indices that the layer before chose. Those that choose their own
    never look at them; what does look, by any function or attribute of a tensor, is told.
    """

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotSeparable(_SHARED)


def unknown(value: Any) -> Any:
    """A stand-in for `value`: None for None."""
    if isinstance(value, torch.Tensor):
        return torch.empty(0, device="meta").as_subclass(Unread)
    return None if value is None else _Unknown()


class Placeholder(nn.Module):
    """A module in the place of `module`: has its attributes, and none of its parameters."""

    def __init__(self, module: nn.Module):
        super().__init__()
        # Not registered as a submodule: its parameters are not the model's any more.
        object.__setattr__(self, "_module", module)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._module, name)


class StandIn(Placeholder):
    """A stand-in for a layer: notes the call, returns the hidden state as it came."""

    def __init__(self, layer: nn.Module, tape: Tape, index: int, *, last: bool):
        super().__init__(layer)
        self._tape, self._index, self._last = tape, index, last

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tape = self._tape
        if tape.run is not None:
            return tape.run(self._index, args, kwargs)
        at, hidden = _find_hidden(args, kwargs)
        if tape.hidden is not None and (
            hidden is not tape.hidden or hidden._version != tape.version
        ):
            raise NotSeparable("the model changes the hidden state between layers")
        if tape.embedded is None:
            tape.embedded = hidden
        if any(isinstance(value, _Unknown) for value in (*args, *kwargs.values())):
            raise NotSeparable(_SHARED)
        kept = tuple(None if i == at else _read_only(a) for i, a in enumerate(args))
        rest = {k: _read_only(v) for k, v in kwargs.items() if k != at}
        tape.calls.append(Call(kept, rest, at))
        if tape.stop_at_first:
            raise Reached
        out = tape.result if self._last and tape.result is not None else hidden
        if tape.perturb and not self._last:
            out = _perturbed(out, len(tape.calls))
        tape.hidden, tape.version = out, out._version
        return out if tape.rest is None else (out, *tape.rest)


def _perturbed(hidden: torch.Tensor, seed: int) -> torch.Tensor:
    """`hidden` with other values everywhere, and other features by other amounts: a norm removes what
    all of them have in common."""
    ramp = torch.arange(hidden.numel(), device=hidden.device).view(hidden.shape)
    change = (ramp + seed).float().sin() * (1 + hidden.float().abs())
    return hidden + change.to(hidden.dtype)


def _find_hidden(
    args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[int | str, torch.Tensor]:
    if isinstance(kwargs.get("hidden_states"), torch.Tensor):
        return "hidden_states", kwargs["hidden_states"]
    if args and isinstance(args[0], torch.Tensor):
        return 0, args[0]
    raise NotSeparable("a decoder layer is called without a hidden state in a known place")


def _read_only(value: Any) -> Any:
    """`value`, or a copy that can't be written to of a dict or a list that holds something.

    One that is empty before the layers is there for them to write to.
    """
    if isinstance(value, (dict, list, set)):
        if type(value) is dict and value:
            return _ReadOnlyDict((k, _read_only(v)) for k, v in value.items())
        if type(value) is list and value:
            return _ReadOnlyList(_read_only(v) for v in value)
        if not isinstance(value, (_ReadOnlyDict, _ReadOnlyList)):
            raise NotSeparable(f"its layers share state through a {type(value).__name__}")
    return value


def _refuse_writing(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    kind = "dict" if isinstance(self, dict) else "list"
    raise NotSeparable(f"its layers share state through a {kind}")


def _closed(kind: type, writers: str) -> type:
    methods = dict.fromkeys(writers.split(), _refuse_writing)
    return type(f"_ReadOnly{kind.__name__.title()}", (kind,), methods)


_ReadOnlyDict = _closed(dict, "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update")
_ReadOnlyList = _closed(
    list,
    "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort",
)

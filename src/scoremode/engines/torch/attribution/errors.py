"""Local errors: how far a module's output is from the base's, before anything follows from it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["Error", "LayerErrors"]

# Elements of an output that are taken at a time.
_PIECE = 1 << 24


@dataclass
class Error:
    """Sums over all elements of an output: of the base's squares, and of the differences' squares.
    They stay on the outputs' device, where nothing waits for them, until they are asked for."""

    signal: float | torch.Tensor = 0.0
    noise: float | torch.Tensor = 0.0

    def add(self, base: torch.Tensor, other: torch.Tensor) -> None:
        """Adds outputs of the same shape: differences, squares and their sums over the last dimension
        in float32, the sums of these in float64."""
        # A piece at a time: what is computed on the way is wider than the outputs.
        for mine, theirs in zip(_pieces(base), _pieces(other), strict=True):
            wide = mine.float()
            self.signal = self.signal + wide.square().sum(-1).sum(dtype=torch.float64)
            apart = theirs.float() - wide
            self.noise = self.noise + apart.square_().sum(-1).sum(dtype=torch.float64)

    def to_json(self) -> dict[str, float | None]:
        """`relative_error` √(Σ(y' - y)² / Σy²), and `sqnr_db` 10 log₁₀ (Σy² / Σ(y' - y)²), None
        where there is no error at all or no signal."""
        signal, noise = float(self.signal), float(self.noise)
        if not signal:
            return {"relative_error": None, "sqnr_db": None}
        ratio = noise / signal
        decibels = -10 * math.log10(ratio) if ratio else None
        return {"relative_error": math.sqrt(ratio), "sqnr_db": decibels}

    def __add__(self, other: "Error") -> "Error":
        return Error(self.signal + other.signal, self.noise + other.noise)


class LayerErrors:
    """The errors of some modules of one decoder layer, by path.

    - `local`: of the model's module on what the base's is given.
    - `accumulated`: of the model's module on what it is given behind the model's own layers; of none
      where these do not run.
    """

    def __init__(self, paths: Sequence[str], *, accumulate: bool = True):
        self.local = {path: Error() for path in paths}
        self.accumulated = {path: Error() for path in paths if accumulate}
        # The base's outputs in one micro-batch, of which what follows may overwrite the tensors.
        self._outputs: dict[str, torch.Tensor] = {}

    @contextmanager
    def beside_base(
        self, base: nn.Module, model: nn.Module, known: Mapping[str, torch.Tensor]
    ) -> Iterator[None]:
        """While the base's layer runs: has each module's twin of the model given the same inputs, but
        for those by path whose output is `known`."""
        with ExitStack() as hooks:
            for path, error in self.local.items():
                twin = model.get_submodule(path)

                def compare(
                    _: nn.Module, args: Any, kwargs: Any, out: Any,
                    path: str = path, error: Error = error, twin: nn.Module = twin,
                ) -> None:  # fmt: skip
                    if path in self.accumulated:
                        self._outputs[path] = _tensor(out).clone()
                    other = known.get(path)
                    error.add(
                        _tensor(out), _tensor(twin(*args, **kwargs)) if other is None else other
                    )

                module = base.get_submodule(path)
                hooks.callback(module.register_forward_hook(compare, with_kwargs=True).remove)
            yield

    @contextmanager
    def behind_model(self, model: nn.Module) -> Iterator[None]:
        """While the model's layer runs on the same micro-batch, after the base's has."""
        with ExitStack() as hooks:
            for path, error in self.accumulated.items():

                def compare(
                    _: nn.Module, args: Any, out: Any, path: str = path, error: Error = error
                ) -> None:
                    error.add(self._outputs.pop(path), _tensor(out))

                module = model.get_submodule(path)
                hooks.callback(module.register_forward_hook(compare).remove)
            yield


def _pieces(out: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = out.flatten(0, -2)
    return rows.split(max(1, _PIECE // max(1, rows.shape[1])))


def _tensor(out: Any) -> torch.Tensor:
    return out[0] if isinstance(out, tuple) else out

"""A transformers model with stand-ins for its decoder layers and no weights of its own.

The library's own forward computes embeddings, masks and position tables, and applies the final norm,
so no architecture is written here. Each decoder layer is replaced by a stand-in that records what the
layer would have been called with; the layers run apart from the model, one after the other
(`passes/execution.py`), where `layer_recorder` and `prove_separable` find nothing against it. Where
they do, the stand-ins run their layers.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from scoremode.engines.torch.model.layer_recorder import (
    Call,
    NotSeparable,
    Reached,
    RunLayer,
    StandIn,
    Tape,
    unknown,
)
from scoremode.engines.torch.model.prefix_tree import Ids, forward_of
from scoremode.errors import UnsupportedModel, words_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_CPU = torch.device("cpu")

# What the library's code raises where a stand-in is not what it expects.
FORWARD_ERRORS = (
    ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """The forward's work before the layers, for one batch of ids [B, T].

    - `embedded`: the first layer's input, [B, T, D] for most models; `calls`: every layer's.
    """

    embedded: torch.Tensor
    calls: list[Call]


class Skeleton:
    """The model without its layers, and the layers without their weights.

    - `layers`: the library's decoder layers in order; `layer_names`: their full names.
    - `embedding`: the input embedding; its weight is set for every batch to the rows it needs.
      `embedding_name`: that weight's full name.
    - `device`: where it computes; a model without buffers can't be asked.
    - `text_alone`: the whole that the model is the language model of, None where it is all there is.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        layers_name: str,
        attention: str,
        device: torch.device = _CPU,
        text_alone: str | None = None,
    ):
        self.model, self.device = model, device
        self.text_alone = text_alone
        self.config = model.config.get_text_config()
        self.attention = attention
        container = model.get_submodule(layers_name)
        assert isinstance(container, nn.ModuleList)
        self.layers: list[nn.Module] = list(container)
        self.layer_names = [f"{layers_name}.{i}" for i in range(len(container))]
        self._tape = Tape()
        for i, layer in enumerate(self.layers):
            container[i] = StandIn(layer, self._tape, i, last=i == len(self.layers) - 1)
        self.embedding: nn.Module = model.get_input_embeddings()
        self.embedding_name = next(
            (f"{name}.weight" for name, m in model.named_modules() if m is self.embedding), ""
        )
        head = model.get_output_embeddings()
        if self.embedding is None or head is None:
            raise UnsupportedModel(f"{type(model).__name__}: has no input or no output embedding")
        self.head: nn.Module = head
        self._positions = _PositionTables(model)
        # Whether what comes after the layers may do without the embedding's output: to be proven.
        self.embeds_at_end = True

    def tensor_names(self) -> Iterator[str]:
        """Full names of all parameters and buffers, those of the layers included."""
        roots = [("", self.model)]
        roots += [(f"{n}.", m) for n, m in zip(self.layer_names, self.layers, strict=True)]
        for prefix, root in roots:
            for name, _ in root.named_parameters(remove_duplicate=False):
                yield prefix + name
            for name, _ in root.named_buffers():
                yield prefix + name

    def layer_of(self, name: str) -> int | None:
        """The index in `name` if it lies in the list of decoder layers, whether it is there or not."""
        prefix = self.layer_names[0].removesuffix("0")
        index = name.removeprefix(prefix).partition(".")[0]
        return int(index) if name.startswith(prefix) and index.isdigit() else None

    def learn_layer_output(self, run_first_layer: Callable[[Call, torch.Tensor], Any]) -> None:
        """Finds out whether layers return a tensor or a tuple, by running the first one on 2 ids.

        Raises NotSeparable for a forward that can't be taken apart.
        """
        ids = torch.zeros(1, 2, dtype=torch.int64, device=self.device)
        try:
            self._rewind(stop_at_first=True)
            with suppress(Reached):
                self._forward(ids)
            if not self._tape.calls:
                raise NotSeparable("its forward calls no decoder layer")
            (call,), embedded = self._tape.calls, self._tape.embedded
            assert embedded is not None
            out = run_first_layer(call, embedded)
            is_tuple = isinstance(out, tuple)
            self._tape.rest = tuple(unknown(v) for v in out[1:]) if is_tuple else None
            self.record(ids)
            self.finish(ids, embedded)
        except FORWARD_ERRORS as e:
            raise NotSeparable(f"its forward can't be taken apart ({words_of(e, 160)})") from e

    def check_returned(self, out: Any) -> None:
        """Raises NotSeparable for a layer whose `out` has other things beside the hidden state than the
        first layer's: what others were given in their place was made of that."""
        rest = self._tape.rest
        given = None if rest is None else [value is None for value in rest]
        if given != ([value is None for value in out[1:]] if isinstance(out, tuple) else None):
            raise NotSeparable("its layers return other things than the first does")

    def record(self, ids: Ids, *, perturb: bool = False) -> Recorded:
        """The first layer's input and every layer's call for ids [B, T], by the model's own forward.

        With `perturb` the layers seem to return something else, which must not matter to the calls of
        others.
        """
        self._rewind(perturb=perturb)
        self._head_input(ids)
        calls, embedded = self._tape.calls, self._tape.embedded
        if len(calls) != len(self.layers):
            raise NotSeparable(
                f"it has {len(self.layers)} layers, and its forward calls {len(calls)}"
            )
        assert embedded is not None
        self._tape.let_go()
        return Recorded(embedded, calls)

    def finish(self, ids: Ids, hidden: torch.Tensor, *, perturb: bool = False) -> torch.Tensor:
        """The head's input [B, T, D] for the last layer's output `hidden` [B, T, D], by the model's own
        forward.

        With `perturb` the other layers seem to return something else, which must not matter.
        """
        self._rewind(result=hidden, perturb=perturb)
        with self._embedding_of(ids, hidden):
            try:
                return self._head_input(ids)
            finally:
                self._tape.let_go()

    def own_logits(self, ids: Ids, hidden: torch.Tensor) -> torch.Tensor:
        """The model's own logits [B, T, V'] for the last layer's output, by its whole forward.

        The head's weight must have been set; V' is its number of rows.
        """
        self._rewind(result=hidden)
        return self._forward(ids).logits

    def run_whole(self, ids: Ids, run: RunLayer) -> torch.Tensor:
        """The head's input [B, T, D] for ids [B, T], by the model's own forward with its layers.

        `run` is called wherever the forward calls a layer.
        """
        with self._running(run):
            return self._head_input(ids)

    def logits_whole(self, ids: Ids, run: RunLayer) -> torch.Tensor:
        """`own_logits` with its layers, as `run_whole` runs them."""
        with self._running(run):
            return self._forward(ids).logits

    @contextmanager
    def _running(self, run: RunLayer) -> Iterator[None]:
        self._rewind()
        self._tape.run = run
        try:
            yield
        finally:
            self._tape.run = None

    @contextmanager
    def _embedding_of(self, ids: Ids, hidden: torch.Tensor) -> Iterator[None]:
        """A context in which the embedding gives zeros, where nothing after the layers looks at
        them."""
        if self.embeds_at_end:
            yield
            return
        width = self.embedding.get_parameter("weight").shape[-1]
        zeros = hidden.new_zeros((*ids.shape, width), dtype=self.model.dtype)
        self.embedding.forward = lambda *_: zeros
        # Its hook would fetch rows for nothing.
        hooks, self.embedding._forward_pre_hooks = self.embedding._forward_pre_hooks, OrderedDict()
        try:
            yield
        finally:
            self.embedding._forward_pre_hooks = hooks
            del self.embedding.forward

    def _forward(self, ids: Ids) -> Any:
        out = forward_of(self.model, ids)
        self._tape.hidden = None
        return out

    def _rewind(self, **given: Any) -> None:
        self._tape.rewind(**given)
        self._positions.restore()

    def _head_input(self, ids: Ids) -> torch.Tensor:
        """The head's input in the forward of ids [B, T], which ends there."""
        taken: list[torch.Tensor] = []

        def take(module: nn.Module, args: tuple[Any, ...]) -> None:
            taken.append(args[0])
            raise Reached

        handle = self.head.register_forward_pre_hook(take)
        try:
            with suppress(Reached):
                self._forward(ids)
        finally:
            handle.remove()
        if not taken:
            raise UnsupportedModel(
                f"{type(self.model).__name__}: its forward does not call its output embedding"
            )
        return taken[0]


class _PositionTables:
    """Position tables as they were built.

    Some grow with the longest window seen (dynamic NTK) and would make a window's scores depend on
    the ones before it; every window starts from the same tables instead.
    """

    def __init__(self, model: nn.Module):
        self._modules = [m for m in model.modules() if hasattr(m, "max_seq_len_cached")]
        self._before = [(dict(m._buffers), self._numbers(m)) for m in self._modules]

    @staticmethod
    def _numbers(module: nn.Module) -> dict[str, Any]:
        return {k: v for k, v in vars(module).items() if type(v) in (int, float)}

    def restore(self) -> None:
        for module, (buffers, numbers) in zip(self._modules, self._before, strict=True):
            module._buffers.update(buffers)
            vars(module).update(numbers)


def kept_dtype(model: nn.Module, name: str) -> torch.dtype | None:
    """The dtype that the library keeps a parameter or buffer in, whatever the model's: None or float32.

    A routing bias in bfloat16 would send tokens to other experts.
    """
    # By its loader's rules: one list holds for both short dtypes, the other for float16 only.
    patterns: set[str] = set()
    if model.dtype in (torch.float16, torch.bfloat16):
        patterns |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if model.dtype == torch.float16:
        patterns |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    kept = any(re.search(pattern.replace("*", ".*"), name) for pattern in patterns)
    return torch.float32 if kept else None

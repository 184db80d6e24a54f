"""What of a forward depends on the values of a tensor, found by watching its operations.

What layers are called with usually follows from the shape of the ids alone: positions, masks, rotary
tables. Comparing it for every batch would have the host wait for a GPU, and the GPU for the host.
"""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Dependence", "is_plain"]

# What is all there is to see of it. Other objects may hold tensors, make them, or change between calls.
_PLAIN = (
    torch.Tensor, torch.nn.Parameter, torch.Size, torch.device, torch.dtype,
    bool, float, int, str, type(None),
)  # fmt: skip

# Whose result has a shape, or is a number, that depends on values.
_TELLING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def is_plain(value: Any) -> bool:
    """Whether `value` is made of tensors and constants alone: no cache, mask object or function."""
    return all(type(leaf) in _PLAIN for leaf in tree_leaves(value))


class Dependence(TorchDispatchMode):
    """Within it, every operation on what was computed from `source` is noted.

    - `leaked`: whether values of it went where they can't be followed: into a number, a truth value or
      a shape, to the host, or into memory that was there before.
    - `is_paused`: while set, values may go where they will; what is computed from them is noted still.

    On the side of caution: an operation's results depend on all of its inputs, and memory depends
    wherever a tensor in it does. What holds its tensors elsewhere (subclasses, functorch's) can't be
    followed, nor can operators of operators. Only meant for a GPU, whose tensors Python can't read in
    other ways.
    """

    # Without it torch refuses them within a mode.
    supports_higher_order_operators = True

    def __init__(self, source: torch.Tensor):
        super().__init__()
        self.leaked = self.is_paused = False
        self._device = source.device
        # By address. What is noted is held, so that no other tensor can come to lie there.
        self._noted: dict[int, torch.Tensor] = {}
        self.note(source)

    def note(self, tensor: torch.Tensor) -> None:
        """Says that `tensor` depends on the source, by ways that are not seen here."""
        if tensor.device != self._device:
            self._leak()
        elif tensor.numel():
            address = self._address(tensor)
            if address is not None:
                self._noted[address] = tensor

    def depends(self, value: Any) -> bool:
        """Whether `value`, or a tensor in it, does."""
        return any(
            isinstance(leaf, torch.Tensor)
            and leaf.device == self._device
            and leaf.numel() > 0
            and self._address(leaf) in self._noted
            for leaf in tree_leaves(value)
        )

    def _address(self, tensor: torch.Tensor) -> int | None:
        """Of its memory; where it has none of its own, that can't be followed."""
        try:
            if type(tensor) in _PLAIN:
                return tensor.untyped_storage().data_ptr()
        except RuntimeError:
            pass
        self._leak()
        return None

    def _leak(self) -> None:
        self.leaked = self.leaked or not self.is_paused

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self._leak()
            return func(*args, **kwargs)
        depends = self.depends((args, kwargs))
        out = func(*args, **kwargs)
        if depends:
            if func._schema.is_mutable or _TELLING & set(func.tags):
                self._leak()
            for result in tree_leaves(out):
                if isinstance(result, torch.Tensor):
                    self.note(result)
                elif result is not None:
                    self._leak()
        return out

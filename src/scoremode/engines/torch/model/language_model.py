"""The language model of a model of text and images or sound.

Given ids alone, such a model's forward goes through its language model and its head, and whatever
else it has is never called: those parts need no weights. That they are not called is not believed:
something lies in their place that ends the run if they are.
"""

from typing import Any

from torch import nn

from scoremode.engines.torch.model.stand_ins import Placeholder
from scoremode.errors import UnsupportedModel

__all__ = ["leave_out_encoders"]


class _LeftOut(Placeholder):
    """A stand-in for an encoder, which can't be run."""

    def __init__(self, model: str, name: str, module: nn.Module):
        super().__init__(module)
        self._words = f"{model}: its forward runs {name} for text alone, too"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedModel(self._words)


def leave_out_encoders(model: Any, layers_name: str) -> None:
    """Takes everything out of a model that is not on the way from ids to logits.

    What stays is the module that has the decoder layers and the input embedding, and the head.
    """
    language = _language_model(model, layers_name)
    kept = {id(model.get_output_embeddings()), id(model.get_input_embeddings())}
    path = language.split(".") if language else []
    for depth in range(len(path)):
        parent = model.get_submodule(".".join(path[:depth]))
        for name, child in list(parent.named_children()):
            on_the_way = name == path[depth] or any(id(m) in kept for m in child.modules())
            if not on_the_way and next(child.parameters(), None) is not None:
                full_name = ".".join([*path[:depth], name])
                setattr(parent, name, _LeftOut(type(model).__name__, full_name, child))


def _language_model(model: Any, layers_name: str) -> str:
    """The name of the smallest module that has both the decoder layers and the input embedding."""
    embedding = model.get_input_embeddings()
    name = layers_name
    while name:
        name = name.rpartition(".")[0]
        if any(module is embedding for module in model.get_submodule(name).modules()):
            break
    return name

"""A module in memory, run as it is and left as it was: states in front of its head, and the head."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from scoremode.engines.torch.model.attention import attention_backends
from scoremode.engines.torch.model.head_probe import probe_head
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS
from scoremode.engines.torch.model.stand_ins import Reached
from scoremode.errors import UnsupportedModel, words_of
from scoremode.head.project import Head

__all__ = ["LiveModule"]


class LiveModule:
    """A causal language model of transformers' in memory.

    Raises UnsupportedModel for one whose head is no plain linear, or that doesn't run.
    """

    def __init__(self, module: Any):
        self.module, self.name = module, type(module).__name__
        head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
        if head is None:
            raise UnsupportedModel(f"{self.name}: has no output embedding")
        # What else it may be, quantized say, is told by what it computes (`proofs.prove_head`).
        if not isinstance(head, nn.Linear) or head.weight.is_meta:
            raise UnsupportedModel(
                f"{self.name}: its output embedding is a {type(head).__name__} whose weight is "
                f"{'not here' if isinstance(head, nn.Linear) else 'unknown'}: save the model, and give "
                "its folder"
            )
        self.output: nn.Linear = head

    @property
    def device(self) -> torch.device:
        """Where its head is."""
        return self.output.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its head's weight, and so of the states in front of it."""
        return self.output.weight.dtype

    @contextmanager
    def still(self) -> Iterator[None]:
        """A context in which nothing is trained, and attention is computed by the kernels that an
        engine asks for; behind it every part is as it was before."""
        training = [(part, part.training) for part in self.module.modules()]
        self.module.eval()
        try:
            with torch.no_grad(), attention_backends(self.device):
                yield
        finally:
            for part, was in training:
                part.training = was

    def states(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, T, D]: what its head is given for ids [B, T], which its forward computes up to there."""
        found: list[torch.Tensor] = []

        def stop(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            found.append(args[0])
            raise Reached

        handle = self.output.register_forward_pre_hook(stop)
        try:
            self._run(ids)
        except Reached:
            pass
        finally:
            handle.remove()
        if len(found) != 1 or found[0].shape[:-1] != ids.shape:
            raise UnsupportedModel(f"{self.name}: what its head gets is not one row a token")
        return found[0]

    def logits(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, T, V']: its own."""
        return self._run(ids).logits

    def head(self, vocabulary: int | None) -> Head:
        """Its head over its first `vocabulary` entries, or all it has. Raises UnsupportedModel."""
        weight = self.output.weight.detach()
        config = self.module.config
        shape = probe_head(self.name, self.output, len(weight), self.logits, config, self.device)
        entries = min(vocabulary or shape.width, shape.width)
        bias = None if self.output.bias is None else self.output.bias.detach()
        return Head(weight, bias, shape.scale, shape.softcap, entries)

    def _run(self, ids: torch.Tensor) -> Any:
        place = self.module.get_input_embeddings().weight.device
        try:
            return self.module(input_ids=ids.to(place), use_cache=False)
        except torch.cuda.OutOfMemoryError:
            raise
        except FORWARD_ERRORS as error:
            raise UnsupportedModel(
                f"{self.name}: its forward does not run on token ids alone ({words_of(error, 160)})"
            ) from error

"""What must hold for a score to count, shown on a few states before the first one does.

A model taken apart by general rules can be taken apart wrongly, and the result would look like any
other number. So before the first pass's scores are used, a short probe that went through all layers
beside it has to show three things: that no state depends on tokens after it, that the model's forward
uses the last layer's output and no other's, and that its head is the function that ours is.
"""

import torch
from torch import nn

from scoremode.engines.torch.skeleton import Skeleton
from scoremode.errors import UnsupportedModel
from scoremode.head.project import Head

__all__ = ["probe_ids", "prove"]

_PROBE_TOKENS = 16
_HEAD_ROWS = 512


def probe_ids(ids: torch.Tensor, entries: int) -> torch.Tensor:
    """int64 [2, n]: the first few of `ids` [T], and the same with another second half."""
    first = ids[:_PROBE_TOKENS]
    second = first.clone()
    half = len(first) // 2
    second[half:] = (second[half:] + 1) % entries
    return torch.stack((first, second))


def prove(skeleton: Skeleton, head: Head, ids: torch.Tensor, hidden: torch.Tensor) -> None:
    """Checks the last layer's output `hidden` [2, n, D] for the probe `ids`, and the head.

    Raises UnsupportedModel, saying what does not hold.
    """
    name = type(skeleton.model).__name__
    _prove_causal(name, hidden)
    _prove_separable(name, skeleton, ids, hidden)
    _prove_head(name, skeleton, head, ids[:1], hidden[:1])


def _prove_causal(name: str, hidden: torch.Tensor) -> None:
    """States before the place where the two rows part must be alike."""
    one, other = hidden[:, : hidden.shape[1] // 2].float()
    if one.numel() == 0:
        return
    # By the median feature: a few features of most models are so large that they would hide any
    # change. Two rows of one batch differ by rounding at most; a token ahead moves everything.
    change = (one - other).norm(dim=0) / one.norm(dim=0).clamp_min(1e-30)
    if change.median() > 0.05:
        raise UnsupportedModel(
            f"{name}: a state changes with tokens after it: the model sees what it should predict"
        )


def _prove_separable(
    name: str, skeleton: Skeleton, ids: torch.Tensor, hidden: torch.Tensor
) -> None:
    final = skeleton.finish_whole(ids, hidden)
    perturbed = skeleton.finish_whole(ids, hidden, perturb=True)
    if not _equal(final, perturbed):
        raise UnsupportedModel(
            f"{name}: its forward uses the output of other layers than the last, "
            "so its layers can't be run apart from it"
        )
    # Embedding a pass again for its final norm costs as much as the norm itself, and more.
    skeleton.embeds_at_end = False
    without = skeleton.finish_whole(ids, hidden)
    skeleton.embeds_at_end = not _equal(final, without)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _prove_head(
    name: str, skeleton: Skeleton, head: Head, ids: torch.Tensor, hidden: torch.Tensor
) -> None:
    """The model's own logits against ours, in float32, with a small part of the weight.

    Twice, once with the weight magnified so that a softcap bends: a factor that was missed shows
    far above rounding.
    """
    module = skeleton.head
    assert isinstance(module, nn.Module)
    rows = min(_HEAD_ROWS, len(head.weight))
    saved = dict(module._parameters)
    states: list[torch.Tensor] = []

    def upcast(_: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states.append(args[0].float())
        return (states[-1],)

    handle = module.register_forward_pre_hook(upcast)
    try:
        for magnify in (1.0, 32.0):
            part = Head(
                head.weight[:rows].float() * magnify,
                None if head.bias is None else head.bias[:rows].float(),
                head.scale,
                head.softcap,
                rows,
            )
            module._parameters["weight"] = nn.Parameter(part.weight, requires_grad=False)
            if part.bias is not None:
                module._parameters["bias"] = nn.Parameter(part.bias, requires_grad=False)
            own = skeleton.own_logits(ids, hidden)
            if own is None or own.shape[-1] != rows:
                width = "no" if own is None else own.shape[-1]
                raise UnsupportedModel(
                    f"{name}: its head gives {width} logits where its weight has {rows} rows"
                )
            own = own.float().flatten(0, -2)
            ours = part.logits(states[-1].flatten(0, -2) @ part.weight.T, 0)
            limit = 1e-4 * float(own.abs().max()) + 1e-6
            difference = float((own - ours).abs().max())
            if difference > limit:
                raise UnsupportedModel(
                    f"{name}: its own logits differ from ours by {difference:.3g} (allowed "
                    f"{limit:.1g}): its head is more than a matrix, a scale and a softcap"
                )
    finally:
        handle.remove()
        module._parameters.update(saved)

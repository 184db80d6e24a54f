"""Proofs that windows which begin alike may share what they have in common.

A layer that sees more than its mask shows (a convolution, a recurrent state), or counts places in a row
for positions, gives other states in a row of trees than in a window alone. So a model is tried first:
each kind of its layers, with its weights, on a few tokens laid out as trees, where what is beside a
window is changed, and where the window stands alone. What moves is told, and the model's windows go
apart then. The first pass shows the same of real windows, through all layers.

What a rounded state shows is too little: by ALiBi's biases, which count places, a layer in bf16 moves
less than rounding may move it. So what layers are given beside the states is looked at by itself, and a
layer that keeps a mask of places takes no rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from scoremode.engines.torch.model.layer_recorder import Call, NotSeparable
from scoremode.engines.torch.model.prefix_tree import ATTENTIONS, ForestIds, Ids
from scoremode.engines.torch.model.skeleton import FORWARD_ERRORS, Recorded, Skeleton
from scoremode.engines.torch.passes.execution import Layers, tensors_in
from scoremode.engines.torch.passes.microbatch import Inputs, median_change
from scoremode.errors import UnsupportedModel, words_of
from scoremode.text.batching import lay

# Kinds of layers whose masks say all that a token sees.
_KINDS = {"full_attention", "sliding_attention"}
# By whether it is float32 that nothing rounds: how far a state may move, as a part of its length, and
# of what the layer adds to it where only other windows' tokens changed, in a row of the same shape.
_ROUNDING = {True: 1e-3, False: 0.1}
_LEAK = {True: 1e-4, False: 0.02}
# The same of an embedding, to which nothing but a projection adds up.
_EMBEDDING = {True: 1e-3, False: 0.02}
# The share of a window's tokens that may move more: a router may send some to other experts.
_OTHERWISE = 4
# The trees that are tried: windows by their tokens, a few at a time alike; the one that is looked at
# has trees before it in its row, and shares its beginning with branches there.
_BESIDE = ([10, 11, 12, 13, 14], [1, 2, 3, 20, 21, 22, 23], [1, 2, 3, 20, 24])
_WINDOW = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17]
_OTHERS = ([1, 2, 3, 25], [27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38])
# No multiple of the window's tokens: by their lengths axes of tensors are told apart.
_ROW = 23


def sharing_obstacle(skeleton: Skeleton, layers: Layers, *, exact: bool) -> str | None:
    """Returns why windows that begin alike can't share it in a model whose layers run one by one; None
    where they can.

    `exact`: computed in float32, with no inputs or caches that are quantized.
    """
    config = skeleton.config
    if skeleton.attention not in ATTENTIONS:
        return f"{skeleton.attention} attention takes no mask"
    if others := set(getattr(config, "layer_types", None) or ()) - _KINDS:
        return f"its layers of {', '.join(sorted(others))} may see more than their masks show"
    for name in ("attention_chunk_size", "index_topk", "attn_temperature_tuning"):
        if getattr(config, name, None):
            return f"its attention is by {name}"
    if getattr(config, "alibi", None) or hasattr(getattr(config, "attn_config", None), "alibi"):
        # MPT's layers cut what they are given by places; the library gives it whatever is set.
        return "its attention is by alibi"
    for index, layer in enumerate(skeleton.layers):
        # A mask of places [1, 1, n, n] (GPT-Neo's window, OpenAI GPT's) sees no branches, and ends.
        masks = (b for b in layer.buffers() if b.dim() == 4 and b.shape[:2] == (1, 1))
        if any(mask.shape[2] == mask.shape[3] > 1 for mask in masks):
            return f"its layer {index} has a mask of places of its own"
    try:
        return _tried(skeleton, layers, exact=exact)
    except torch.OutOfMemoryError:
        raise
    except NotSeparable as reason:
        return str(reason)
    except FORWARD_ERRORS as error:
        return f"its forward takes no rows of trees ({words_of(error, 120)})"


def _tried(skeleton: Skeleton, layers: Layers, *, exact: bool) -> str | None:
    """The reason why not, as a few tokens show it."""
    entries = min(40, getattr(skeleton.config, "vocab_size", None) or 40)
    device = skeleton.device
    windows = [np.array(w, np.int32) % entries for w in (*_BESIDE, _WINDOW, *_OTHERS)]
    at = len(_BESIDE)
    forest = lay(windows, _ROW)
    places = torch.from_numpy(forest.places(at)).to(device)
    row = int(forest.row[at])
    columns = (forest.ids, forest.depth, forest.end)
    laid = ForestIds(*(torch.from_numpy(c.astype(np.int64)).to(device) for c in columns))
    mine = torch.zeros_like(laid.ids, dtype=torch.bool)
    mine[row, places] = True
    changed = ForestIds(
        torch.where(mine, laid.ids, (laid.ids + entries // 2) % entries), laid.depth, laid.end
    )
    alone = torch.from_numpy(windows[at].astype(np.int64))[None].to(device)
    return leak_of(skeleton, layers, (laid, changed, alone), row, places, exact=exact)


def leak_of(
    skeleton: Skeleton,
    layers: Layers,
    batches: tuple[Ids, Ids, torch.Tensor],
    row: int,
    places: torch.Tensor,
    *,
    exact: bool,
) -> str | None:
    """The difference in a window that lies at the `places` of a `row` of trees, in words: after all
    else in the rows was changed, and alone. Each kind of layer is tried, on what the embedding
    gives."""
    recorded = [skeleton.record(ids) for ids in batches]

    def mine(states: list[torch.Tensor]) -> list[torch.Tensor]:
        laid, changed, alone = (x.float() for x in states)
        return [x.flatten(1) for x in (laid[row, places], changed[row, places], alone[0])]

    first = [r.embedded for r in recorded]
    if why := _differing(mine(first), None, exact, _EMBEDDING):
        return f"its embedding {why}"
    for index, (laid, alone) in enumerate(zip(recorded[0].calls, recorded[2].calls, strict=True)):
        if not _gives_alike(laid, alone, batches[0].shape, row, places):
            return f"its layer {index} is given other things in a row of trees"
    for index in _kinds(skeleton.layers):
        with layers.at_work(index) as layer:
            out = [_run(r, index, layer, layers) for r in recorded]
        if why := _differing(mine(out), mine(first)[0], exact):
            return f"its layer {index} {why}"
    final = [skeleton.finish(ids, x) for ids, x in zip(batches, first, strict=True)]
    if why := _differing(mine(final), None, exact):
        return f"its final norm {why}"
    return None


def _gives_alike(
    laid: Call, alone: Call, shape: torch.Size, row: int, places: torch.Tensor
) -> bool:
    """Tells whether a layer is given the same, beside the states, for a window at the `places` of a
    `row` of trees, ids of this `shape` [B, T], as for it alone.

    What only one of both is given is let be: a window alone may need no mask.
    """
    others = dict(tensors_in((alone.args, alone.kwargs)))
    for at, tensor in tensors_in((laid.args, laid.kwargs)):
        other = others.get(at)
        if other is None:
            continue
        own = _of_window(tensor, other.shape, shape, row, places)
        if own is None or not _alike(own, other):
            return False
    return True


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    # Cosines of the same positions may differ by a rounding; those of others do by far more.
    return torch.allclose(one, other, rtol=1e-2, atol=1e-5)


def _of_window(
    tensor: torch.Tensor, wanted: torch.Size, shape: torch.Size, row: int, places: torch.Tensor
) -> torch.Tensor | None:
    """The part of one window in a `tensor` of rows [B, T], of the shape that it is `wanted` in;
    None where it can't be told."""
    rows, length = shape
    if tensor.dim() != len(wanted):
        return None
    for axis, (have, want) in enumerate(zip(tensor.shape, wanted, strict=True)):
        if have == want:
            continue
        if want == len(places) and have == length:
            tensor = tensor.index_select(axis, places)
        elif want == len(places) and have == rows * length:
            tensor = tensor.index_select(axis, row * length + places)
        elif have == rows * want:
            # As many a row: of heads, say.
            tensor = tensor.narrow(axis, row * want, want)
        else:
            return None
    return tensor


def _run(recorded: Recorded, index: int, layer: nn.Module, layers: Layers) -> torch.Tensor:
    out = recorded.calls[index].run(layer, recorded.embedded, layers.arguments(index))
    return out[0] if isinstance(out, tuple) else out


def _differing(
    states: Sequence[torch.Tensor],
    given: torch.Tensor | None,
    exact: bool,
    rounding: Mapping[bool, float] = _ROUNDING,
) -> str | None:
    """The difference, in words, of states [T, n] of the rows as they are, changed, and of the window
    alone; of a layer by what it adds to what it is `given`. `rounding`: how far one may move."""
    laid, changed, alone = states
    length = laid.norm(dim=-1)
    if given is not None:
        # A part of what it is given, which is rounded as well.
        length = (laid - given).norm(dim=-1) + given.norm(dim=-1) / 8
    length = length.clamp_min(1e-30)
    leak = ((laid - changed).norm(dim=-1) / length).nan_to_num(nan=torch.inf)
    if float(leak.max()) > _LEAK[exact]:
        return "sees tokens of other windows"
    moved = ((laid - alone).norm(dim=-1) / length).nan_to_num(nan=torch.inf).sort().values
    if float(moved[-1 - len(moved) // _OTHERWISE]) > rounding[exact]:
        return "gives other states in a row of trees"
    return None


def _kinds(layers: Sequence[nn.Module]) -> list[int]:
    """The first layer of each kind: of the same modules, with the same settings."""
    first: dict[Any, int] = {}
    for i, layer in enumerate(layers):
        first.setdefault(tuple(map(_said, layer.named_modules())), i)
    return list(first.values())


def _said(named: tuple[str, nn.Module]) -> tuple[Any, ...]:
    """A module's place, class and settings, but for its number among the layers."""
    name, module = named
    plain = (bool, int, float, str, type(None))
    settings = sorted(
        (key, str(value))
        for key, value in vars(module).items()
        if isinstance(value, plain) and key not in ("layer_idx", "layer_id", "layer_number")
    )
    return name, type(module), tuple(settings)


@dataclass(frozen=True)
class SharedWindow:
    """A window of a pass that other windows' tokens lie before: the micro-batch, its place there, and
    its own places in its row, behind those others alone (`behind` int64 [n], `depths` in itself)."""

    batch: int
    window: int
    row: int
    places: np.ndarray
    depths: np.ndarray


def most_shared(inputs: Sequence[Inputs]) -> list[SharedWindow]:
    """The window with most tokens of others before it in its row, and the longest one that has any;
    none where each window has a row of its own."""
    most: tuple[int, int, int] | None = None
    longest: tuple[int, int, int] | None = None
    for b, each in enumerate(inputs):
        if each.forest is None:
            continue
        depths = each.forest.depth[each.forest.row, each.forest.last]
        for w, others in enumerate((each.forest.last - depths).tolist()):
            if others and (most is None or others > most[0]):
                most = others, b, w
            if others and (longest is None or depths[w] > longest[0]):
                longest = int(depths[w]), b, w
    found = []
    for _, b, w in filter(None, dict.fromkeys((most, longest))):
        forest = inputs[b].forest
        assert forest is not None
        places = forest.places(w)
        depths = np.flatnonzero(places != np.arange(len(places)))
        one = SharedWindow(b, w, int(forest.row[w]), places, depths)
        if not any((one.batch, one.window) == (x.batch, x.window) for x in found):
            found.append(one)
    return found


def prove_shared(name: str, alone: torch.Tensor, shared: torch.Tensor, *, exact: bool) -> None:
    """Checks that a window's states alone, [n, D], are those that it has among others, [n, D].

    `exact`: in float32, and without quantized inputs. Raises UnsupportedModel.
    """
    change = median_change(alone.flatten(1), shared.flatten(1))
    if not change <= _ROUNDING[exact]:
        raise UnsupportedModel(
            f"{name}: a window's states change with the windows that it shares its beginning with: "
            "--batch-size 1 scores each by itself"
        )

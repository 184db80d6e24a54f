"""A base beside the model in the workers: its logits of one rank's entries, and a chunk's comparison.

States become logits with vLLM's own kernels: of the model's head in float32, and of another model's
head. The model's logits and the base's are taken in together. The sums are those of the torch engine
(`head/divergence.py`, `head/full.py`), over the rank's entries, and then of all ranks. What `full` adds
is a second pass over the same logits, since it needs both normalizers, and those need every rank.

The states that a reference is made of are written here too (`StateFile`). The process that asks makes
the file and names the row of every prompt; the first tensor-parallel rank of the last pipeline stage,
which has the states, writes each step's into their rows. No state goes through vLLM's own messages.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scoremode.head.divergence import ExtraSums, PairScores, PairSums
from scoremode.head.full import FullSums
from scoremode.head.project import Head, Logits, bf16_matmul, lends_bf16
from scoremode.reference.base import Reference, Span
from scoremode.reference.states import write_states
from scoremode.reference.stored import StoredReference

# Gives a reference's logits of such rows int64 [R], of the share's entries.
Base = Callable[[NDArray[np.int64]], Logits]
# Entries of both models' logits that exist in float32 at a time. A CPU's are the tiles of
# `RowSums.absorb`, so that a model's own scores have the same bits with a base beside it.
_TILE = {"cuda": 1 << 24, "cpu": 1 << 20}
# The same for the second pass, which takes a dozen float64 tiles beside them.
_FULL_TILE = {"cuda": 1 << 22, "cpu": 1 << 18}


class OtherHead:
    """`head`, of one rank's entries, as vLLM would project it for a model of that head.

    Where vLLM captured the states, the kernel and its shapes are those of the capture, so that its
    logits come back to the bit.

    - `columns`: of the model's own projection on this rank, padding included; the head's are filled up
      with zeros, since a kernel may be chosen by their number.
    - `dtype`: of the states, to which the weight is rounded as the model's own would be.
    - `float32`: logits are float32, not rounded to `dtype`.
    """

    def __init__(
        self, head: Head, columns: int, dtype: torch.dtype, device: torch.device, *, float32: bool
    ):
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        # vLLM's own methods add the bias.
        self._head = replace(head, bias=None)
        if float32 and dtype == torch.float32:
            # Widened tile by tile when it is multiplied, which is exact.
            dtype = head.weight.dtype
        self._layer = torch.nn.Module()
        weight = _padded(head.weight, columns, dtype, device)
        self._layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        self._bias = None if head.bias is None else _padded(head.bias, columns, dtype, device)
        self._method: Any = Float32Projection() if float32 else UnquantizedEmbeddingMethod()
        if not float32:
            # On a CPU the weight is repacked.
            self._method.process_weights_after_loading(self._layer)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Float [R, entries] of `states` [R, D]."""
        z = self._method.apply(self._layer, states, bias=self._bias)[:, : self._head.vocabulary]
        return self._head.logits(z, 0)


def _padded(
    tensor: torch.Tensor, rows: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A copy on `device` with zeros behind, or the tensor itself where that is the same."""
    if len(tensor) >= rows:
        return tensor.to(device, dtype)
    out = torch.zeros((rows, *tensor.shape[1:]), dtype=dtype, device=device)
    out[: len(tensor)].copy_(tensor)
    return out


def project_in_float32(lm_head: Any) -> None:
    """Gives an unquantized projection a float32 result, once."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    method = lm_head.quant_method
    if isinstance(method, Float32Projection):
        return
    if not isinstance(method, (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)):
        raise ValueError(
            f"head dtype float32: the head is quantized ({type(method).__name__}): use model"
        )
    lm_head.quant_method = Float32Projection()


class Float32Projection:
    """`x @ weight.T + bias` with a float32 result."""

    # Entries whose weights are widened at a time: 7 MiB at a width of 896, inside a shared cache.
    _TILE = 2048

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = layer.weight
        if x.is_cuda and x.dtype != torch.float32:
            z = torch.mm(x, weight.t(), out_dtype=torch.float32)
        else:
            # A float32 copy of the whole weight would be the largest thing in memory.
            z = x.new_empty((len(x), len(weight)), dtype=torch.float32)
            wide = x.float()
            with bf16_matmul(lends_bf16(x.dtype, x.device)):
                for low in range(0, len(weight), self._TILE):
                    tile = weight[low : low + self._TILE].float()
                    torch.mm(wide, tile.t(), out=z[:, low : low + len(tile)])
        return z if bias is None else z.add_(bias.float())


@dataclass(frozen=True)
class Share:
    """One rank's part of a head, which a base has to have as well.

    - `begin`, `end`: its vocabulary entries. `columns`: of its projection, with padding.
    - `dtype`: of the states it is given. `float32`: its logits are not rounded to that.
    """

    begin: int
    end: int
    columns: int
    dtype: torch.dtype
    device: torch.device
    float32: bool


def open_base(reference: Reference, share: Share) -> Base:
    """Opens `reference` for comparison: what it needs on the device is loaded now, and stays."""
    if isinstance(reference, StoredReference):
        return _projected(reference, share)

    def read(rows: NDArray[np.int64]) -> Logits:
        tile = len(rows), tile_entries(len(rows), share.device)
        return reference.logits(spans_of(rows), share.device, tile)

    return read


def _projected(reference: StoredReference, share: Share) -> Base:
    """Stored states through their own head, with vLLM's kernels."""
    head = None
    if share.begin < share.end:
        stored = reference.head(torch.device("cpu"), share.begin, share.end)
        # Logits are rounded as the model's are only where the base computed in the same dtype.
        float32 = share.float32 or reference.dtype != share.dtype
        head = OtherHead(stored, share.columns, reference.dtype, share.device, float32=float32)

    def project(rows: NDArray[np.int64]) -> Logits:
        assert head is not None, "no entries"
        states = to_device(reference.states(spans_of(rows)), share.device)
        return _Whole(head.logits(states), share.begin)

    return project


class _Whole:
    """`logits` [R, E] of the entries `begin …`, which stay as they are."""

    def __init__(self, logits: torch.Tensor, begin: int):
        self._logits, self._begin = logits, begin
        self._tile = logits

    def load(self, begin: int, end: int) -> None:
        self._tile = self._logits[:, begin - self._begin : end - self._begin]

    def __call__(self, block: slice, out: torch.Tensor | None = None) -> torch.Tensor:
        tile = self._tile[block]
        return tile.to(torch.float32, copy=True) if out is None else out.copy_(tile)


def spans_of(rows: NDArray[np.int64]) -> list[Span]:
    """Runs of successive rows."""
    if not len(rows):
        return []
    runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
    return [(int(run[0]), int(run[-1]) + 1) for run in runs]


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copies `values` without waiting for the device, which has work of later steps to do."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def compare(
    model: torch.Tensor,
    base: Logits | None,
    target: torch.Tensor,
    begin: int,
    over_ranks: Callable[[torch.Tensor], list[torch.Tensor]],
    *,
    entropy: bool,
    extra: type[ExtraSums] | None,
    full: bool,
    draft: float | None,
) -> dict[str, torch.Tensor]:
    """Columns [R] by name, of `target` int64 [R].

    - `model` float [R, E]: the logits of the entries `begin …`, left as they are.
    - `base`: of the same rows and entries, None where E is 0.
    - `over_ranks`: every rank's tensor from this one's, in the order of their entries.
    - `extra`: as `score_pairs` has it. `draft`: a temperature for `tv_draft`, as `draft_variation` has
      it.
    """
    rows = slice(0, len(model))
    sums = PairSums(len(model), model.device, entropy=entropy)
    extra_sums = None if extra is None else extra(len(model), model.device)
    for low, ours, theirs in _tiles(model, base, begin):
        if extra_sums is not None:
            extra_sums.consume(rows, theirs, ours)
        sums.consume(rows, theirs, ours, target, low)
    sums = PairSums.merged(over_ranks(sums.pack()))
    pair = replace(sums.finish(), tv=_variation(sums, 1.0, model, base, begin, over_ranks))
    if extra_sums is not None:
        pair = extra_sums.merged(over_ranks(extra_sums.pack())).finish(pair)
    columns = _columns(pair)
    if draft is not None:
        tempered = PairSums(len(model), model.device)
        for low, ours, theirs in _tiles(model, base, begin):
            tempered.consume(rows, theirs.div_(draft), ours.div_(draft), target, low)
        tempered = PairSums.merged(over_ranks(tempered.pack()))
        columns["tv_draft"] = _variation(tempered, draft, model, base, begin, over_ranks)
    if full:
        second = FullSums(pair)
        for low, ours, theirs in _tiles(model, base, begin, _FULL_TILE):
            second.consume(rows, theirs, ours, low)
        packed = [over_ranks(part) for part in second.pack()]
        second.merge_packed(list(zip(*packed, strict=True)))
        columns |= vars(second.finish())
    return columns


def _variation(
    sums: PairSums,
    temperature: float,
    model: torch.Tensor,
    base: Logits | None,
    begin: int,
    over_ranks: Callable[[torch.Tensor], list[torch.Tensor]],
) -> torch.Tensor:
    """float64 [R]: the total variation at a temperature, whose `sums` are those of all ranks."""
    rows = slice(0, len(model))
    for _, ours, theirs in _tiles(model, base, begin):
        if temperature != 1:
            ours, theirs = ours.div_(temperature), theirs.div_(temperature)
        sums.vary(rows, theirs, ours)
    # A rank without entries has nothing to add.
    own = torch.zeros_like(sums.pivot) if sums.tv is None else sums.tv
    return torch.stack(over_ranks(own)).sum(0)


def tile_entries(rows: int, device: torch.device, tile: Mapping[str, int] | None = None) -> int:
    """Vocabulary entries of a tile of so many rows."""
    return max(1, (tile or _TILE)["cuda" if device.type == "cuda" else "cpu"] // max(1, rows))


def _tiles(
    model: torch.Tensor, base: Logits | None, begin: int, tile: Mapping[str, int] | None = None
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """The first entry of each tile, and both models' float32 logits, to be destroyed."""
    rows, entries = model.shape
    step = tile_entries(rows, model.device, tile)
    for low in range(0, entries, step):
        assert base is not None
        high = min(low + step, entries)
        base.load(begin + low, begin + high)
        yield begin + low, model[:, low:high].to(torch.float32, copy=True), base(slice(0, rows))


def _columns(pair: PairScores) -> dict[str, torch.Tensor]:
    own = {name: value for name, value in vars(pair.model).items() if value is not None}
    base = {f"base_{n}": v for n, v in vars(pair.base).items() if v is not None}
    return (
        own | base | {"kld": pair.kld, "kld_reverse": pair.kld_reverse, "tv": pair.tv, **pair.extra}
    )


class StateFile:
    """A file of states [rows, width] that `create_states` has made, as one worker fills it.

    - `holds`: states wait in memory until `rows` is asked for, and are then written in order: decode
      steps bring a row of every window each.
    """

    def __init__(self, path: Path, rows: int, width: int, dtype: str, *, holds: bool = False):
        self._path, self._form = path, (width, dtype)
        self._written = np.zeros(rows, bool)
        self._held: list[tuple[NDArray[np.int64], torch.Tensor]] | None = [] if holds else None

    def write(self, rows: NDArray[np.int64], states: torch.Tensor) -> None:
        """Puts `states` [N, D] into `rows` [N]; those of a prompt that was preempted come again."""
        if self._held is None:
            self._write(rows, states)
        elif len(rows):
            self._held.append((rows, states.cpu()))

    def _write(self, rows: NDArray[np.int64], states: torch.Tensor) -> None:
        form = states.shape[1], str(states.dtype).removeprefix("torch.")
        if len(states) != len(rows) or form != self._form:
            raise ValueError(
                f"{len(states)} states of {form} for {len(rows)} rows of {self._form} in {self._path}"
            )
        here, at = states.cpu(), 0
        for begin, end in spans_of(rows):
            write_states(self._path, begin, here[at : at + end - begin])
            self._written[begin:end] = True
            at += end - begin

    @property
    def rows(self) -> int:
        """The number of the file's rows that have been written."""
        if self._held:
            rows, states = (list(part) for part in zip(*self._held, strict=True))
            order = np.argsort(np.concatenate(rows), kind="stable")
            self._write(np.concatenate(rows)[order], torch.cat(states)[torch.from_numpy(order)])
            self._held.clear()
        return int(self._written.sum())

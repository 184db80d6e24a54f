"""Packed weights on their way to the device, a layer ahead of the one that computes.

The tensors of a layer make one block, so that a layer is one transfer. Blocks are read from their files
by several threads into pinned memory and go from there to the device by a stream of its own. Where they
lie between passes is the placement:

- `device`: every block has memory of its own there and is sent once.
- `host`: every block stays in pinned memory when it was read once; two blocks' worth of the device's
  memory take turns.
- `disk`: as `host`, and pinned memory has room for a few pieces of a block only: every pass reads the
  files again.

Sending a layer takes a small part of the time in which a pass of many windows goes through it, so all
three run at nearly the same speed while a pass is long enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import torch

from scoremode.checkpoint.bulk_io import FileReader, Part
from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError
from scoremode.lib.prefetch import Fetch, Lane, Prefetcher, Staging

# Of a tensor's place in its block: what any kernel's widest loads need.
_ALIGNMENT = 256
_THREADS = 8
Place = Literal["device", "host", "disk"]
# Pinned memory between files and device: a piece is read while others are sent.
_PIECE = 1 << 26
_PIECES = 3
# Pinned memory that stays is taken in slabs of at least so much: CUDA's allocator rounds each up to a
# power of two.
_SLAB = 1 << 30
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """Tensors side by side: `tensors` name → its first byte's place, and its header; `bytes` in all."""

    tensors: dict[str, tuple[int, TensorInfo]]
    bytes: int

    @classmethod
    def of(cls, infos: Sequence[TensorInfo]) -> "Block":
        at, tensors = 0, {}
        # In the order of the files, so that they are read from front to back.
        for info in sorted(infos, key=lambda i: (str(i.file), i.begin)):
            tensors[info.name] = (at, info)
            at += -(-info.bytes // _ALIGNMENT) * _ALIGNMENT
        return cls(tensors, at)


class Reader(FileReader):
    """Threads that read blocks of tensors."""

    def __init__(self) -> None:
        super().__init__(_THREADS, "scoremode-read", CheckpointError)

    def fill(self, memory: torch.Tensor, block: Block, begin: int) -> None:
        """Fills `memory` uint8 [n] with the block's bytes from `begin` on.

        Raises CheckpointError.
        """
        view, end = memory.numpy().data, begin + len(memory)
        parts = []
        for at, info in block.tensors.values():
            low, high = max(at, begin), min(at + info.bytes, end)
            if low < high:
                name = f"{info.file}: tensor {info.name}: the file"
                part = view[low - begin : high - begin]
                parts.append(Part(info.file, info.begin + low - at, part, name))
        self.read(parts)


class Feeds(Protocol):
    """Tensors of a checkpoint for an engine, layer after layer.

    `placement`: where the packed layers lie, for the record.
    """

    @property
    def placement(self) -> str: ...

    def begin(self, layer: int) -> None:
        """Makes the layer's tensors ready, and starts to fetch those of the next one."""
        ...

    def end(self, layer: int) -> None:
        """Says that all work on the layer's tensors is queued."""
        ...

    def get(self, name: str, index: int | None) -> torch.Tensor:
        """A tensor on the device; with an `index` only that entry of its first axis.

        One of a layer is to be had, and valid, from the layer's `begin` to its `end`.
        """
        ...

    def close(self) -> None: ...


class Mapped:
    """Views of the memory-mapped files, for a CPU."""

    placement = "memory-mapped files"

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def begin(self, layer: int) -> None:
        pass

    def end(self, layer: int) -> None:
        pass

    def get(self, name: str, index: int | None) -> torch.Tensor:
        tensor = self._checkpoint.read(name)
        return tensor if index is None else tensor[index]

    def close(self) -> None:
        pass


class Feeder:
    """Tensors sent to a GPU, a layer ahead.

    Raises CheckpointError where a file can't be read; the device's errors as they come.

    - `outside`: the tensors of no layer that are wanted on the device, kept there.
    - `layers`: those of each layer.

    A tensor in neither is read and sent whenever it is asked for.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        outside: Sequence[str],
        layers: Sequence[Sequence[str]],
        place: Place,
    ):
        self._checkpoint, self._device, self._place = checkpoint, device, place
        self._blocks = [self._block(names) for names in layers]
        self._reader = Reader()
        self._prefetcher = Prefetcher(device, "scoremode-load")
        self._staging = Staging(_PIECES, _PIECE)
        # Blocks that stay in pinned memory, by layer, and what is left of the slab for the next one.
        self._pinned: dict[int, torch.Tensor] = {}
        self._slab = torch.empty(0, dtype=torch.uint8)
        largest = max((b.bytes for b in self._blocks), default=0)
        # Where blocks take turns.
        turns = 0 if place == "device" else 2
        self._lanes = [self._prefetcher.lane(largest) for _ in range(turns)]
        self._loading: dict[int, Fetch] = {}
        self._current: int | None = None
        self._views: dict[str, torch.Tensor] = {}
        kept = self._block(outside)
        self._outside = self._prefetcher.fetch(kept.bytes, partial(self._send, kept))
        self._outside_block = kept
        self._outside_views: dict[str, torch.Tensor] | None = None
        if place == "device":
            for layer in range(len(self._blocks)):
                self._loading[layer] = self._fetch(layer, None)
        elif self._blocks:
            self._prefetch(0)

    @property
    def placement(self) -> str:
        return {
            "device": "device",
            "host": "pinned host memory",
            "disk": "files, read again in every pass",
        }[self._place]

    def begin(self, layer: int) -> None:
        if self._current is not None:
            self.end(self._current)
        if layer not in self._loading:
            self._prefetch(layer)
        self._current = layer
        self._views = self._arrived(self._blocks[layer], self._loading[layer])
        if self._place != "device":
            self._prefetch((layer + 1) % len(self._blocks))

    def end(self, layer: int) -> None:
        assert layer == self._current, f"layer {layer} ends, and {self._current} is at work"
        self._views, self._current = {}, None
        if self._place != "device":
            lane = self._loading.pop(layer).lane
            assert lane is not None
            lane.release()

    def get(self, name: str, index: int | None) -> torch.Tensor:
        if name in self._outside_block.tensors:
            if self._outside_views is None:
                self._outside_views = self._arrived(self._outside_block, self._outside)
            whole = self._outside_views[name]
        elif name in self._views:
            whole = self._views[name]
        else:
            tensor = self._checkpoint.read(name)
            return (tensor if index is None else tensor[index]).to(self._device)
        return whole if index is None else whole[index]

    def close(self) -> None:
        """Ends the threads; what they are at is finished first."""
        self._prefetcher.close()
        self._reader.close()

    def _block(self, names: Sequence[str]) -> Block:
        infos = [self._checkpoint.tensors[n] for n in names]
        return Block.of([i for i in infos if i.dtype in _DTYPES])

    def _arrived(self, block: Block, fetch: Fetch) -> dict[str, torch.Tensor]:
        """Views of the block's tensors; what is queued from now on finds them filled."""
        memory = fetch.arrived()
        return {
            name: memory[at : at + info.bytes].view(_DTYPES[info.dtype]).view(info.shape)
            for name, (at, info) in block.tensors.items()
        }

    def _prefetch(self, layer: int) -> None:
        """Starts to load a layer into the memory whose turn it is."""
        if layer in self._loading:
            return
        taken = [fetch.lane for fetch in self._loading.values()]
        lane = next((lane for lane in self._lanes if lane not in taken), None)
        if lane is None:
            # What was fetched ahead is not what comes: a run began anew. Its memory is overwritten, by
            # the same thread and stream.
            lane = self._loading.pop(next(n for n in self._loading if n != self._current)).lane
        self._loading[layer] = self._fetch(layer, lane)

    def _fetch(self, layer: int, lane: Lane | None) -> Fetch:
        block = self._blocks[layer]

        def send(memory: torch.Tensor, stream: torch.cuda.Stream) -> None:
            if self._place == "host":
                memory.copy_(self._kept(layer), non_blocking=True)
            else:
                self._send(block, memory, stream)

        return self._prefetcher.fetch(block.bytes, send, lane)

    def _send(self, block: Block, memory: torch.Tensor, stream: torch.cuda.Stream) -> None:
        """Fills `memory` from the files, piece by piece: one is read while others are sent."""
        for begin in range(0, block.bytes, _PIECE):
            fill = partial(self._reader.fill, block=block, begin=begin)
            self._staging.send(memory[begin : begin + _PIECE], stream, fill)

    def _kept(self, layer: int) -> torch.Tensor:
        """The layer's block in pinned memory, read when it is wanted first."""
        if layer not in self._pinned:
            block = self._blocks[layer]
            size = block.bytes
            if size > len(self._slab):
                self._slab = torch.empty(max(size, _SLAB), dtype=torch.uint8, pin_memory=True)
            memory, self._slab = self._slab[:size], self._slab[size:]
            self._reader.fill(memory, block, 0)
            self._pinned[layer] = memory
        return self._pinned[layer]

"""Layers on their way to a GPU: the right bytes, in turn, and never over what is still being read.

Without a GPU the turns are taken on a stand-in for CUDA's streams, which does work only when something
waits for it; with one, on the real thing too.
"""

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support.fake_cuda import Cuda

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.engines.torch.memory import feeder as feeders
from scoremode.engines.torch.memory.feeder import Feeder, Mapped
from scoremode.errors import CheckpointError
from scoremode.lib import prefetch

PLACES = ["device", "host", "disk"]
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
)
DTYPES = [torch.float32, torch.bfloat16, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.bool]


@pytest.fixture(params=["stand-in", CUDA])
def device(request, monkeypatch) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda", 0)
    stand_in(monkeypatch)
    return torch.device("cpu")


def stand_in(monkeypatch) -> Cuda:
    cuda = Cuda()
    for module in (feeders, prefetch):
        monkeypatch.setattr(module, "torch", cuda)
    return cuda


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """So that a layer takes several, and pinned memory several slabs."""
    monkeypatch.setattr(feeders, "_PIECE", 1000)
    monkeypatch.setattr(feeders, "_SLAB", 5000)


@pytest.fixture
def checkpoint(tmp_path) -> Checkpoint:
    """Five layers of different sizes, of which one has a file of its own, and tensors of none."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(5):
        for i, dtype in enumerate(DTYPES):
            shape = (layer + 2, 30 + 7 * i)
            # Codes that are numbers in every dtype.
            values = torch.randint(0, 100, shape, generator=generator, dtype=torch.uint8)
            tensors[f"layers.{layer}.{i}"] = values.to(dtype)
    tensors["norm"] = torch.randn(50, generator=generator)
    tensors["scalar"] = torch.tensor(4.5)
    tensors["table"] = torch.randn((70, 11), generator=generator).bfloat16()
    files = {n: f"{2 if n.startswith('layers.3.') else 1}.safetensors" for n in tensors}
    for file in set(files.values()):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, tmp_path / file)
    index = json.dumps({"weight_map": files})
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (tmp_path / "config.json").write_text("{}")
    return open_checkpoint(str(tmp_path))


def names_of(layer: int) -> list[str]:
    return [f"layers.{layer}.{i}" for i in range(len(DTYPES))]


def make(checkpoint, device, place, layers=5) -> Feeder:
    names = [names_of(layer) for layer in range(layers)]
    return Feeder(checkpoint, device, ["norm", "scalar"], names, place)


class Consumer:
    """Work on what a Feeder has, queued as an engine queues it: done long after it was asked for."""

    def __init__(self, feeder: Feeder, checkpoint: Checkpoint, device: torch.device):
        self.feeder, self.checkpoint, self.device = feeder, checkpoint, device
        self.read: list[tuple[str, torch.Tensor]] = []

    def queue(self, name: str, index: int | None = None) -> None:
        tensor = self.feeder.get(name, index)
        expected = self.checkpoint.read(name)
        expected = expected if index is None else expected[index]
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), name
        if self.device.type == "cuda":
            torch.cuda._sleep(300_000)
            self.read.append((name if index is None else f"{name}[{index}]", tensor.clone()))
        else:
            out = torch.empty_like(tensor)
            feeders.torch.current().work.append(lambda: out.copy_(tensor))
            self.read.append((name if index is None else f"{name}[{index}]", out))

    def layer(self, layer: int) -> None:
        self.feeder.begin(layer)
        for name in names_of(layer):
            self.queue(name)
        self.feeder.end(layer)

    def check(self) -> None:
        """All that was read, when all is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        else:
            feeders.torch.main.run(1 << 60)
        for label, tensor in self.read:
            name, _, index = label.partition("[")
            expected = self.checkpoint.read(name)
            expected = expected[int(index[:-1])] if index else expected
            got = tensor.cpu()
            if got.dim():  # bytes, for dtypes that have no comparison
                got, expected = got.view(torch.uint8), expected.view(torch.uint8)
            assert torch.equal(got, expected), label
        self.read.clear()


@pytest.fixture
def consume(checkpoint, device):
    made = []

    def consumer(place, layers=5) -> Consumer:
        made.append(Consumer(make(checkpoint, device, place, layers), checkpoint, device))
        return made[-1]

    yield consumer
    for each in made:
        each.feeder.close()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_three_passes_bring_the_files_bytes(layers, place, consume):
    consumer = consume(place, layers)
    for _ in range(3):
        for layer in range(layers):
            consumer.layer(layer)
    consumer.queue("norm")
    consumer.queue("scalar")
    assert len(consumer.read) == 3 * layers * len(DTYPES) + 2
    consumer.check()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "order", [[0, 1, 0, 1], [0, 1, 2, 0], [0, 3, 1], [4, 2, 2, 4], [1, 0, 4, 0]]
)
def test_layers_may_come_in_any_order(order, place, consume):
    """A run that begins anew after an error begins at layer 0, whatever was fetched ahead."""
    consumer = consume(place)
    for layer in order:
        consumer.layer(layer)
    consumer.check()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("begun", range(5))
def test_a_begin_without_an_end_ends_it(begun, place, consume):
    """What an exception in the middle of a layer leaves behind."""
    consumer = consume(place)
    for layer in range(begun):
        consumer.layer(layer)
    consumer.feeder.begin(begun)
    consumer.queue(f"layers.{begun}.0")
    for layer in [*range(5), 0]:
        consumer.layer(layer)
    consumer.check()


@pytest.mark.parametrize("place", PLACES)
def test_an_entry_of_the_first_axis_and_what_is_in_no_layer(place, consume):
    consumer = consume(place)
    consumer.feeder.begin(2)
    consumer.queue("layers.2.3", 1)
    consumer.queue("norm", 7)
    # Neither kept nor in this layer.
    consumer.queue("table")
    consumer.queue("table", 3)
    consumer.queue("layers.4.1")
    consumer.feeder.end(2)
    consumer.queue("layers.2.0")
    assert consumer.feeder.get("table", 3).device == consumer.device
    consumer.check()


def reads(checkpoint, monkeypatch) -> list[int]:
    """Bytes of each request to the files from now on."""
    asked, preadv = [], os.preadv

    def count(fd, buffers, offset):
        got = preadv(fd, buffers, offset)
        asked.append(got)
        return got

    monkeypatch.setattr(os, "preadv", count)
    return asked


@pytest.mark.parametrize(("place", "times"), [("device", 1), ("host", 1), ("disk", 3)])
def test_files_are_read_once_or_in_every_pass(place, times, consume, checkpoint, monkeypatch):
    asked = reads(checkpoint, monkeypatch)
    consumer = consume(place)
    for _ in range(3):
        for layer in range(5):
            consumer.layer(layer)
    consumer.queue("norm")
    consumer.check()
    layers = [sum(checkpoint.tensors[n].bytes for n in names_of(i)) for i in range(5)]
    kept = sum(checkpoint.tensors[n].bytes for n in ("norm", "scalar"))
    # The layer after the last pass is fetched ahead.
    consumer.feeder._loading[0].sending.result()
    more = layers[0] if place == "disk" else 0
    assert sum(asked) == times * sum(layers) + kept + more


def test_device_memory_is_of_all_layers_or_of_two(checkpoint, monkeypatch):
    largest = feeders.Block.of([checkpoint.tensors[n] for n in names_of(4)]).bytes
    whole = sum(
        feeders.Block.of([checkpoint.tensors[n] for n in names_of(i)]).bytes for i in range(5)
    )
    kept = 512
    for place, expected in (("device", whole), ("host", 2 * largest), ("disk", 2 * largest)):
        cuda = stand_in(monkeypatch)
        feeder = make(checkpoint, torch.device("cpu"), place)
        for layer in [0, 1, 2, 3, 4, 0]:
            feeder.begin(layer)
        feeder.close()
        assert cuda.on_device == expected + kept, place


@pytest.mark.parametrize("place", PLACES)
def test_a_file_that_became_shorter_is_an_error_at_the_layer_that_needs_it(
    place, checkpoint, device
):
    """And not in the loading thread, nor at a layer before it, nor a wait for ever."""
    victim = checkpoint.tensors["layers.3.0"]
    os.truncate(victim.file, victim.begin + 4)
    feeder = make(checkpoint, device, place)
    try:
        for layer in range(3):
            feeder.begin(layer)
            feeder.end(layer)
        for _ in range(2):  # again where it is tried again
            with pytest.raises(CheckpointError, match="the file has become shorter"):
                feeder.begin(3)
        # What is whole is still to be had.
        feeder.begin(1)
        feeder.get("norm", None)
    finally:
        feeder.close()


def test_a_missing_file_is_an_error_where_it_is_asked_for(checkpoint, device):
    next(iter(checkpoint.tensors.values())).file.unlink()
    feeder = make(checkpoint, device, "host")
    try:
        with pytest.raises(CheckpointError, match="No such file"):
            feeder.get("norm", None)
        with pytest.raises(CheckpointError, match="No such file"):
            feeder.begin(0)
    finally:
        feeder.close()


def threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("scoremode-")}


@pytest.mark.parametrize("place", PLACES)
def test_close_ends_all_threads_and_files(place, checkpoint, device, monkeypatch):
    opened, closed, open_, close = [], [], os.open, os.close
    monkeypatch.setattr(os, "open", lambda *a: opened.append(open_(*a)) or opened[-1])
    monkeypatch.setattr(os, "close", lambda fd: closed.append(fd) or close(fd))
    before = threads()
    feeder = make(checkpoint, device, place)
    for layer in range(4):
        feeder.begin(layer)
    assert threads() - before
    feeder.close()
    assert threads() == before and sorted(closed) == sorted(opened) and len(opened) == 2


def test_placement_is_named_for_the_record(consume):
    names = [consume(place).feeder.placement for place in PLACES]
    assert names == ["device", "pinned host memory", "files, read again in every pass"]


def test_a_model_without_layers_has_its_outside(consume):
    consumer = consume("host", 0)
    consumer.queue("norm")
    consumer.check()


def test_a_cpu_reads_views_of_the_files(checkpoint):
    feeds = Mapped(checkpoint)
    feeds.begin(0)
    whole, row = feeds.get("table", None), feeds.get("table", 3)
    assert torch.equal(whole, checkpoint.read("table")) and torch.equal(row, whole[3])
    feeds.end(0)
    feeds.close()
    assert feeds.placement == "memory-mapped files"


def test_a_tensor_of_a_dtype_without_a_torch_one_is_left_in_its_file(tmp_path, device):
    header = b'{"x":{"dtype":"U16","shape":[2],"data_offsets":[0,4]},"y":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}}'  # noqa: E501
    path: Path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([1, 0, 2, 0, 7, 8, 9]))
    (tmp_path / "config.json").write_text("{}")
    checkpoint = open_checkpoint(str(tmp_path))
    feeder = Feeder(checkpoint, device, [], [["x", "y"]], "host")
    feeder.begin(0)
    assert feeder.get("x", None).tolist() == [1, 2]
    y = feeder.get("y", None)
    feeder.close()
    if device.type == "cpu":
        feeders.torch.main.run(1 << 60)
    assert y.tolist() == [7, 8, 9]

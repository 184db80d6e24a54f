"""States on their way to a GPU: the right rows in any order, and nothing overwritten too soon.

Without a GPU on a stand-in for CUDA's streams, which does work only when something waits for it.
"""

from pathlib import Path

import pytest
import torch
from support.fake_cuda import Cuda

from scoremode.checkpoint import bulk_io
from scoremode.errors import ReferenceUnusable
from scoremode.lib import prefetch
from scoremode.reference import states as ahead
from scoremode.reference.states import (
    SpanPrefetch,
    StatesFile,
    StatesReader,
    begin_of_states,
    create_states,
    write_states,
)

WIDTH, ROWS = 6, (7, 5, 11)
DTYPE = torch.bfloat16
CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
)


@pytest.fixture(scope="module")
def all_states() -> torch.Tensor:
    return torch.randn(sum(ROWS), WIDTH, generator=torch.Generator().manual_seed(5)).to(DTYPE)


@pytest.fixture
def files(tmp_path, all_states) -> list[StatesFile]:
    """One a pass."""
    result = []
    for number, states in enumerate(all_states.split(ROWS)):
        path = tmp_path / f"{number}"
        create_states(path, len(states), WIDTH, DTYPE)
        write_states(path, 0, states)
        result.append(StatesFile(path, begin_of_states(path), len(states)))
    return result


@pytest.fixture(params=["stand-in", CUDA])
def device(request, monkeypatch) -> torch.device:
    if request.param == "cuda":
        return torch.device("cuda", 0)
    monkeypatch.setattr(prefetch, "torch", Cuda())
    return torch.device("cpu")


class Consumer:
    """An engine that queues work on the states that it takes, done long after it asked for others."""

    def __init__(self, files: list[StatesFile], device: torch.device):
        reader = StatesReader(files, WIDTH * 2)
        self.states = SpanPrefetch(reader, sum(ROWS), WIDTH, DTYPE, device)
        self.device = device
        self.read: list[tuple[int, int, torch.Tensor]] = []

    def take(self, begin: int, end: int) -> None:
        given = self.states.take((begin, end))
        if self.device.type == "cuda":
            torch.cuda._sleep(300_000)
            self.read.append((begin, end, given.clone()))
        else:
            out = torch.empty_like(given)
            prefetch.torch.current().work.append(lambda: out.copy_(given))
            self.read.append((begin, end, out))

    def check(self, all_states: torch.Tensor) -> None:
        """All that was read, when all is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        else:
            prefetch.torch.main.run(1 << 60)
        for begin, end, got in self.read:
            assert torch.equal(got.cpu(), all_states[begin:end]), (begin, end)


@pytest.fixture
def fetched(monkeypatch) -> list[int]:
    """Bytes of each span that is fetched, from when the thread begins to."""
    sizes, readers = [], []
    init, fill = StatesReader.__init__, StatesReader.fill

    def begin(self, *arguments):
        readers.append(self)
        init(self, *arguments)

    def count(self, memory, span):
        # The thread of a test before this one may still be at its last span.
        if any(self is each for each in readers):
            sizes.append(len(memory))
        fill(self, memory, span)

    monkeypatch.setattr(StatesReader, "__init__", begin)
    monkeypatch.setattr(StatesReader, "fill", count)
    return sizes


def settle(consumer: Consumer) -> None:
    """Returns when all that was begun is read."""
    consumer.states._prefetcher._thread.submit(int).result()


# Pinned memory of a whole span, and of two rows.
@pytest.mark.parametrize("piece", [1 << 26, 30], ids=["whole", "pieces"])
@pytest.mark.parametrize("request_bytes", [1 << 24, 16])
@pytest.mark.parametrize(
    "spans",
    [
        [
            (0, 4),
            (4, 7),
            (7, 11),
            (11, 12),
            (12, 16),
            (16, 20),
            (20, 23),
        ],  # passes in micro-batches
        [(0, 23)],
        [(i, i + 1) for i in range(23)],
        [(0, 2), (2, 20), (20, 21)],  # larger than what was fetched
        [(9, 14), (0, 3), (3, 6), (3, 6), (20, 23), (6, 9)],  # in no order
    ],
    ids=["passes", "whole", "rows", "growing", "jumping"],
)
def test_gives_the_rows_that_are_asked_for(
    spans, request_bytes, piece, files, device, all_states, monkeypatch
):
    monkeypatch.setattr(ahead, "_PIECE", piece)
    monkeypatch.setattr(bulk_io, "_REQUEST", request_bytes)
    consumer = Consumer(files, device)
    for span in spans:
        consumer.take(*span)
    consumer.check(all_states)


def test_each_row_is_read_once_where_spans_follow_each_other(files, device, fetched):
    consumer = Consumer(files, device)
    spans = [(0, 4), (4, 8), (8, 12), (12, 16), (16, 20), (20, 23)]
    for span in spans:
        consumer.take(*span)
    assert fetched == [(end - begin) * WIDTH * 2 for begin, end in spans]


@pytest.mark.parametrize("expected", [(0, 4), (0, 7), (0, 2), (9, 12)])
@pytest.mark.parametrize("before", [[], [(3, 5)], [(3, 5), (5, 7)]])
def test_what_is_expected_is_fetched_from_then_on(
    expected, before, files, device, all_states, fetched
):
    """Whether it comes or not, what is given is what was asked for, and held until the next."""
    consumer = Consumer(files, device)
    for span in before:
        consumer.take(*span)
    settle(consumer)
    fetched.clear()
    consumer.states.expect(expected)
    consumer.states.expect(expected)
    settle(consumer)
    # Once, though it was said twice.
    assert len(fetched) == 1
    for span in [(0, 4), (4, 7)]:
        consumer.take(*span)
    consumer.check(all_states)
    settle(consumer)
    # Behind each span that is taken the next one is fetched; the first was there if it was expected.
    was_there = expected in [(0, 4), (0, 7)]
    assert len(fetched) == (3 if was_there else 4)


@pytest.mark.parametrize("change", ["shorter", "gone"])
def test_a_file_that_changed_is_refused(change, files, device, all_states):
    consumer = Consumer(files, device)
    consumer.take(0, 3)
    path: Path = files[1].path
    if change == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
        words = "has become shorter"
    else:
        path.unlink()
        words = "No such file"
    with pytest.raises(ReferenceUnusable, match=f"{path}: {words}"):
        consumer.take(6, 12)
    # Another pass's are to be had all the same.
    consumer.take(0, 3)
    consumer.check(all_states)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
class TestOnAGpu:
    def test_while_its_queue_is_long(self, tmp_path):
        """Neither what is used is overwritten, nor what is not there is used."""
        device, rows, width = torch.device("cuda", 0), 8192, 4096
        whole = torch.randint(-99, 99, (12 * rows, width), dtype=torch.int8).to(DTYPE)
        create_states(tmp_path / "a", len(whole), width, DTYPE)
        write_states(tmp_path / "a", 0, whole)
        reader = StatesReader(
            [StatesFile(tmp_path / "a", begin_of_states(tmp_path / "a"), len(whole))], width * 2
        )
        states = SpanPrefetch(reader, len(whole), width, DTYPE, device)
        sums = []
        for begin in range(0, len(whole), rows):
            given = states.take((begin, begin + rows))
            torch.cuda._sleep(20_000_000)
            sums.append(given.float().sum(1))
        assert torch.equal(torch.cat(sums).cpu(), whole.float().sum(1))

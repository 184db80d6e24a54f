"""Bytes sent ahead: filled when they are used, and not overwritten while they are.

On a stand-in for CUDA's streams, which does work only when something waits for it; weights and states
(`test_feeder`, `test_ahead`) go on the real thing too.
"""

import pytest
import torch
from support.fake_cuda import Cuda

from scoremode.lib import prefetch
from scoremode.lib.prefetch import Prefetcher, Staging

DEVICE = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch) -> Cuda:
    monkeypatch.setattr(prefetch, "torch", cuda := Cuda())
    return cuda


@pytest.fixture
def prefetcher(cuda):
    prefetcher = Prefetcher(DEVICE, "scoremode-test")
    yield prefetcher
    prefetcher.close()


def queue_read(cuda: Cuda, memory) -> torch.Tensor:
    """A copy of `memory` that the main stream makes when it is waited for."""
    out = torch.zeros(len(memory), dtype=torch.uint8)
    cuda.current().work.append(lambda: out.copy_(memory.view(torch.uint8)))
    return out


@pytest.mark.parametrize("sizes", [[5, 5, 5, 5], [2, 9, 4, 30], [30, 4, 9, 2]])
@pytest.mark.parametrize("lanes", [0, 1, 2])
@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_work_finds_what_was_sent_for_it(sizes, lanes, pieces, cuda, prefetcher):
    """Memory is each one's own, or taken in turn, or always the same; all is queued, then all done."""
    turns = [prefetcher.lane(3) for _ in range(lanes)] or [None]
    staging, found = Staging(pieces), []
    for number, size in enumerate(sizes):

        def send(memory, stream, number=number):
            staging.send(memory, stream, lambda host: host.fill_(number))

        lane = turns[number % len(turns)]
        memory = prefetcher.fetch(size, send, lane).arrived()
        found.append(queue_read(cuda, memory))
        if lane is not None:
            lane.release()
    cuda.main.run(1 << 60)
    assert [f.tolist() for f in found] == [[n] * size for n, size in enumerate(sizes)]


def test_without_a_release_the_stand_in_shows_what_is_overwritten(cuda, prefetcher):
    """Shows that the test above can fail."""
    lane, staging, found = prefetcher.lane(4), Staging(2), []
    for number in range(2):

        def send(memory, stream, number=number):
            staging.send(memory, stream, lambda host: host.fill_(number))

        found.append(queue_read(cuda, prefetcher.fetch(4, send, lane).arrived()))
        prefetcher._stream.run(1 << 60)
    cuda.main.run(1 << 60)
    assert found[0].tolist() == [1] * 4


def test_memory_is_taken_anew_only_where_it_does_not_suffice(cuda, prefetcher):
    lane = prefetcher.lane(8)
    for size in (3, 8, 1):
        prefetcher.fetch(size, lambda *_: None, lane).arrived()
    assert cuda.on_device == 8
    prefetcher.fetch(20, lambda *_: None, lane).arrived()
    assert cuda.on_device == 28


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_piece_is_filled_while_the_others_are_sent(pieces, cuda, prefetcher):
    staging = Staging(pieces)

    def send(memory, stream):
        staging.send(memory, stream, lambda host: host.fill_(1))

    for count in range(5):
        prefetcher.fetch(4, send).sending.result()
        # Two pieces of work each: the memory's earlier use, and the copy.
        assert prefetcher._stream._done == max(0, count - pieces + 1) * 2


def test_an_error_is_raised_where_its_bytes_are_wanted_and_nowhere_else(cuda, prefetcher):
    lane, staging = prefetcher.lane(4), Staging(1, least=16)

    def fail(host):
        raise OSError(5, "Input/output error")

    failing = prefetcher.fetch(4, lambda m, s: staging.send(m, s, fail), lane)
    fine = prefetcher.fetch(4, lambda m, s: staging.send(m, s, lambda h: h.fill_(7)), lane)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            failing.arrived()
    found = queue_read(cuda, fine.arrived())
    cuda.main.run(1 << 60)
    assert found.tolist() == [7] * 4

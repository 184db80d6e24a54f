"""The device of a rank: by its number on its machine."""

from types import SimpleNamespace

import pytest
import torch
from engines.torch.ranks.far_ranks import far_place

from scoremode.engines.torch.ranks.places import Place, gpu_of, same_gpu, take_device
from scoremode.errors import UsageError


@pytest.fixture
def gpus(monkeypatch):
    """Gives this process so many GPUs; the list of those that it has taken."""
    taken: list[int] = []

    def give(count: int) -> list[int]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        return taken

    return give


def test_a_gpu_is_taken_by_the_number_on_the_machine(gpus):
    taken = gpus(4)
    # Rank 6 of 8, on two machines of four.
    assert take_device(Place(6, 8, "torchrun", local=2, here=4, node=1), None) == "cuda:2"
    assert take_device(Place(3, 4, "--devices", local=3, here=4), "cuda") == "cuda:3"
    assert taken == [2, 3]


def test_the_only_gpu_that_slurm_shows_is_taken(gpus):
    gpus(1)
    assert take_device(Place(1, 2, "srun", local=1, here=2), None) == "cuda:0"


@pytest.mark.parametrize(
    ("place", "count", "message"),
    [
        (Place(0, 2, "--devices", 0, 2), 1, "--devices 2: this machine has 1 CUDA devices"),
        (Place(0, 2, "torchrun", 0, 2), 1, "torchrun: 2 ranks: this machine has 1 CUDA devices"),
        (Place(0, 8, "srun", 0, 4), 2, "srun: 8 ranks, 4 of them here: this machine has 2 CUDA"),
        (far_place(0), 0, "torchrun: 2 ranks: this machine has no CUDA device; --device cpu"),
    ],
)
def test_too_few_are_refused(place, count, message, gpus):
    gpus(count)
    with pytest.raises(UsageError) as error:
        take_device(place, None)
    assert str(error.value).startswith(message)


def test_cores_are_shared_out_where_no_launcher_has_done_it(monkeypatch):
    threads: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for launcher in ("--devices", "torchrun", "srun"):
        assert take_device(Place(1, 4, launcher, local=1, here=2), "cpu") == "cpu"
    assert threads == [4, 4]
    # SLURM has bound the task to its own.
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)
    take_device(Place(1, 4, "srun", local=1, here=2), "cpu")
    assert threads == [4, 4]


def test_one_gpu_of_two_ranks_is_seen():
    assert same_gpu({0: "a", 1: "b", 2: None, 3: None}) == ()
    assert same_gpu({0: "a", 1: "b", 2: "b"}) == (1, 2)


def test_a_gpu_without_a_name_is_any(monkeypatch):
    assert gpu_of("cpu") is None
    for name, known in (("0000-0000", None), ("ab-cd", "ab-cd"), (None, None)):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _, name=name: SimpleNamespace(uuid=name)
        )
        assert gpu_of("cuda:0") == known

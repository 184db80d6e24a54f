"""Machines of a run: files that differ are named, with the machine and what is different."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engines.torch.ranks.far_ranks import far_place
from support.waiting import wait_for

from scoremode.engines.torch.ranks.messages import LookFor, Ranks
from scoremode.errors import CheckpointError, EngineError, RunFolderError
from scoremode.runs.workers import check_nodes, check_shared, look_for, tell_files

FILES = {"config.json": "c" * 64, "model.safetensors": "a" * 64}


class Told:
    """Ranks, of which rank 2 leads another machine; `left`: what has been left for others."""

    size, number = 3, 5

    def __init__(self, rank: int = 0, **files: Any):
        self.place, self.leaders, self._files = far_place(rank, 3), [2], files
        self.left: dict[str, Any] = {}
        self.looks = Path.exists

    def title(self, rank: int) -> str:
        return f"rank {rank} (cpu on node2)"

    def files_of(self, rank: int) -> Any:
        assert rank == 2
        return self._files

    def leave(self, name: str, facts: Any) -> None:
        self.left[name] = facts

    def tell(self, command: LookFor) -> int:
        self.told = command
        return 6

    def take(self, name: str) -> Any:
        sees = name != "seen/6/2" or self.looks(Path(self.told.path))
        assert Path(self.told.path).read_text() == self.told.content
        return {"seen": sees}, {}


def checked(base: dict[str, str] | None = None, **files: Any) -> None:
    check_nodes(cast("Ranks", Told(**files)), Path("/models/m"), FILES, base)


def test_the_same_files_are_fine():
    checked(checkpoint=FILES, reference=None)
    checked({"b": "1"}, checkpoint=FILES, reference={"b": "1"})


@pytest.mark.parametrize(
    ("base", "told", "message"),
    [
        (
            None,
            {"checkpoint": FILES | {"model.safetensors": "b" * 64}, "reference": None},
            "/models/m: rank 2 (cpu on node2) has another model.safetensors (sha256 bbbbbbbbbbbb… "
            "there, aaaaaaaaaaaa… here): all machines need the same files",
        ),
        (
            None,
            {"checkpoint": FILES | {"modeling.py": "d" * 64}, "reference": None},
            "/models/m: rank 2 (cpu on node2) has another modeling.py (sha256 dddddddddddd… there, "
            "none here)",
        ),
        (
            {"x.safetensors": "e" * 64},
            {"checkpoint": FILES, "reference": {"x.safetensors": "f" * 64}},
            "the base: rank 2 (cpu on node2) has another x.safetensors",
        ),
    ],
)
def test_others_are_named(base, told, message):
    with pytest.raises(EngineError) as error:
        checked(base, **told)
    assert str(error.value).startswith(message)


def test_what_fails_there_is_told_here():
    with pytest.raises(
        CheckpointError, match=r"^rank 2 \(cpu on node2\): /m/x: Input/output error"
    ):
        checked(error=["CheckpointError", "/m/x: Input/output error"])


def test_one_rank_of_a_machine_tells_its_files():
    ranks = Told(1)
    checkpoint = SimpleNamespace(hash_files=lambda: FILES)
    baseline = SimpleNamespace(settle=lambda: {"b": "1"})
    tell_files(cast("Ranks", ranks), cast("Any", checkpoint), cast("Any", baseline))
    wait_for(lambda: ranks.left)
    assert ranks.left == {"files/1": {"checkpoint": FILES, "reference": {"b": "1"}}}
    first = Told(0)
    tell_files(cast("Ranks", first), cast("Any", checkpoint), None)
    assert first.left == {}


def test_a_folder_that_one_does_not_see_is_refused(tmp_path):
    ranks = Told()
    check_shared(cast("Ranks", ranks), tmp_path)
    ranks.looks = lambda _: False
    with pytest.raises(RunFolderError, match=r"rank 2 \(cpu on node2\) does not see it"):
        check_shared(cast("Ranks", ranks), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_counts_by_what_it_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("scoremode.runs.workers._SEEN", 0.1)
    ranks, path = Told(1), tmp_path / "seen"
    for content, seen in ((None, False), ("another", False), ("this", True)):
        if content is not None:
            path.write_text(content)
        look_for(cast("Ranks", ranks), LookFor(str(path), "this"))
        assert ranks.left == {"seen/5/1": {"seen": seen}}

"""A keeper writes what it is given, beside what computes, and no more than it may hold."""

import threading
from pathlib import Path

import pytest
import torch
from support.gpu_waits import waits
from support.hostile_files import KINDS, put, snapshot
from support.models import random_plan

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.errors import RunFolderError
from scoremode.head.project import Head
from scoremode.reference import writer as keeper
from scoremode.reference.states import read_states

PLAN = random_plan(windows=3, tail=0)


def keeper_of(folder: Path, weight: torch.Tensor | None = None) -> keeper.Keeper:
    head = Head(torch.zeros(2, 4) if weight is None else weight, None, 1.0, None, 2)
    tensors = keeper.HeadTensors(head, "base", str(folder), "weight", None)
    return keeper.Keeper(folder, PLAN, tensors, stored=False)


def states_of(windows: range) -> torch.Tensor:
    begin, end = PLAN.offsets[windows.start], PLAN.offsets[windows.stop]
    return torch.arange(begin, end).float().unsqueeze(1).expand(-1, 4)


PASSES = [range(0, 2), range(2, 3)]


def test_what_is_kept_is_what_was_put(tmp_path):
    writer = keeper_of(tmp_path)
    for number, windows in enumerate(PASSES):
        writer.put(number, states_of(windows).split(5))
    hashes = [writer.settle(number) for number in range(2)]
    kept = writer.kept(PASSES)
    assert kept["states"]["rows"] == PLAN.scored and kept["states"]["width"] == 4
    for file, windows, digest in zip(kept["states"]["files"], PASSES, hashes, strict=True):
        path = tmp_path / file["name"]
        assert file["sha256"] == digest == hash_file(path)
        assert torch.equal(read_states(path), states_of(windows))
    assert hash_file(tmp_path / keeper.TOKENS) == kept["tokens"]["sha256"] == PLAN.tokens_sha256
    assert kept["sha256"] == keeper.reference_sha256(PLAN.sha256, kept["states"], kept["head"])
    with pytest.raises(RunFolderError, match=r"00000\.safetensors: \d+ states for \d+ targets"):
        writer.kept(PASSES[::-1])


@pytest.mark.parametrize("change", ["other", "gone"])
def test_states_of_an_earlier_process_are_what_the_record_has(change, tmp_path):
    writer = keeper_of(tmp_path)
    writer.put(0, [states_of(PASSES[0])])
    digest = writer.settle(0)
    path = tmp_path / keeper.name_of(0)
    if change == "gone":
        path.unlink()
        with pytest.raises(RunFolderError, match="is missing, and its pass is done"):
            keeper_of(tmp_path).check_parts([digest])
        return
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    later = keeper_of(tmp_path)
    later.check_parts([digest])
    later.put(1, [states_of(PASSES[1])])
    with pytest.raises(RunFolderError, match="is damaged or another's"):
        later.settle(1)
    later.stop()


def test_a_disk_without_room_is_refused(tmp_path):
    writer = keeper_of(tmp_path)
    writer.check_room(PLAN.scored, 4, "float32")
    with pytest.raises(RunFolderError, match=r"the states take 4e\+12 GB"):
        writer.check_room(10**18, 1000, "float32")
    writer.discard()


def test_states_of_two_passes_are_held_at_most(tmp_path, monkeypatch):
    """Where the disk is slower than the model, the model waits."""
    may_write, own = threading.Event(), keeper.fill_states

    def slowly(*arguments):
        assert may_write.wait(30)
        return own(*arguments)

    monkeypatch.setattr(keeper, "fill_states", slowly)
    writer = keeper_of(tmp_path)
    states = [torch.full((2, 4), float(i)) for i in range(3)]
    for number in range(2):
        writer.put(number, [states[number], states[number]])
    third = threading.Thread(target=writer.put, args=(2, [states[2]]))
    third.start()
    third.join(0.2)
    assert third.is_alive()
    may_write.set()
    third.join(30)
    for number, rows in enumerate((4, 4, 2)):
        writer.settle(number)
        kept = read_states(tmp_path / keeper.name_of(number))
        assert torch.equal(kept, states[number][:1].expand(rows, 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_pass_is_written_when_it_is_computed(tmp_path):
    """`put` doesn't wait for the GPU, and what is written are the states that it computes later."""
    writer = keeper_of(tmp_path, torch.zeros(2, 4096, dtype=torch.bfloat16))
    parts = [torch.zeros(8192, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(3)]
    for number in range(4):
        made = [part + number for part in parts]
        torch.cuda._sleep(200_000_000)
        for i, part in enumerate(made):
            part.add_(i)
        with waits() as waited:
            writer.put(number, made)
        # For the disk it may wait, from the third on: two passes are held at most.
        assert not waited
        del made
    for number in range(4):
        writer.settle(number)
        kept = read_states(tmp_path / keeper.name_of(number))
        wanted = torch.arange(3).repeat_interleave(8192) + number
        assert torch.equal(kept, wanted.to(torch.bfloat16).unsqueeze(1).expand_as(kept))


@pytest.mark.parametrize("kind", KINDS)
def test_states_in_no_folder_of_its_own_are_refused(kind, tmp_path):
    put(tmp_path / keeper.STATES, kind, tmp_path / "outside")
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match=r"states: is a \w+, not a folder"):
        keeper_of(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_earlier_process_wrote_files_of_their_size(kind, tmp_path):
    writer = keeper_of(tmp_path)
    writer.put(0, [states_of(PASSES[0])])
    digest = writer.settle(0)
    writer.stop()
    put(tmp_path / keeper.name_of(0), kind, tmp_path / "outside")
    before = snapshot(tmp_path)
    with pytest.raises(RunFolderError, match=r"00000\.safetensors: (is a|has 68,)"):
        keeper_of(tmp_path).check_parts([digest])
    assert snapshot(tmp_path) == before


def test_what_a_user_keeps_beside_states_stays(tmp_path):
    (tmp_path / keeper.STATES).mkdir()
    names = {"mine.tmp", ".00000.safetensors.0123456789abcdef.scoremode-tmp", "00000.safetensors"}
    for name in names:
        (tmp_path / keeper.STATES / name).write_text("x")
    writer = keeper_of(tmp_path)
    assert {p.name for p in (tmp_path / keeper.STATES).iterdir()} == {
        "mine.tmp",
        "00000.safetensors",
    }
    writer.discard()
    assert [p.name for p in (tmp_path / keeper.STATES).iterdir()] == ["mine.tmp"]

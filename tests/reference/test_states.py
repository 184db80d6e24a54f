"""Files of states: what is written comes back, and what is no such file is refused."""

import os
from hashlib import sha256

import pytest
import torch
from safetensors.torch import save_file

from scoremode.checkpoint.bulk_io import hash_file
from scoremode.errors import ReferenceUnusable
from scoremode.reference import states as states_module
from scoremode.reference.states import (
    begin_of_states,
    create_states,
    digest_rows,
    fill_states,
    read_states,
    write_states,
    write_tensors,
)

STATES = torch.randn(23, 6, generator=torch.Generator().manual_seed(5)).bfloat16()


@pytest.mark.parametrize("parts", [(23,), (1, 22), (8, 8, 7)])
def test_states_are_hashed_as_they_are_written(parts, tmp_path):
    create_states(tmp_path / "a", *STATES.shape, STATES.dtype)
    assert fill_states(tmp_path / "a", STATES.split(parts)) == hash_file(tmp_path / "a")
    assert torch.equal(read_states(tmp_path / "a"), STATES)


def test_rows_have_the_hash_of_what_was_written(tmp_path):
    path, digest = tmp_path / "a", sha256()
    create_states(path, *STATES.shape, STATES.dtype)
    write_states(path, 7, STATES[7:20], digest.update)
    assert digest_rows(path, range(7, 20)) == digest.hexdigest()
    assert digest_rows(path, range(7, 21)) != digest.hexdigest()
    write_states(path, 19, STATES[:1])
    assert digest_rows(path, range(7, 20)) != digest.hexdigest()
    assert digest_rows(path, range(3, 3)) == sha256().hexdigest()


def test_rows_are_written_in_any_order(tmp_path):
    path = tmp_path / "a"
    create_states(path, *STATES.shape, STATES.dtype)
    assert read_states(path).eq(0).all()
    for begin, end in [(20, 23), (0, 7), (7, 20)]:
        write_states(path, begin, STATES[begin:end])
    assert torch.equal(read_states(path), STATES)
    assert path.read_bytes()[begin_of_states(path) :] == STATES.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("at", "states", "words"),
    [
        (0, STATES.float(), "torch.float32"),
        (0, STATES[:, :5], r"\(23, 5\)"),
        (1, STATES, "rows 1 to 23 of 23"),
    ],
    ids=["dtype", "width", "rows"],
)
def test_states_of_another_form_are_not_written(at, states, words, tmp_path):
    """They would lie in others' rows, or behind the last."""
    path = tmp_path / "a"
    create_states(path, *STATES.shape, STATES.dtype)
    with pytest.raises(ValueError, match=words):
        write_states(path, at, states)
    assert read_states(path).eq(0).all()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": STATES}, "states"),
        ({"states": STATES[0].clone()}, r"\[6\] torch.bfloat16 are no states"),
        ({"states": STATES.int()}, r"\[23, 6\] torch.int32 are no states"),
        (None, "a: "),
    ],
    ids=["name", "axes", "dtype", "cut"],
)
def test_what_is_no_file_of_states_is_refused(tensors, words, tmp_path):
    path = tmp_path / "a"
    save_file(tensors or {"states": STATES}, path)
    if tensors is None:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ReferenceUnusable, match=words) as error:
        read_states(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "tensors",
    [
        {"weight": STATES},
        {"weight": STATES, "bias": STATES[:, 0].contiguous()},
        {"weight": STATES, "bias": STATES[:, 0].float(), "other": STATES.double()},
        {"weight": torch.arange(24).view(6, 4).to(torch.float8_e4m3fn)},
    ],
    ids=["one", "two", "dtypes", "fp8"],
)
def test_tensors_are_written_as_safetensors_writes_them(tensors, tmp_path):
    hashes = write_tensors(tmp_path / "a", tensors)
    save_file(tensors, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    data = {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors.items()}
    assert hashes == {name: sha256(part).hexdigest() for name, part in data.items()}


def test_what_is_no_row_after_the_other_is_written_as_if_it_were(tmp_path):
    hashes = write_tensors(tmp_path / "a", {"weight": STATES.T})
    assert hashes == write_tensors(tmp_path / "b", {"weight": STATES.T.contiguous()})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("fails", [False, True])
def test_a_disk_that_fails_while_a_file_is_written_is_heard(fails, tmp_path, monkeypatch):
    """Such a failure is told once: to the syncing meanwhile, and no more to the one at the end."""
    synced, own = [], os.fsync

    def fsync(descriptor):
        synced.append(os.fstat(descriptor).st_size)
        if fails and len(synced) == 1:
            raise OSError(5, "Input/output error")
        own(descriptor)

    monkeypatch.setattr(states_module, "_SYNCED", STATES[:8].nbytes)
    monkeypatch.setattr(os, "fsync", fsync)
    path, parts = tmp_path / "a", STATES.split(4) * 4
    create_states(path, 4 * len(STATES), STATES.shape[1], STATES.dtype)
    if not fails:
        assert fill_states(path, parts) == hash_file(path)
        assert torch.equal(read_states(path), STATES.repeat(4, 1))
        assert synced
        return
    with pytest.raises(OSError, match="Input/output error"):
        fill_states(path, parts)

"""A mixture read as a checkpoint."""

import pytest

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.virtual import Mixture, Taken
from scoremode.errors import CheckpointError


@pytest.fixture
def mixture(demo):
    own, other = (open_checkpoint(str(demo / "model")) for _ in range(2))
    names = frozenset(name for name in other.tensors if ".layers.0." in name)
    modules = frozenset(name.removesuffix(".weight") for name in names)
    return Mixture.of(own, names, [Taken("layers.0", other, True, modules, names)])


def test_tensors_are_read_from_who_has_them(mixture):
    name = next(iter(mixture.taken[0].tensors))
    assert mixture.owners[name] is mixture.taken[0].other
    assert mixture.owners["model.norm.weight"] is mixture.own
    assert mixture.read(name).shape == mixture.tensors[name].shape
    with pytest.raises(CheckpointError, match=r"no tensor model\.x"):
        mixture.read("model.x")
    assert mixture.bytes == mixture.own.bytes and mixture.path == mixture.own.path


def test_its_name_says_what_is_whose(mixture):
    assert mixture.source == f"{mixture.own.source} + layers.0 of model"
    taken = mixture.mixture_json()["taken"]
    assert taken[0]["modules"] == len(mixture.taken[0].modules) and taken[0]["is_base"]
    again = Mixture.of(mixture.own, frozenset(mixture.taken[0].tensors), mixture.taken)
    assert again.fingerprint == mixture.fingerprint != mixture.own.fingerprint


def test_a_part_that_changes_ends_the_run(mixture, monkeypatch):
    mixture.check_unchanged()
    part = mixture.parts[1]
    monkeypatch.setitem(part.opened, next(iter(part.opened)), (0, 0, 0))
    with pytest.raises(CheckpointError, match="was changed or replaced"):
        mixture.check_unchanged()


def test_all_parts_are_hashed(mixture):
    found = mixture.hash_files()
    assert set(found) == {
        "config.json", "model.safetensors",
        *(f"{mixture.taken[0].other.source}/{name}" for name in ("config.json", "model.safetensors")),
    }  # fmt: skip
    assert len(set(found.values())) == 2
    mixture.stop_hashing()

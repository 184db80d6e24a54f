"""Building an engine: what it leaves behind where it fails, and why it would."""

import pytest
from support.engine import make_engine
from support.models import edit_config, edit_tensors, make_checkpoint, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.torch import builder
from scoremode.engines.torch.builder import refusal_of
from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.memory.feeder import Mapped
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import ScoremodeError, UnsupportedModel


@pytest.mark.parametrize("error", [UnsupportedModel("no head"), KeyboardInterrupt()])
def test_what_feeds_an_engine_is_closed_where_building_it_fails(error, tmp_path, monkeypatch):
    closed: list[Mapped] = []

    def fail(*_, **__):
        assert not closed
        raise error

    monkeypatch.setattr(Mapped, "close", lambda feeds: closed.append(feeds))
    monkeypatch.setattr(builder, "build_head", fail)
    with pytest.raises(type(error)):
        make_engine(make_checkpoint(tmp_path / "m", "llama"))
    assert len(closed) == 1


def test_an_engine_that_is_built_keeps_its_feeds_until_it_is_closed(tmp_path, monkeypatch):
    closed: list[Mapped] = []
    monkeypatch.setattr(Mapped, "close", lambda feeds: closed.append(feeds))
    engine = make_engine(make_checkpoint(tmp_path / "m", "llama"))
    assert not closed and engine.describe()["seconds"]["load"] > 0
    engine.close()
    assert len(closed) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: edit_tensors(folder, lambda t: t.pop("model.norm.weight")),
        lambda folder: edit_config(folder, hidden_act="swishy"),
        lambda folder: edit_config(folder, num_hidden_layers=1000),
    ],
    ids=["tensor", "config", "layers"],
)
def test_what_would_be_refused_is_said_without_a_weight_in_the_engines_words(
    damage, tmp_path, monkeypatch
):
    folder, device = make_checkpoint(tmp_path / "m", "llama"), choose_device("cpu", None, None)
    with monkeypatch.context() as patch:
        patch.setattr(builder, "Slot", None)
        assert refusal_of(open_checkpoint(str(folder)), device) is None
    damage(folder)
    with pytest.raises(ScoremodeError) as error:
        make_engine(folder)
    assert refusal_of(open_checkpoint(str(folder)), device) == str(error.value)


def test_weights_are_placed_with_the_longest_window_in_mind(tmp_path, monkeypatch):
    """As a run makes its engine and its base's."""
    seen = []
    own = builder.place

    def note(*args, longest, **kwargs):
        seen.append(longest)
        return own(*args, longest=longest, **kwargs)

    monkeypatch.setattr(builder, "place", note)
    checkpoint = open_checkpoint(str(make_checkpoint(tmp_path / "m", "llama")))
    options = TorchOptions(device="cpu")
    options.make(checkpoint, None, random_plan(20, windows=2, tail=6), lambda _: None).close()
    options.make_base(checkpoint, None, 30).close()
    assert seen == [20, 30]

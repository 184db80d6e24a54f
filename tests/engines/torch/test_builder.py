"""Building an engine: what it leaves behind where it fails."""

import pytest
from engine_helpers import make_engine
from models import make_checkpoint

from scoremode.engines.torch import builder
from scoremode.engines.torch.memory.feeder import Mapped
from scoremode.errors import UnsupportedModel


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

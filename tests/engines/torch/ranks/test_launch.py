"""Ranks as processes that the first one starts: what they are told, and how one that ends is seen."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from support.waiting import wait_for

from scoremode.engines.torch.ranks import places
from scoremode.engines.torch.ranks.places import PLACE, Others, place_of


@pytest.fixture
def program(tmp_path, monkeypatch) -> Path:
    """Takes the place of Python: leaves what it was told, and ends with code 3 when there is a file."""
    file = tmp_path / "program"
    file.write_text(
        f"#!{sys.executable}\nimport json, os, time\nfrom pathlib import Path\n"
        f"place = os.environ[{PLACE!r}]\nhere = Path({str(tmp_path)!r})\n"
        "rank = json.loads(place)['rank']\n"
        "(here / f'{rank}.tmp').write_text(place)\n(here / f'{rank}.tmp').rename(here / str(rank))\n"
        "while not (here / f'end{rank}').exists(): time.sleep(0.01)\n"
        "raise SystemExit('no luck')\n"
    )
    file.chmod(0o755)
    monkeypatch.setattr(places.sys, "executable", str(file))
    return tmp_path


def test_each_knows_its_place_and_one_that_ends_is_named(program, monkeypatch):
    signals: list[int] = []
    monkeypatch.setattr(places.signal, "pthread_kill", lambda _, number: signals.append(number))
    others = Others(["ppl", "model"], 3)
    try:
        wait_for(lambda: (program / "1").exists() and (program / "2").exists())
        for rank in (1, 2):
            place = place_of({PLACE: (program / str(rank)).read_text()})
            assert place is not None and place.starts_others and not place.spans_nodes
            assert (place.rank, place.local, place.size, place.here) == (rank, rank, 3, 3)
            assert place.port == others.place.port and place.key == others.place.key
            assert json.loads((program / str(rank)).read_text())["pipe"] is not None
        assert others.ended is None
        (program / "end2").touch()
        wait_for(lambda: others.ended)
        what = "its process ended with exit code 1 and without a result: no luck"
        assert others.ended == (2, what)
        wait_for(lambda: signals == [signal.SIGTERM])
    finally:
        others.end(at_once=True)
    with pytest.raises(ProcessLookupError):
        os.killpg(others._leaders[0].pid, 0)

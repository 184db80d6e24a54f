"""Places: the user's before the record's, and the hub only where it is asked for."""

from pathlib import Path

import pytest

from scoremode.runs.check.sources import Sources, Unreachable

COMMIT = "ab" * 20
HUB = {"source": f"hub:org/model@{COMMIT}", "path": "/gone/snapshots"}


def test_the_users_place_comes_before_the_records(tmp_path):
    section = {"source": "model", "path": str(tmp_path)}
    assert Sources().checkpoint(section, None, "--model") == str(tmp_path)
    assert Sources().checkpoint(section, "elsewhere", "--model") == "elsewhere"
    with pytest.raises(Unreachable, match="no /gone/model here: --model PATH says where it lies"):
        Sources().checkpoint({"source": "m", "path": "/gone/model"}, None, "--model")


def test_the_hub_is_asked_for_the_records_commit_and_only_with_fetch(monkeypatch):
    asked = []

    def locate(name, revision):
        asked.append((name, revision))
        return Path("/cache/model"), name

    monkeypatch.setattr("scoremode.runs.check.sources.locate", locate)
    with pytest.raises(Unreachable, match=f"--fetch gets hub:org/model@{COMMIT} from the hub"):
        Sources().checkpoint(HUB, None, "--model")
    assert asked == []
    assert Sources(fetch=True).checkpoint(HUB, None, "--model") == "/cache/model"
    assert asked == [("org/model", COMMIT)]


def test_a_tokenizer_lies_in_the_model_unless_it_has_a_place_of_its_own(tmp_path):
    record = {"tokenizer": {"source": "/gone/m"}, "checkpoint": {"source": "m", "path": "/gone/m"}}
    assert Sources(model="here").tokenizer_of(record) == "here"
    assert Sources(model="here", tokenizer="there").tokenizer_of(record) == "there"
    record["tokenizer"]["source"] = str(tmp_path)
    assert Sources(model="here").tokenizer_of(record) == str(tmp_path)
    record["tokenizer"]["source"] = "/gone/other"
    with pytest.raises(Unreachable, match="--tokenizer PATH says where it lies"):
        Sources().tokenizer_of(record)

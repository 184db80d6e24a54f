"""Places: the user's before the record's, and the hub only where it is asked for."""

from pathlib import Path

import pytest
from msgspec import UNSET

from scoremode.checkpoint.model_files import ModelFiles
from scoremode.results.record.model import Reference, ReferenceCheckpoint, Tokenizer
from scoremode.runs.check.inputs import Sources, Unreachable

COMMIT = "ab" * 20


def of(source, path=UNSET):
    return ReferenceCheckpoint(source=source, path=path, fingerprint="f")


def tokenizer(source):
    return Tokenizer(source=source, sha256="0", size=1)


HUB = of(f"hub:org/model@{COMMIT}", "/gone/snapshots")


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    for name in ("here", "there", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)


def test_the_users_place_comes_before_the_records(tmp_path):
    section = of("model", str(tmp_path))
    assert str(Sources().checkpoint(section, None, "--model")) == str(tmp_path)
    assert str(Sources().checkpoint(section, "elsewhere", "--model")) == "elsewhere"
    with pytest.raises(Unreachable, match="no /gone/model here: --model PATH says where it lies"):
        Sources().checkpoint(of("m", "/gone/model"), None, "--model")


def test_the_hub_is_asked_for_the_records_commit_and_only_with_fetch(monkeypatch):
    asked = []

    def resolve_model(name, revision):
        asked.append((name, revision))
        return ModelFiles(name, Path("/cache/model"), name, name, revision)

    monkeypatch.setattr("scoremode.runs.check.inputs.resolve_model", resolve_model)
    with pytest.raises(Unreachable, match=f"--fetch gets hub:org/model@{COMMIT} from the hub"):
        Sources().checkpoint(HUB, None, "--model")
    assert asked == []
    sources = Sources(fetch=True)
    for _ in range(2):
        assert sources.checkpoint(HUB, None, "--model").path == Path("/cache/model")
    assert asked == [("org/model", COMMIT)]


def test_a_tokenizer_lies_in_the_model_unless_it_has_a_place_of_its_own(tmp_path):
    checkpoint = of("m", "/gone/m")
    for own in (tokenizer("/gone/m"), tokenizer("m")):
        assert Sources(model="here").tokenizer_of(own, checkpoint).name == "here"
        other = Sources(model="here", tokenizer="there").tokenizer_of(own, checkpoint)
        assert other.name == "there"
        found = of(own.source, str(tmp_path))
        assert Sources().tokenizer_of(own, found).path == tmp_path
    own = tokenizer(str(tmp_path))
    assert Sources(model="here").tokenizer_of(own, checkpoint).path == tmp_path
    assert Sources(model="here").tokenizer_of(tokenizer("/gone/x"), checkpoint).name == "here"
    with pytest.raises(Unreachable, match="--tokenizer PATH says where it lies"):
        Sources().tokenizer_of(tokenizer("/gone/other"), checkpoint)


def test_a_bases_tokenizer_lies_in_the_base(tmp_path):
    base = of("b", str(tmp_path))
    sources = Sources(model="m", tokenizer="t")
    assert sources.tokenizer_of(tokenizer("b"), base, is_base=True).path == tmp_path


def test_relative_places_are_where_the_command_ran(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Sources().at("text.txt") == Sources(directory=str(tmp_path)).at("text.txt") == "text.txt"
    assert Sources(directory="/elsewhere").at("text.txt") == "/elsewhere/text.txt"
    assert Sources(directory="/elsewhere").at("/a/text.txt") == "/a/text.txt"
    assert Sources(directory="/elsewhere").base(Reference(source="kept")) == Path("/elsewhere/kept")
    section = of("m", "m")
    (tmp_path / "m").mkdir()
    monkeypatch.chdir("/")
    files = Sources(directory=str(tmp_path)).checkpoint(section, None, "")
    assert files.path == tmp_path / "m"

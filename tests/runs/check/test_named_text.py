"""Where an audit finds a named text again."""

import json

import pytest
from support.records import of_sections

from scoremode.errors import UsageError
from scoremode.runs.check.inputs import Sources, Unreachable, text_flags
from scoremode.runs.texts import read_text


def named_corpus(section, sources):
    rest = {
        "rows": 1100,
        "row_limit": 1100,
        "text": {"rule": "rows", "bytes": 1, "sha256": 64 * "0"},
    }
    return read_text(text_flags(of_sections(corpus=rest | section), sources))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "c4.jsonl").write_text((json.dumps({"text": "a", "url": "u"}) + "\n") * 1100)
    return tmp_path / "c4.jsonl"


def test_a_local_copy_is_read_where_it_lay_or_where_it_lies_now(file, tmp_path):
    section = {"preset": "c4-gptq", "name": "c4-gptq", "source": str(file)}
    assert named_corpus(section, Sources()).rows == ("a",) * 1100
    grouped = named_corpus(section | {"group_by": "url"}, Sources())
    assert grouped.labels == ("u",) * 1100
    file.rename(tmp_path / "moved.jsonl")
    with pytest.raises(Unreachable, match=r"there is no .*c4\.jsonl here: --file PATH"):
        named_corpus(section, Sources())
    assert named_corpus(section, Sources(files=(tmp_path / "moved.jsonl",))).rows == ("a",) * 1100


def test_the_hub_is_asked_only_where_it_may_be(file):
    section = {"preset": "c4-gptq", "name": "c4-gptq", "source": "hub:allenai/c4@" + 40 * "a"}
    with pytest.raises(Unreachable, match="--fetch gets it from the hub"):
        named_corpus(section, Sources())
    assert named_corpus(section, Sources(files=(file,))).source == str(file)


def test_a_name_of_another_release(file):
    with pytest.raises(UsageError, match="no text has that name"):
        named_corpus({"preset": "c5", "name": "c5", "source": str(file)}, Sources())

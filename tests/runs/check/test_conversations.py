"""A run of conversations, audited: what was made of its data set, template and tokenizer."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.chats.runs import TEMPLATE
from support.records import typed

from scoremode.results.audit.findings import Findings
from scoremode.results.folders.store import read_record
from scoremode.runs.check.check import Rerun, check
from scoremode.runs.check.inputs import Sources
from scoremode.runs.check.text import audited_plan
from scoremode.text.protocol import preset


@pytest.fixture
def place(chats, tmp_path) -> Path:
    """One that a test may spoil; the record names the first one's paths, so sources are given."""
    return Path(shutil.copytree(chats, tmp_path / "made"))


def audited(place: Path, change: Callable[[dict], None] = lambda _: None, **more: Any) -> dict:
    """Name → (status, words) of the findings on conversations and on the plan."""
    record = read_record(place / "run")
    change(record)
    sources = Sources(model=str(place / "model"), files=(place / "chats.jsonl",))
    findings = Findings()
    audited_plan(typed(record), replace(sources, **more), findings)
    return {f"{f.part} {f.name}": (f.status, f.words) for f in findings.found}


def test_a_sound_run_holds_in_every_part(chats):
    result = check([chats / "run"], Sources(), Rerun(str(chats / "model"), share=0.4))
    wrong = [f for f in result["runs"][0]["findings"] if f["status"] != "held"]
    assert wrong == []
    names = {f"{f['part']} {f['name']}" for f in result["runs"][0]["findings"]}
    assert {
        "conversations sha256",
        "conversations chat template",
        "conversations tokens that end a turn",
        "conversations bad_rows",
        "conversations turns",
        "plan token ids of the text",
        "scores.parquet conversation",
        "scores.parquet label",
        "scores.parquet turn_place",
        "second run scores",
    } <= names


def spoil(path: str, value: Any) -> Callable[[dict], None]:
    def change(record: dict) -> None:
        *names, last = path.split(".")
        section = record["corpus"]["conversations"]
        for name in names:
            section = section[name]
        section[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        ("turns", 9, "conversations turns"),
        ("bad", ["nothing"], "conversations bad"),
        ("ends", [1, 2], "conversations tokens that end a turn"),
        ("template.sha256", 64 * "0", "conversations chat template"),
    ],
)
def test_a_record_that_says_otherwise_is_wrong(place, path, value, name):
    assert audited(place)[name][0] == "held"
    assert audited(place, spoil(path, value))[name][0] == "wrong"


def test_another_data_set_is_wrong_and_none_unchecked(place):
    text = (place / "chats.jsonl").read_text()
    (place / "chats.jsonl").write_text(text.replace("Answer", "Reply"))
    assert audited(place)["conversations sha256"][0] == "wrong"
    found = audited(place, files=(place / "none.jsonl",))
    assert found["conversations sha256"][0] == "unchecked"
    assert found["plan token ids"] == ("unchecked", "needs the data set")


def test_a_copy_by_another_name_is_the_data_set(place):
    shutil.copy(place / "chats.jsonl", place / "copy.jsonl")
    found = audited(place, files=(place / "copy.jsonl",))
    assert found["conversations name"][0] == "unchecked"
    assert found["conversations sha256"][0] == found["conversations bad"][0] == "held"


def test_another_template_is_wrong_and_one_that_was_given_may_be_elsewhere(place):
    (place / "model" / "chat_template.jinja").write_text(TEMPLATE + " ")
    assert audited(place)["conversations chat template"][0] == "wrong"

    def gone(record: dict) -> None:
        spoil("template.given", True)(record)
        spoil("template.source", "gone.jinja")(record)

    found = audited(place, gone)
    status, words = found["conversations chat template"]
    assert status == "unchecked" and "had" in words
    assert found["plan token ids"] == ("unchecked", "needs the chat template")


def test_a_template_that_was_given_is_read_where_it_lay(place, tmp_path):
    file = tmp_path / "t.jinja"
    shutil.move(place / "model" / "chat_template.jinja", file)

    def change(record: dict) -> None:
        spoil("template.given", True)(record)
        spoil("template.source", str(file))(record)

    assert audited(place, change)["conversations chat template"][0] == "held"


@pytest.mark.parametrize("day", ["yesterday", "2025-13-01"])
def test_a_day_that_is_none_is_not_checked(place, day):
    assert audited(place, spoil("template.date", day))["conversations sha256"][0] == "unchecked"


def test_a_protocol_of_texts_has_no_conversations(place):
    def other(record: dict) -> None:
        record["protocol"] = preset("disjoint").resolve(None).to_json()

    assert audited(place, other)["plan token ids"][0] == "wrong"


def test_a_label_that_is_not_the_data_set_s_is_wrong(place):
    """Its scores say one group, its data set another."""
    rows = [json.loads(line) for line in (place / "chats.jsonl").read_text().splitlines()]
    rows[1]["domain"] = "other"
    (place / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = check(
        [place / "run"],
        Sources(model=str(place / "model"), files=(place / "chats.jsonl",)),
    )
    found = {f"{f['part']} {f['name']}": f for f in result["runs"][0]["findings"]}
    assert found["scores.parquet label"]["status"] == "wrong"
    assert "has code, and the text gives other (" in found["scores.parquet label"]["words"]

"""Data sets of conversations, and their windows by a template."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.chats.templates import CHATS, SHAPES
from support.fake_hub import COMMIT, Repo, call, serve

from scoremode.errors import CorpusError, TokenizerError, UsageError
from scoremode.text.conversations.corpus import Conversations, from_conversations_file
from scoremode.text.conversations.template import ChatTemplate
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.rows import drawn_rows
from scoremode.text.tokenizer import Tokenizer, load_tokenizer

ROWS: list[dict[str, Any]] = [
    CHATS["two turns"] | {"domain": "math"},
    {"prompt": "1 + 1 =", "completion": " 2", "domain": "math"},
    CHATS["one turn"] | {"domain": "talk"},
]


def by_window(plan: Plan) -> list[str]:
    """The label of each window, whose targets have the same."""
    assert plan.labels is not None
    found = [set(plan.labels.at(plan.start[w] + plan.positions(w))) for w in range(len(plan))]
    assert all(len(labels) == 1 for labels in found)
    return [label for labels in found for label in labels]


@pytest.fixture(scope="module")
def tokenizer(data) -> Tokenizer:
    return load_tokenizer(data / "tokenizers" / "qwen2")


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path) -> Path:
    return lines(tmp_path / "chats.jsonl", ROWS)


def planned(chats: Conversations, tokenizer: Tokenizer, shape: str = "chatml", **changes: Any):
    ends = frozenset({tokenizer.backend.token_to_id("<|im_end|>")})
    rules = preset("chat").override(**changes).resolve(None)
    return chats.planned(rules, tokenizer, ChatTemplate(shape, SHAPES[shape]), ends)


def said(tokenizer: Tokenizer, plan, w: int) -> str:
    places = plan.start[w] + plan.positions(w)
    return tokenizer.backend.decode(plan.tokens[places].tolist(), skip_special_tokens=False)


def test_a_window_is_a_conversation(file, tokenizer):
    chats = from_conversations_file(file)
    talk = planned(chats, tokenizer)
    plan = talk.plan
    assert plan.conversation is not None and plan.conversation.tolist() == [0, 1, 2]
    assert said(tokenizer, plan, 1) == " 2"
    assert said(tokenizer, plan, 0) == "Hello! \u00e9\U0001f9994".replace(
        "4", "<|im_end|>4<|im_end|>"
    )
    assert plan.scored == sum(plan.counts) == len(plan.targets()[0])
    assert talk.facts["read"] == 3 and talk.facts["turns"] == 4
    # A window is one text: its first tokens begin the conversation, its last end it.
    assert (plan.start[1:] == plan.stop[:-1]).all()


def test_what_was_read_is_told(file):
    made = from_conversations_file(file).to_json()
    digest = sha256(file.read_bytes()).hexdigest()
    assert made["rows"] == 3 and made["source"] == str(file) and made["source_sha256"] == digest
    assert made["name"] == "chats.jsonl" and made["row_limit"] is None


def test_parquet_and_lines_are_the_same_conversations(file, tmp_path, tokenizer):
    # Arrow has one type a column: the pair has no messages.
    rows = [{k: row.get(k) for k in ("messages", "prompt", "completion")} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    plans = [
        planned(from_conversations_file(path), tokenizer).plan
        for path in (file, tmp_path / "chats.parquet")
    ]
    assert plans[0].sha256 == plans[1].sha256


def test_the_first_rows_alone(file, tokenizer):
    chats = from_conversations_file(file).limited_to(2)
    assert planned(chats, tokenizer).facts["read"] == 2 and chats.to_json()["row_limit"] == 2
    with pytest.raises(UsageError, match="--num-samples 0: must be at least 1"):
        chats.limited_to(0)


def test_drawn_rows_keep_their_numbers_in_the_data_set(tmp_path, tokenizer):
    rows = [CHATS["one turn"] | {"domain": f"d{i}"} for i in range(12)]
    rows[5] = {"messages": []}
    file = lines(tmp_path / "chats.jsonl", rows)
    chats = from_conversations_file(file, group_by="domain", skip_bad_rows=1)
    drawn = chats.limited_to(6, seed=2)
    numbers = drawn_rows(range(12), 6, 2)
    assert 5 in numbers and numbers != list(range(6))
    plan = planned(drawn, tokenizer).plan
    assert plan.conversation is not None
    assert plan.conversation.tolist() == [row for row in numbers if row != 5]
    assert by_window(plan) == [f"d{row}" for row in plan.conversation]
    assert plan.arranged().draws == 5
    # Of fewer of them the numbers are still the data set's.
    again = planned(drawn.limited_to(2), tokenizer).plan
    assert again.conversation is not None and again.conversation.tolist() == numbers[:2]
    first = planned(chats.limited_to(2), tokenizer).plan
    assert first.conversation is not None and first.conversation.tolist() == [0, 1]


def test_groups_are_by_a_field(file, tokenizer):
    chats = from_conversations_file(file, group_by="domain")
    assert by_window(planned(chats, tokenizer).plan) == ["math", "math", "talk"]


def test_the_same_windows_whatever_groups_they_are_in(file, tokenizer):
    chats = from_conversations_file(file)
    grouped = replace(chats, group_by="domain")
    assert planned(chats, tokenizer).plan.sha256 == planned(grouped, tokenizer).plan.sha256


def test_the_template_is_given_its_arguments(file, tokenizer):
    chats = from_conversations_file(file, arguments={"enable_thinking": False})
    facts = planned(chats, tokenizer, "thinking").facts
    assert facts["template"]["arguments"] == {"enable_thinking": False}
    assert facts["template"]["sha256"] == sha256(SHAPES["thinking"].encode()).hexdigest()


def test_which_targets_count_is_the_plan(file, tokenizer):
    chats = from_conversations_file(file)
    plans = {
        s: planned(chats, tokenizer, scored=s).plan for s in ("assistant", "completion", "all")
    }
    assert len({plan.sha256 for plan in plans.values()}) == 3
    everything = plans["all"]
    # Every token but the first of each window.
    assert everything.scored == len(everything.tokens) - 3
    assert [len(said(tokenizer, plans[s], 0)) for s in ("completion", "assistant")] == [11, 30]


def test_a_text_of_them_there_is_not(file):
    with pytest.raises(CorpusError, match="holds conversations, which are no one text"):
        from_conversations_file(file).text("rows")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "x.csv",
            "a,b\n",
            r"x\.csv: a data set of conversations is \.jsonl, \.jsonl\.gz or \.parquet",
        ),
        ("x.jsonl", "", r"x\.jsonl: no rows"),
        ("x.jsonl", "{", r"x\.jsonl: line 1 is not JSON"),
        ("x.parquet", "no", r"x\.parquet: not a readable Parquet file"),
    ],
)
def test_what_is_no_data_set_of_conversations(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(CorpusError, match=words):
        from_conversations_file(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CorpusError, match="No such file"):
        from_conversations_file(tmp_path / "x.jsonl")


BAD = [
    {"domain": "math"},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]},
    {"messages": [{"role": "user", "content": "only this"}]},
    {"prompt": "a", "completion": ""},
    {"messages": [{"role": "mute", "content": "a"}, {"role": "assistant", "content": "b"}]},
]
REASONS = [
    "line 1: has domain: a conversation is messages",
    "line 2, message 1: the assistant says nothing",
    "line 4: no message of it is the assistant's",
    "line 5: no token of it is a target",
    "line 6: t: its chat template refuses: mute people",
]
MUTE = "{% for m in messages %}{% if m.role == 'mute' %}{{ raise_exception('mute people') }}{% endif %}"


def spoil(folder: Path) -> Path:
    """Four bad rows and a blank line before the good ones."""
    path = lines(folder / "chats.jsonl", [*BAD, *ROWS])
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*rows[:2], "\n", *rows[2:]]))
    return path


def mute(chats: Conversations, tokenizer: Tokenizer):
    jinja = MUTE + "{{ m.role }} {{ m.content }} {% endfor %}"
    rules = preset("chat").resolve(None)
    return chats.planned(rules, tokenizer, ChatTemplate("t", jinja), frozenset())


def test_bad_rows_are_named_with_their_lines_and_counted(tmp_path, tokenizer):
    chats = from_conversations_file(spoil(tmp_path))
    with pytest.raises(CorpusError) as caught:
        mute(chats, tokenizer)
    assert str(caught.value).count("chats.jsonl, line ") == 3 and "\n" not in str(caught.value)
    assert all(reason in str(caught.value) for reason in REASONS[:3])
    assert str(caught.value).endswith("; 2 more bad rows (--skip-bad-rows 5 leaves them out)")
    with pytest.raises(CorpusError, match="skip-bad-rows 5"):
        mute(replace(chats, skip_bad_rows=4), tokenizer)


def test_so_many_as_are_allowed_are_left_out(tmp_path, tokenizer):
    chats = from_conversations_file(spoil(tmp_path), skip_bad_rows=5)
    talk = mute(chats, tokenizer)
    assert talk.plan.conversation is not None and talk.plan.conversation.tolist() == [5, 5, 6, 7]
    facts = talk.facts
    assert (facts["read"], facts["bad_rows"], facts["lost"]) == (8, 5, 0)
    assert all(reason in line for reason, line in zip(REASONS, facts["bad"], strict=True))
    # The turns of what is left out don't count.
    good = mute(from_conversations_file(lines(tmp_path / "good.jsonl", ROWS)), tokenizer)
    assert good.facts["turns"] == facts["turns"]
    assert good.plan.sha256 == talk.plan.sha256


def test_a_row_without_its_group_is_a_bad_one(tmp_path, tokenizer):
    file = lines(tmp_path / "chats.jsonl", [*ROWS, {"prompt": "a", "completion": " b"}])
    chats = from_conversations_file(file, group_by="domain")
    with pytest.raises(CorpusError, match="line 4: domain is 'None', which names no group") as no:
        planned(chats, tokenizer)
    assert str(no.value).endswith("(--skip-bad-rows 1 leaves it out)")
    talk = planned(replace(chats, skip_bad_rows=1), tokenizer)
    assert by_window(talk.plan) == ["math", "math", "talk"] and talk.facts["bad_rows"] == 1


def test_a_template_that_is_none_is_no_row_s_fault(file, tokenizer):
    rules = preset("chat").resolve(None)
    chats = from_conversations_file(file, skip_bad_rows=99)
    with pytest.raises(TokenizerError, match=r"^t: its chat template is not one"):
        chats.planned(rules, tokenizer, ChatTemplate("t", "{% if %}"), frozenset())


def test_the_first_windows_alone_and_a_drawn_order(file, tokenizer):
    chats = from_conversations_file(file)
    few = planned(chats, tokenizer, max_windows=2).plan
    assert len(few) == 2 and few.conversation is not None and few.conversation.tolist() == [0, 1]
    whole = planned(chats, tokenizer).plan
    drawn = planned(chats, tokenizer, stop_when="ppl±1%", seed=3).plan
    assert drawn.in_text_order().sha256 == whole.sha256 != drawn.sha256


SCRIPT = """
import json
from scoremode.errors import CorpusError
from scoremode.text.conversations.corpus import from_conversations_hub

found = from_conversations_hub("lab/chats", None, split="test", revision=None, group_by="domain")
try:
    from_conversations_hub("lab/none", None, split="test", revision=None)
except CorpusError as error:
    print(json.dumps(found.to_json() | {
        "size": found.size, "error": str(error), "kinds": [type(chat).__name__ for chat in found.chats],
        "last": found.chats[-1].line,
    }))
"""


def test_a_data_set_of_the_hub(tmp_path):
    """Its rows are called by their file and line there."""
    data = "".join(json.dumps(row) + "\n" for row in [*ROWS, {"messages": []}]).encode()
    with serve({"datasets/lab/chats": Repo({"test.jsonl": data})}) as hub:
        made = call(hub.endpoint, tmp_path / "home", SCRIPT)
    assert made["source"] == f"hub:lab/chats@{COMMIT}" and made["name"] == "lab/chats test"
    assert made["rows"] == 4 and made["size"] == len(data)
    assert made["source_sha256"] == sha256(data).hexdigest()
    assert made["kinds"] == [*3 * ["Conversation"], "BadRow"]
    assert made["last"].startswith("lab/chats/test.jsonl, line 4: messages is")
    assert made["error"].endswith("give a local copy with --conversations")

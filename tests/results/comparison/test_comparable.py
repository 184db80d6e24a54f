"""What runs must share to be compared, and what else differs between them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.run_folders import scores_of

from scoremode.errors import ReferenceUnusable, RunFolderError
from scoremode.results.comparison.comparable import check_same_plan, not_held_out
from scoremode.results.comparison.ranking import ranking
from scoremode.results.scores import Scores

REFUSED = {
    "protocol.stride": (32, "protocol's stride 32 and 64"),
    "protocol.context_length": (128, "protocol's context_length 128 and 64"),
    "protocol.average": ("hf-guide", "protocol's average hf-guide and None"),
    "plan.window_bos": (3, "BOS of windows 3 and None"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_another_measurement_is_refused_and_the_field_named(field, one, written):
    value, said = REFUSED[field]
    # Another text, or another tokenizer, comes with other token ids.
    ids = {} if field.startswith(("plan", "protocol")) else {"plan.tokens_sha256": "x"}
    other = one(ids | {field: value})
    with pytest.raises(RunFolderError, match="are not comparable: ") as refused:
        ranking([other, written["W8A16"]])
    assert str(refused.value).endswith(said)
    assert f"{other} and {written['W8A16']}" in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corpus.text.sha256": "x", "corpus.name": "c4.txt"}, "text c4.txt and made.txt"),
        ({"corpus.text.sha256": "x", "corpus.text.bytes": 9},
         "text made.txt (9 bytes) and made.txt (5,000 bytes)"),
        ({"corpus.text.sha256": "x"}, f"text made.txt (sha256 x) and made.txt (sha256 {'7e' * 6})"),
        ({"plan.tokens": 9}, "token ids 9 tokens and 11,968 tokens"),
        ({"tokenizer.sha256": "x"}, "tokenizer models/one and models/W8A16"),
        ({"protocol.stride": 32, "protocol.name": "mine"},
         "protocol's stride 32 and 64 (protocols mine and disjoint+context-length=64)"),
    ],
)  # fmt: skip
def test_what_differs_is_said_in_words_and_a_hash_only_where_nothing_else_tells(
    changes, said, one, written
):
    ids = {} if "protocol.stride" in changes else {"plan.tokens_sha256": "x"}
    with pytest.raises(RunFolderError) as refused:
        ranking([one(ids | changes), written["W8A16"]])
    assert str(refused.value).endswith(f" are not comparable: {said}")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("template.sha256", "b", "chat template is own (sha256 b), this run's own (sha256 a)"),
        ("template.arguments", {"x": 1}, "values for the chat template is {'x': 1}, this run's {}"),
        ("template.date", "2025-01-01", "chat template's day is 2025-01-01, this run's None"),
        ("ends", [2, 3], "tokens that end a turn is [2, 3], this run's [2]"),
    ],
)
def test_what_differs_of_conversations_is_named(field, value, said):
    def record(chats, plan):
        corpus = {"text": {"sha256": "t"}, "conversations": chats}
        return {"plan": {"sha256": plan, "tokens_sha256": plan}, "corpus": corpus, "protocol": {}}

    def chats():
        return {
            "template": {"source": "own", "sha256": "a", "arguments": {}, "date": None},
            "ends": [2],
        }

    other = chats()
    *names, last = field.split(".")
    (other[names[0]] if names else other)[last] = value
    check_same_plan(record(chats(), "p"), record(other, "p"), "base")
    with pytest.raises(ReferenceUnusable) as refused:
        check_same_plan(record(chats(), "p"), record(other, "q"), "base")
    assert str(refused.value) == f"base: is of another plan: its {said}"


def test_other_windows_of_one_text_are_refused(one, written):
    columns = scores_of(0.3).columns()
    fewer = {name: column[columns["window"] < 200] for name, column in columns.items()}
    with pytest.raises(RunFolderError, match="number of windows 200 and 249"):
        ranking([one(scores=Scores.from_columns(fewer)), written["W8A16"]])


def test_the_protocol_s_field_is_named_before_the_others(one, written):
    changes = {field: value for field, (value, _) in REFUSED.items() if field != "protocol.stride"}
    other = one(changes)
    with pytest.raises(RunFolderError, match="protocol's context_length 128 and 64"):
        ranking([other, written["W8A16"]])


def test_another_softmax_width_is_refused(one, written):
    with pytest.raises(RunFolderError, match=r"entries of the softmax 12 and 13$"):
        ranking([written["W8A16"], one({"engine.vocabulary": 13})])


def test_another_name_of_the_protocol_and_another_tokenizer_file_are_not(one, written):
    other = one({"protocol.name": "mine", "tokenizer.sha256": "x"})
    value = ranking([written["W8A16"], other])
    assert [d["field"] for d in value["differing"]] == ["tokenizer sha256"]


def test_scores_of_other_targets_are_refused(one, written):
    scores = scores_of(0.3)
    target = scores.target.copy()
    row = np.flatnonzero(target != scores.top1)[0]
    target[row] = ({0, 1, 2} - {target[row], scores.top1[row]}).pop()
    other = one(scores=replace(scores, target=target))
    with pytest.raises(RunFolderError, match="scores of other targets"):
        ranking([written["W8A16"], other])


def test_what_else_differs_is_noted(one, written):
    other = one({"engine.dtype": "float32", "versions.torch": "9.9", "engine.device.name": "x"})
    value = ranking([written["W8A16"], other, written["W4A16"]])
    fields = {d["field"]: d["values"] for d in value["differing"]}
    assert set(fields) == {"dtype", "version of torch", "device"}
    assert fields["dtype"] == {"bfloat16": ["W8A16", "W4A16"], "float32": ["one"]}


def test_runs_are_noted_by_folder():
    def run(folder, share):
        section = share and SimpleNamespace(share=share, name="c4.jsonl")
        return SimpleNamespace(folder=Path(folder), record=SimpleNamespace(calibration=section))

    runs = [run("a", None), run("b", 0.0101), run("c", 0.01)]
    (note,) = not_held_out(runs)  # pyright: ignore[reportArgumentType]
    assert (
        note
        == "b is not held out: 1.01% of its targets stand in c4.jsonl, too, its calibration text"
    )

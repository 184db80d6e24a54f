"""Requests, prompts and answers on their way between the processes. Needs no vLLM."""

from dataclasses import MISSING, fields
from types import SimpleNamespace

import numpy as np
import pytest

from scoremode.engines.vllm.llm import _rows
from scoremode.engines.vllm.prompts import (
    COLUMNS,
    COMPARED,
    FULL,
    KEY,
    Kind,
    Prompt,
    ScoreRequest,
    check_prompts,
    scores_of,
)
from scoremode.errors import EngineError, InvalidMeasurement
from scoremode.head.full import FullScores
from scoremode.results.scores import Comparison


def rows(prompt: Prompt) -> np.ndarray:
    """A right answer."""
    n = len(prompt.expected)
    table = np.zeros((n, len(COLUMNS)), np.float32)
    table[:, 0] = np.arange(prompt.first + 1, prompt.first + 1 + n)
    table[:, 1] = prompt.expected
    table[:, 2] = -1.5
    return table


PROMPT = Prompt(np.array([3, 1, 4, 1, 5], np.int32), None, 1)


def test_a_right_answer_becomes_columns():
    scores = scores_of(rows(PROMPT), PROMPT, Kind())
    assert scores.against is None
    assert scores.target.tolist() == [4, 1, 5] and scores.position.tolist() == [2, 3, 4]
    assert scores.logprob.dtype == np.float32 and scores.target.dtype == np.int32
    given = Prompt(PROMPT.ids, np.array([7, 8, 9, 10, 11], np.int32), 3)
    assert scores_of(rows(given), given, Kind()).target.tolist() == [10, 11]


def test_a_comparison_has_the_columns_of_its_kind():
    kind = Kind(compared=True, extra=("kld_llama_cpp",), full=True)
    table = np.zeros((3, len(kind.columns)), np.float32)
    table[:, : len(COLUMNS)] = rows(PROMPT)
    for i in range(len(kind.columns) - len(COLUMNS)):
        table[:, len(COLUMNS) + i] = i + 1
    against = scores_of(table, PROMPT, kind).against
    assert against is not None
    found = {name: (column[0], str(column.dtype)) for name, column in against.columns().items()}
    assert found == {
        "base_logprob": (1, "float64"),
        "base_top1": (2, "int32"),
        "base_top1_logprob": (3, "float64"),
        "kld": (4, "float64"),
        "kld_reverse": (5, "float64"),
        "tv": (6, "float64"),
        "kld_llama_cpp": (7, "float64"),
        "jsd": (8, "float64"),
        "base_entropy": (9, "float64"),
        "model_entropy": (10, "float64"),
        "topk_sets": (11, "int16"),
        "topk_order": (12, "int8"),
    }
    with pytest.raises(InvalidMeasurement, match="numbers for 3 targets"):
        scores_of(rows(PROMPT), PROMPT, kind)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[1:], "numbers for 3 targets"),
        (lambda t: t[:, 1:], "numbers for 3 targets"),
        (lambda t: t[[0, 0, 1]], "target 4 where 1 was asked"),
        (lambda t: t[::-1], "target 5 where 4 was asked"),
        (lambda t: t + np.eye(6, dtype=np.float32)[0], "position 3 where 2 was asked"),
    ],
)
def test_a_wrong_answer_is_no_measurement(change, message):
    with pytest.raises(InvalidMeasurement, match=message):
        scores_of(change(rows(PROMPT)), PROMPT, Kind())


def test_chosen_tokens_are_scored_after_and_no_others():
    ids, goal = [[1, 2, 3, 4]], [[2, 3, 4, 5]]
    (found,) = check_prompts(
        ids, goal, None, longest=4, entries=100, vocabulary=None, chosen=[[0, 3]]
    )
    assert found.expected.tolist() == [2, 5] and found.positions.tolist() == [1, 4]
    for wrong in ([3, 0], [1, 1], [-1, 2], [4]):
        with pytest.raises(
            EngineError, match="chosen tokens of prompt 0: not rising numbers below 4"
        ):
            check_prompts(ids, goal, None, longest=4, entries=100, vocabulary=None, chosen=[wrong])


def check(prompts, targets=None, first=None, vocabulary=None) -> list[Prompt]:
    return check_prompts(prompts, targets, first, longest=4, entries=100, vocabulary=vocabulary)


def test_good_prompts_are_taken_as_lists_and_arrays():
    one, two = check([[1, 2, 3, 4], np.array([99], np.int64)], [[5, 6, 7, 8], [0]], [3, 0])
    assert one.expected.tolist() == [8] and two.expected.tolist() == [0]
    assert one.ids.dtype == np.int32
    assert check([]) == []
    assert len(check([[1]])[0].expected) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1], []],), "prompt 1 has 0 tokens: 1 to 4 can be scored"),
        (([[1] * 5],), "prompt 0 has 5 tokens"),
        (([[1, 100]],), "id 100 is not one of the vocabulary's 100"),
        (([[1, -1]],), "id -1 is not one"),
        (([[1.5]],), "prompt 0: not a list of token ids"),
        (([[[1]]],), "prompt 0: not a list of token ids"),
        (([[1, 2]], [[1]]), "prompt 0 has 2 tokens and 1 targets"),
        (([[1, 2]], [[1, 100]]), "targets of prompt 0: id 100"),
        (([[1], [2]], [[1]]), "1 targets for 2 prompts"),
        (([[1], [2]], None, [0]), "1 first for 2 prompts"),
        (([[1, 2]], None, [3]), "first 3 of prompt 0: it has 2 tokens"),
        (([[1, 2]], None, [-1]), "first -1 of prompt 0"),
        (([[1, 2]], None, None, 0), "vocabulary 0: the head has 100 entries"),
        (([[1, 2]], None, None, 101), "vocabulary 101"),
        (([[1, 60]], None, None, 50), "target 60 is not among the 50 entries"),
    ],
)
def test_bad_prompts_are_refused_by_name(arguments, message):
    with pytest.raises(EngineError, match=message):
        check(*arguments)


def test_a_list_of_rows_has_one_for_each_prompt():
    for name in ("rows", "places"):
        with pytest.raises(EngineError, match=f"1 {name} for 2 prompts"):
            check_prompts(
                [[1], [2]], None, None, longest=4, entries=100, vocabulary=None, **{name: [3]}
            )


def test_a_prompt_may_have_tokens_that_a_narrow_softmax_has_not():
    """Only what is scored must be among its entries."""
    assert check([[60, 2]], vocabulary=50)[0].expected.tolist() == [2]
    assert check([[1, 60, 3]], first=[1], vocabulary=50)[0].expected.tolist() == [3]


def test_a_request_arrives_as_it_was_sent():
    targets = np.array([5, 0, 2**23], np.int64)
    kind = Kind(700, entropy=False, compared=True, extra=("one", "other"), full=True, kept=True)
    sent = ScoreRequest(targets, 2, 30, 5, kind).to_extra()
    assert sent[KEY]["targets"] == b"\5\0\0\0\0\0\0\0\0\0\x80\0"
    # As MessagePack leaves them.
    sent[KEY]["extra"] = list(sent[KEY]["extra"])
    got = ScoreRequest.from_extra(sent)
    assert got.targets is not None and np.array_equal(got.targets, targets)
    assert (got.first, got.row, got.place, got.kind) == (2, 30, 5, kind)


@pytest.mark.parametrize("extra", [None, {}, {"other": 1}, ScoreRequest().to_extra()])
def test_a_request_without_wishes_scores_all_of_the_prompt(extra):
    got = ScoreRequest.from_extra(extra)
    assert (got.targets, got.first, got.row, got.place, got.kind) == (None, 0, 0, 0, Kind())


def test_chosen_tokens_arrive_as_they_were_sent():
    sent = ScoreRequest(None, chosen=np.array([2, 5], np.int64)).to_extra()
    got = ScoreRequest.from_extra(sent).chosen
    assert got is not None and got.tolist() == [2, 5] and got.dtype == np.dtype("<i4")


def test_a_plain_request_is_small():
    """It travels with every prompt."""
    assert ScoreRequest().to_extra() == {KEY: {}}


def test_a_request_can_not_name_files():
    """Whoever may ask a server could name any: paths reach the workers by another way."""
    for field in ("reference", "path", "keep"):
        with pytest.raises(TypeError, match=field):
            ScoreRequest.from_extra({KEY: {field: "/etc/passwd"}})


def test_the_columns_of_a_comparison_are_those_of_the_scores():
    """One that is missing here would be missing from a run through vLLM, and nowhere else."""
    assert tuple(f.name for f in fields(FullScores)) == FULL
    assert tuple(f.name for f in fields(Comparison) if f.default is MISSING) == COMPARED


IDS = np.array([3, 1, 4, 1], np.int32)
# Position 0 has none; 1 and 3 have the target and the likeliest, 2 is the likeliest itself.
FLAT = SimpleNamespace(
    start_indices=[0, 0, 2, 3],
    end_indices=[0, 2, 3, 5],
    ranks=[7, 1, 1, 1, 2],
    token_ids=[1, 9, 4, 8, 1],
    logprobs=[-5.0, -0.5, -0.25, -0.1, -2.0],
)


def test_rows_are_of_the_targets_and_the_likeliest():
    rows = _rows(FLAT, IDS, np.arange(1, 4))
    assert np.isnan(rows[:, 3]).all()
    assert rows[:, [0, 1, 2, 4, 5]].tolist() == [
        [1, 1, -5.0, 9, -0.5],
        [2, 4, -0.25, 4, -0.25],
        [3, 1, -2.0, 8, -0.1],
    ]
    assert _rows(FLAT, IDS, np.array([3]))[:, 0].tolist() == [3]
    assert _rows(FLAT, IDS, np.arange(0)).shape == (0, 6)


def test_a_target_that_is_not_among_them_is_no_measurement():
    with pytest.raises(InvalidMeasurement, match="no log-probability of the prompt token 2"):
        _rows(FLAT, np.array([3, 1, 5, 1], np.int32), np.arange(1, 4))


def test_only_the_last_target_may_be_none_of_the_prompts():
    assert Prompt(IDS, None, 0).whole is IDS
    targets = np.array([1, 4, 1, 5], np.int32)
    assert Prompt(IDS, targets, 0).whole.tolist() == [3, 1, 4, 1, 5]
    with pytest.raises(EngineError, match="no other targets"):
        _ = Prompt(IDS, targets[::-1], 0).whole

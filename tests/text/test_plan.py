"""Plans against each tool's own loop, written out again here from their sources."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoremode.errors import CorpusError, ProtocolError
from scoremode.results.scores import expected
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import PRESETS, preset

BOS = 99_999
# Conversations are cut by windows of their own.
TEXTS = [name for name, p in PRESETS.items() if p.text not in ("conversations", "pages")]


class Row(NamedTuple):
    """A scored target: its window's number, its position there, its place in the text, its id."""

    window: int
    position: int
    index: int
    target: int


def tokens_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 1000, n).astype(np.int32)


def plan_of(name: str, n: int, length: int, stride: int | None, **changes: Any) -> Plan:
    window_bos = changes.pop("window_bos", None)
    protocol = preset(name).override(context_length=length, stride=stride, **changes)
    return make_plan(tokens_of(n), protocol.resolve(None), window_bos=window_bos)


def rows_of(spans: list[tuple[int, int, range]], text: np.ndarray) -> list[Row]:
    """Of (begin, end, scored positions of the window)."""
    return [
        Row(w, p, begin + p, int(text[begin + p]))
        for w, (begin, end, scored) in enumerate(spans)
        for p in scored
        if begin + p < end
    ]


def score_mode(n: int, length: int, stride: int) -> list[tuple[int, int, range]]:
    if n <= length:
        return [(0, n, range(1, n))]
    return [(a, a + length, range(1, length)) for a in range(0, n - length, stride)]


def exl3(n: int, length: int, stride: int, rows: int) -> list[tuple[int, int, range]]:
    return [(a, a + length, range(1, length)) for a in range(0, n - length, stride)][:rows]


def gptq(n: int, length: int) -> list[tuple[int, int, range]]:
    return [(w * length, (w + 1) * length, range(1, length)) for w in range(n // length)]


def llama_cpp(n: int, length: int) -> list[tuple[int, int, range]]:
    scored = range(length // 2 + 1, length)
    return [(c * length, (c + 1) * length, scored) for c in range(n // length)]


def guide(n: int, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """The transformers guide's (begin, end, new tokens)."""
    before = 0
    for begin in range(0, n, stride):
        end = min(begin + length, n)
        yield begin, end, end - before
        before = end
        if end == n:
            break


def strided(n: int, length: int, stride: int) -> list[tuple[int, int, range]]:
    spans = [
        (begin, end, range(max(1, end - begin - new), end - begin))
        for begin, end, new in guide(n, length, stride)
    ]
    return [span for span in spans if span[2]]


def disjoint(n: int, length: int, stride: int) -> list[tuple[int, int, range]]:
    spans = [(a, e) for a, e, _ in guide(n, length, stride)]
    return [(a, e, range(1, e - a)) for a, e in spans if e - a > 1]


def assert_is(plan: Plan, spans: list[tuple[int, int, range]]) -> None:
    """`plan` has these windows, and everything it says of itself follows from them."""
    rows = rows_of(spans, plan.tokens)
    assert list(zip(plan.start.tolist(), plan.stop.tolist(), strict=True)) == [s[:2] for s in spans]
    columns = expected(plan, range(len(plan)))
    assert list(map(Row, *(columns[name].tolist() for name in Row._fields))) == rows
    assert all(column.dtype == np.int32 for column in columns.values())
    assert plan.scored == len(rows)
    assert plan.unique == len({row.index for row in rows})
    assert plan.counts.tolist() == [len(scored) for _, _, scored in spans]
    for w, window in enumerate(plan):
        mine = [row for row in rows if row.window == w]
        positions = np.arange(window.first, len(window.targets) + 1)
        assert positions.tolist() == [row.position for row in mine]
        assert window.targets[positions - 1].tolist() == [row.target for row in mine]


def sizes(min_length: int = 3, longest: int = 40) -> Any:
    """(N, L, S) with 1 <= S <= L, on both sides of everything fitting exactly."""
    return st.integers(min_length, longest).flatmap(
        lambda length: st.tuples(
            st.one_of(st.integers(2, 6 * length), st.integers(1, 6).map(lambda k: k * length)),
            st.just(length),
            st.integers(1, length),
        )
    )


@given(sizes())
def test_score_mode(size):
    assert_is(plan_of("score-mode", *size), score_mode(*size))


@given(sizes(), st.integers(1, 12))
def test_exl3(size, rows):
    n, length, _ = size
    if n <= length:
        with pytest.raises(ProtocolError, match=f"{n} tokens.* at least {length + 1}"):
            plan_of("exl3", *size)
    else:
        assert_is(plan_of("exl3", *size, max_windows=rows), exl3(*size, rows))


@pytest.mark.parametrize("name", ["exl3-s512", "exl3-compare-q"])
@given(size=sizes())
def test_exl3_variants_have_its_windows(name, size):
    if size[0] > size[1]:
        assert_is(plan_of(name, *size), exl3(*size, 100))


@given(sizes(longest=6))
def test_exl3_qbench_wants_all_its_windows(size):
    n, length, stride = size
    windows = exl3(n, length, stride, 10)
    if len(windows) < 10:
        with pytest.raises(ProtocolError, match=f"text has {n} tokens|text of {n} tokens"):
            plan_of("exl3-qbench", *size)
    else:
        assert_is(plan_of("exl3-qbench", *size), windows)


@given(sizes())
def test_gptq(size):
    n, length, _ = size
    if n < length:
        with pytest.raises(ProtocolError, match=f"{n} tokens.* at least {length}"):
            plan_of("gptq", n, length, None)
    else:
        assert_is(plan_of("gptq", n, length, None), gptq(n, length))


@given(sizes(), st.booleans())
def test_llama_cpp(size, adds_bos):
    n, length, _ = size
    if n < 2 * length:
        with pytest.raises(ProtocolError, match=f"{n} tokens.* at least {2 * length}"):
            plan_of("llama.cpp", n, length, None)
        return
    plan = plan_of("llama.cpp", n, length, None, window_bos=BOS if adds_bos else None)
    assert_is(plan, llama_cpp(n, length))
    for w, window in enumerate(plan):
        x = plan.tokens[w * length : (w + 1) * length].copy()
        if adds_bos:
            x[0] = BOS
        np.testing.assert_array_equal(window.inputs, x[:-1])
        np.testing.assert_array_equal(window.targets, x[1:])


@pytest.mark.parametrize("name", ["strided", "hf-strided"])
@given(size=sizes())
def test_strided_scores_every_target_once(name, size):
    n, length, stride = size
    plan = plan_of(name, *size)
    assert_is(plan, strided(*size))
    assert plan.scored == plan.unique
    assert plan.scored == n - (1 if stride < length else -(-n // length))
    if stride < length:
        # Everything behind the first window is seen with at least L - S tokens before it.
        context = expected(plan, range(1, len(plan)))["position"]
        assert context.min(initial=length) >= min(length - stride, length)


@given(sizes(), st.integers(0, 2**32 - 1))
def test_hf_strided_average_is_the_guides_loop(size, seed):
    n, length, stride = size
    nll = np.random.default_rng(seed).exponential(size=(n, n))  # by end of window and target
    total = count = 0.0
    for begin, end, new in guide(n, length, stride):
        losses = nll[end - 1, max(begin + 1, end - new) : end]
        # The labels that are not -100, less one for the one that the shift takes from a window.
        if len(losses):
            total += losses.mean() * (new - 1)
        count += new - 1
    plan = plan_of("hf-strided", *size)
    weights = plan.weights()
    assert weights is not None
    rows = expected(plan, range(len(plan)))
    each = weights[rows["window"]]
    ours = nll[plan.stop[rows["window"]] - 1, rows["index"]]
    assert (ours * each).sum() / each.sum() == pytest.approx(total / count, rel=1e-12)


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "hf-strided"])
def test_every_other_average_is_over_targets(name):
    assert plan_of(name, 600, 16, 8).weights() is None


@given(sizes(), st.integers(-20, 40))
def test_disjoint(size, gap):
    n, length, _ = size
    assert_is(plan_of("disjoint", n, length, None), disjoint(n, length, length))
    # Overlaps and gaps are another protocol, and still well defined.
    stride = max(1, length + gap)
    assert_is(plan_of("disjoint", n, length, stride), disjoint(n, length, stride))


@pytest.mark.parametrize("name", TEXTS)
@given(size=sizes(), adds_bos=st.booleans())
def test_windows_lie_in_the_text_and_targets_follow_their_inputs(name, size, adds_bos):
    try:
        plan = plan_of(name, *size, window_bos=BOS if adds_bos else None)
    except ProtocolError:
        return
    assert plan.start.min() >= 0
    assert plan.stop.max() <= size[0]
    assert plan.lengths.max() <= size[1]
    assert plan.scored > 0
    assert len(plan) == len(list(plan))
    for window in plan:
        assert window.inputs.dtype == window.targets.dtype == np.int32
        assert len(window.inputs) == len(window.targets)
        assert 1 <= window.first <= len(window.targets)
        np.testing.assert_array_equal(window.inputs[1:], window.targets[:-1])
        assert (window.inputs[0] == BOS) == adds_bos
        assert BOS not in window.targets
    assert BOS not in plan.tokens


@given(sizes(), st.data())
def test_expected_of_some_windows_is_their_part_of_all(size, data):
    plan = plan_of("strided", *size)
    begin = data.draw(st.integers(0, len(plan)))
    windows = range(begin, data.draw(st.integers(begin, len(plan))))
    whole, part = expected(plan, range(len(plan))), expected(plan, windows)
    inside = np.isin(whole["window"], windows)
    for name, column in part.items():
        np.testing.assert_array_equal(column, whole[name][inside])


@pytest.mark.parametrize(
    ("name", "n", "windows", "scored", "unique"),
    [
        ("score-mode", 39_217, 73, 149_431, 38_911),
        ("strided", 39_217, 74, 39_216, 39_216),
        ("exl3", 300_000, 100, 204_700, 204_700),
        ("exl3-s512", 300_000, 100, 204_700, 52_735),
        ("exl3-compare-q", 300_000, 100, 204_700, 52_735),
        ("exl3-qbench", 300_000, 10, 20_470, 20_470),
        ("gptq", 300_000, 146, 298_862, 298_862),
        ("llama.cpp", 300_000, 585, 149_175, 149_175),
        ("disjoint", 300_000, 147, 299_853, 299_853),
    ],
)
def test_counts_at_full_size(name, n, windows, scored, unique):
    plan = make_plan(tokens_of(n), preset(name).resolve(2048))
    assert (len(plan), plan.scored, plan.unique) == (windows, scored, unique)
    assert {key: plan.to_json()[key] for key in ("tokens", "windows", "scored", "unique")} == {
        "tokens": n,
        "windows": windows,
        "scored": scored,
        "unique": unique,
    }


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("n", "said"), [(0, "0 tokens"), (1, "1 token:")])
def test_a_text_of_less_than_two_tokens(name, n, said):
    with pytest.raises(CorpusError, match=said):
        plan_of(name, n, 8, 4)


@pytest.mark.parametrize(
    ("name", "n"), [("score-mode", 2), ("disjoint", 2), ("strided", 2), ("hf-strided", 2)]
)
def test_a_text_of_two_tokens_is_one_target(name, n):
    assert_is(plan_of(name, n, 8, 4), [(0, 2, range(1, 2))])


def test_windows_that_score_nothing_are_refused():
    with pytest.raises(ProtocolError, match=r"llama\.cpp\+context-length=2 scores no target"):
        plan_of("llama.cpp", 40, 2, None)


def test_the_hash_is_of_tokens_windows_and_procedure_and_not_of_the_name():
    tokens, exl3 = tokens_of(300), preset("exl3").override(context_length=32).resolve(None)

    def digest(tokens=tokens, protocol=exl3, **options):
        return make_plan(tokens, protocol, **options).sha256

    other_tokens = tokens.copy()
    other_tokens[-1] += 1
    different = [
        digest(),
        digest(tokens=other_tokens),
        digest(window_bos=BOS),
        digest(protocol=exl3.override(stride=16)),
        digest(protocol=exl3.override(max_windows=3)),
        digest(protocol=exl3.override(vocabulary="head")),
    ]
    assert len(set(different)) == len(different)
    renamed = exl3.override(stride=16).override(stride=32)
    assert renamed.name != exl3.name
    assert digest(protocol=renamed) == digest()


@given(n=st.integers(1, 40), seed=st.integers(0, 2**32), stride=st.integers(1, 8))
def test_a_sample_is_some_of_the_windows_in_order(n, seed, stride):
    plan = plan_of("strided", 100, 8, stride)
    sample = plan.sample(n, seed)
    assert len(sample) == min(n, len(plan))
    spans = list(zip(plan.start, plan.stop, plan.first, strict=True))
    drawn = [spans.index(s) for s in zip(sample.start, sample.stop, sample.first, strict=True)]
    assert drawn == sorted(set(drawn))
    assert sample.scored == sum(plan.counts[w] for w in drawn)
    assert sample.tokens is plan.tokens and sample.protocol == plan.protocol
    for own, w in zip(sample, drawn, strict=True):
        assert np.array_equal(own.inputs, plan[w].inputs) and own.first == plan[w].first


def test_a_seed_draws_the_same_and_another_one_others():
    plan = plan_of("disjoint", 1000, 8, None)
    assert plan.sample(5, 0).sha256 == plan.sample(5, 0).sha256
    assert len({plan.sample(5, seed).sha256 for seed in range(10)}) == 10
    assert plan.sample(5, 0).sha256 != plan.sha256


def test_every_window_can_be_drawn():
    plan = plan_of("disjoint", 100, 10, None)
    drawn = {int(plan.sample(1, seed).start[0]) for seed in range(200)}
    assert drawn == set(plan.start.tolist())


@pytest.mark.parametrize("n", [10, 11, 1000])
def test_a_plan_with_no_more_windows_is_its_own_sample(n):
    plan = plan_of("disjoint", 100, 10, None)
    assert plan.sample(n, 3) is plan


def test_a_sampled_window_weighs_what_it_did():
    """Its weight comes of the window before it, which may not have been drawn."""
    plan = plan_of("hf-strided", 103, 10, 4)
    sample = plan.sample(6, 1)
    weights, own = plan.weights(), sample.weights()
    assert weights is not None and own is not None
    drawn = np.searchsorted(plan.start, sample.start)
    assert np.array_equal(own, weights[drawn])
    assert not np.array_equal(np.diff(drawn), np.ones(5))
    # Of a sample, too.
    again = sample.sample(2, 0)
    assert np.array_equal(again.weights(), weights[np.searchsorted(plan.start, again.start)])


@pytest.mark.parametrize("n", [0, -1])
def test_a_sample_has_a_window_at_least(n):
    with pytest.raises(ProtocolError, match=f"sample of {n} windows"):
        plan_of("disjoint", 100, 10, None).sample(n, 0)


def test_a_plan_begins_with_that_of_a_smaller_limit():
    """And with no other protocol's: what a kept reference may be the base of."""
    tokens = np.arange(500, dtype=np.int32)
    rule = preset("disjoint").override(context_length=64)
    whole = make_plan(tokens, rule.resolve(None))
    few = rule.override(max_windows=3).resolve(None)
    assert whole.begun(few).sha256 == make_plan(tokens, few).sha256 and len(whole.begun(few)) == 3
    assert whole.begun(few).begun(rule.override(max_windows=2).resolve(None)).scored == 2 * 63
    for other in (
        whole.protocol,
        rule.override(max_windows=len(whole) + 1).resolve(None),
        rule.override(max_windows=3, stride=32).resolve(None),
    ):
        assert whole.begun(other) is whole
    of_more = rule.override(max_windows=4).resolve(None)
    assert (begun := whole.begun(few)).begun(of_more) is begun
    chats = replace(whole, conversation=np.zeros(len(whole), np.int32))
    assert chats.begun(few) is chats

"""Groups of tokens: every evaluation in one of each kind, means and intervals of its own blocks."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import interval_by_hand, made, overlapping

from scoremode.results.record.sections import sections
from scoremode.results.scores import Scores
from scoremode.results.statistics.breakdown import TURN_STARTS, depth_groups
from scoremode.results.statistics.means import Blocks
from scoremode.text.token_class import TOKEN_CLASSES

LENGTH = 64


def expected_groups(scores: Scores, token_class: np.ndarray) -> dict[str, dict[str, list[int]]]:
    """Which rows belong where, row by row."""
    assert scores.against is not None
    found: dict[str, dict[str, list[int]]] = {"confidence": {}, "position": {}, "token_class": {}}
    last = int(scores.position.max())
    for i in range(len(scores)):
        p = math.exp(scores.against.base_top1_logprob[i])
        edges = [e for e in (0, 0.25, 0.5, 0.75, 0.95) if p >= e]
        above = {0: "0.25", 0.25: "0.5", 0.5: "0.75", 0.75: "0.95", 0.95: "1"}[edges[-1]]
        position = int(scores.position[i])
        low = 1 if position < 16 else 2 ** int(math.log2(position))
        high = min(15 if low == 1 else 2 * low - 1, last)
        names = {
            "confidence": f"{edges[-1]:g} to {above}",
            "position": f"{low} to {high}" if low < high else f"{low}",
            "token_class": TOKEN_CLASSES[token_class[i]],
        }
        for of, name in names.items():
            found[of].setdefault(name, []).append(i)
    return found


@pytest.mark.parametrize("weighted", [False, True])
def test_groups_are_those_made_row_by_row(weighted):
    scores = made(**overlapping(1500, LENGTH, 32), noise=0.3)
    rng = np.random.default_rng(4)
    token_class = rng.choice([0, 1, 3, 4], len(scores)).astype(np.uint8)
    token_class[rng.choice(len(scores), 40, replace=False)] = 6
    w = rng.choice([0.0, 1.0, 1.5], len(scores)) if weighted else np.ones(len(scores))
    extras = {"token_class": token_class} | ({"weight": w} if weighted else {})
    found = sections(scores, LENGTH, extras, block_length=LENGTH)["breakdown"]
    assert scores.against is not None
    difference = scores.against.base_logprob - scores.logprob
    wanted = expected_groups(scores, token_class)
    assert set(found) == set(wanted)
    for of, groups in wanted.items():
        assert {g["group"] for g in found[of]} == set(groups)
        assert math.fsum(g["share"] for g in found[of]) == pytest.approx(1)
        assert sum(g["n"] for g in found[of]) == len(scores)
        for group in found[of]:
            rows = groups[group["group"]]
            assert group["n"] == group["kld"]["n"] == group["ppl_ratio"]["n"] == len(rows)
            assert group["share"] == len(rows) / len(scores)
            for name, column, then in (
                ("kld", scores.against.kld, float),
                ("ppl_ratio", difference, math.exp),
            ):
                mean = math.fsum((column * w)[rows]) / math.fsum(w[rows])
                assert group[name]["value"] == pytest.approx(then(mean), rel=1e-12)
                ends = interval_by_hand(
                    (column * w)[rows], w[rows], scores.index[rows], LENGTH, then
                )
                assert group[name]["ci95"] == pytest.approx(ends, rel=1e-7)


def test_groups_stand_in_order_with_their_bounds():
    scores = made(**overlapping(3000, 300, 300), noise=0.3)
    extras = {"token_class": np.full(len(scores), 2, np.uint8)}
    found = sections(scores, 300, extras, block_length=300)["breakdown"]
    position = [(g["group"], g["from"], g["to"]) for g in found["position"]]
    assert position == [
        ("1 to 15", 1, 15), ("16 to 31", 16, 31), ("32 to 63", 32, 63),
        ("64 to 127", 64, 127), ("128 to 255", 128, 255), ("256 to 299", 256, 299),
    ]  # fmt: skip
    bounds = [(g["from"], g["to"]) for g in found["confidence"]]
    assert bounds == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95), (0.95, 1)]
    (only,) = found["token_class"]
    assert only["group"] == "number" and "from" not in only


@pytest.mark.parametrize(
    ("length", "names"),
    [(2, ["1"]), (16, ["1 to 15"]), (17, ["1 to 15", "16"]), (18, ["1 to 15", "16 to 17"])],
)
def test_short_windows(length, names):
    scores = made(**overlapping(300, length, length))
    found = sections(scores, length, {}, block_length=length)["breakdown"]
    assert [g["group"] for g in found["position"]] == names
    assert set(found) == {"confidence", "position"}


def test_a_second_half_has_no_first_positions():
    columns = overlapping(4000, LENGTH, LENGTH)
    kept = {name: column[columns["position"] > 32] for name, column in columns.items()}
    found = sections(made(**kept), LENGTH, {}, block_length=LENGTH)["breakdown"]
    assert [g["group"] for g in found["position"]] == ["32 to 63"]


def test_an_edge_belongs_to_the_group_above():
    scores = made(np.arange(640))
    assert scores.against is not None
    p = np.array([0.1, 0.25, 0.5, 0.75, 0.95, 1.0, 1 + 1e-7])
    scores.against.base_top1_logprob[:] = np.log(p)[np.arange(640) % 7]
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["breakdown"]["confidence"]
    counts = np.bincount(np.arange(640) % 7)
    assert [g["n"] for g in found] == [*counts[:4], counts[4:].sum()]


def test_a_group_with_few_blocks_has_no_interval_and_says_why():
    scores = made(np.arange(1280))
    for blocks in (7, 8):
        token_class = np.zeros(1280, np.uint8)
        token_class[: LENGTH * blocks : 5] = 1
        groups = sections(scores, LENGTH, {"token_class": token_class}, block_length=LENGTH)[
            "breakdown"
        ]["token_class"]
        start, inside = groups
        assert start["kld"]["ci95"] is not None
        assert (inside["kld"]["ci95"] is None) == (blocks == 7)
        if blocks == 7:
            note = "7 blocks of 64 tokens: an interval needs at least 8"
            assert inside["kld"]["note"] == inside["ppl_ratio"]["note"] == note


def test_a_group_that_weighs_nothing_is_left_out():
    scores = made(np.arange(1280))
    token_class = np.zeros(1280, np.uint8)
    token_class[100:110] = 5
    weight = np.where(token_class == 5, 0.0, 1.0)
    extras = {"token_class": token_class, "weight": weight}
    groups = sections(scores, LENGTH, extras, block_length=LENGTH)["breakdown"]["token_class"]
    assert [g["group"] for g in groups] == ["word start"]


def test_a_group_of_everything_is_the_whole():
    scores = made(**overlapping(1500, LENGTH, 32), noise=0.3)
    extras = {"token_class": np.full(len(scores), 3, np.uint8)}
    found = sections(scores, LENGTH, extras, block_length=LENGTH)
    (group,) = found["breakdown"]["token_class"]
    assert group["share"] == 1
    for name in ("kld", "ppl_ratio"):
        assert group[name] == found["metrics"][name]


def labelled(scores: Scores, seed: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = np.array(["prose", "code", "math"], object)[rng.integers(0, 3, len(scores))]
    return {"label": names, "turn_place": rng.integers(0, 400, len(scores)).astype(np.int32)}


def test_labels_have_what_the_whole_text_has_and_the_worst_is_first():
    scores = made(np.arange(9_000), noise=0.8)
    assert scores.against is not None
    extras = labelled(scores)
    # One group is further off.
    worse = np.where(extras["label"] == "math", 0.5, 0.0)
    scores = replace(scores, against=replace(scores.against, kld=scores.against.kld + worse))
    found = sections(scores, LENGTH, extras, block_length=LENGTH)
    groups = found["breakdown"]["label"]
    assert groups[0]["group"] == "math"
    klds = [g["kld"]["value"] for g in groups]
    assert klds == sorted(klds, reverse=True)
    assert sum(g["n"] for g in groups) == len(scores)
    for group in groups:
        rows = extras["label"] == group["group"]
        own = Scores.from_columns({k: v[rows] for k, v in scores.columns().items()})
        # The same numbers as a text of the group's targets alone, blocks and all.
        alone = sections(own, LENGTH, {}, block_length=LENGTH)["metrics"]
        names = ("ppl", "ppl_ratio", "kld", "top1", "acceptance", "confident_flips", "halved",
                 "entropy_change", "kld_p99", "kld_p999")  # fmt: skip
        for name in names:
            assert group[name]["value"] == pytest.approx(alone[name]["value"], rel=1e-12), name
            assert (group[name]["n"], group[name]["note"]) == (
                alone[name]["n"],
                alone[name]["note"],
            )
            assert (group[name]["ci95"] is None) == (alone[name]["ci95"] is None), name
            if group[name]["ci95"] is not None:
                assert group[name]["ci95"] == pytest.approx(alone[name]["ci95"], rel=1e-7), name


def test_places_in_the_turn_are_groups_in_order():
    scores = made(np.arange(3_000), noise=0.4)
    place = np.arange(3_000, dtype=np.int32) % 300
    found = sections(scores, LENGTH, {"turn_place": place}, block_length=LENGTH)["breakdown"][
        "turn"
    ]
    assert [(g["group"], g["from"], g["to"]) for g in found] == [
        ("0", 0, 0), ("1 to 3", 1, 3), ("4 to 15", 4, 15), ("16 to 63", 16, 63),
        ("64 to 255", 64, 255), ("256 and more", 256, None),
    ]  # fmt: skip
    assert [g["n"] for g in found] == [10, 30, 120, 480, 1920, 440]
    assert scores.against is not None
    for group, low in zip(found, TURN_STARTS, strict=True):
        high = 10**9 if group["to"] is None else group["to"]
        rows = (place >= low) & (place <= high)
        assert group["kld"]["value"] == pytest.approx(scores.against.kld[rows].mean(), rel=1e-12)
        flips = (scores.top1 != scores.against.base_top1)[rows]
        sure = (np.exp(scores.against.base_top1_logprob) > 0.9)[rows]
        assert ("confident_flips" in group) == sure.any()
        if sure.any():
            assert group["confident_flips"]["value"] == pytest.approx(flips[sure].mean(), rel=1e-12)
            assert group["confident_flips"]["n"] == sure.sum()


def test_a_place_without_a_target_is_no_group():
    scores = made(np.arange(900))
    place = np.full(900, 5, np.int32)
    (only,) = sections(scores, LENGTH, {"turn_place": place}, block_length=LENGTH)["breakdown"][
        "turn"
    ]
    assert only["group"] == "4 to 15" and only["share"] == 1


def test_without_a_base_groups_have_a_perplexity_and_the_highest_is_first():
    scores = replace(made(np.arange(4_000)), against=None)
    extras = labelled(scores)
    found = sections(scores, LENGTH, extras, block_length=LENGTH)
    assert set(found) == {"metrics", "breakdown"} and set(found["breakdown"]) == {"label", "turn"}
    ppls = [g["ppl"]["value"] for g in found["breakdown"]["label"]]
    assert ppls == sorted(ppls, reverse=True)
    for group in found["breakdown"]["label"]:
        assert set(group) == {"group", "n", "share", "ppl"}
        rows = extras["label"] == group["group"]
        assert group["ppl"]["value"] == pytest.approx(math.exp(scores.nll[rows].mean()), rel=1e-12)


def test_labels_of_a_weight_of_nothing_are_left_out():
    scores = made(np.arange(1280))
    label = np.array(["a", "b"], object)[(np.arange(1280) > 1200).astype(int)]
    extras = {"label": label, "weight": np.where(label == "b", 0.0, 1.0)}
    groups = sections(scores, LENGTH, extras, block_length=LENGTH)["breakdown"]["label"]
    assert [g["group"] for g in groups] == ["a"]


NAMES = ["below 1k", "from 1k", "from 2k", "from 4k", "from 8k"]


def long_scores(length: int, windows: int = 2) -> Scores:
    """Windows in which the model is worse than its base from 4,096 tokens on."""
    position = np.tile(np.arange(1, length), windows)
    window = np.repeat(np.arange(windows), length - 1)
    scores = made(window * length + position, window=window, position=position, full=False)
    return replace(scores, logprob=scores.logprob - np.where(position >= 4096, 1.0, 0.0))


def expected(position: int) -> str:
    """By the definition, one position."""
    if position < 1024:
        return "below 1k"
    return f"from {2 ** int(math.log2(position // 1024))}k"


@pytest.mark.parametrize("weighted", [False, True])
def test_depths_are_those_made_row_by_row(weighted):
    scores = long_scores(9000)
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0], len(scores)) if weighted else None
    w = np.ones(len(scores)) if weights is None else weights
    found = depth_groups(scores, Blocks(scores.index, 9000, weights))
    assert [group.name for group in found] == NAMES
    names = np.array([expected(int(p)) for p in scores.position])
    against = scores.against
    assert against is not None
    for group in found:
        assert group.of == "depth"
        rows = names == group.name
        assert (group.n, group.share) == (rows.sum(), rows.mean())
        assert group.bounds == (scores.position[rows].min(), scores.position[rows].max())

        def mean(column, rows=rows):
            return float((column * w)[rows].sum() / w[rows].sum())

        values = {name: one.value for name, one in group.means.items()}
        assert values["ppl"] == pytest.approx(np.exp(mean(-scores.logprob)))
        ratio = np.exp(mean(against.base_logprob - scores.logprob))
        assert values["ppl_ratio"] == pytest.approx(ratio)
        assert values["kld"] == pytest.approx(mean(against.kld))
        assert values["top1"] == pytest.approx(mean(scores.top1 == against.base_top1))
        assert values["acceptance"] == pytest.approx(mean(1 - against.tv))
    assert sum(group.n for group in found) == len(scores)
    late = [group.means["ppl_ratio"].value for group in found]
    assert max(late[:3]) < 1.1 < 2.4 < min(late[3:])


def test_without_a_base_there_are_perplexities():
    scores = replace(long_scores(5000), against=None)
    found = depth_groups(scores, Blocks(scores.index, 5000))
    assert [group.name for group in found] == NAMES[:4]
    assert all(set(group.means) == {"ppl"} for group in found)


@pytest.mark.parametrize(
    ("length", "names"),
    [
        (2048, []),
        (4096, []),
        (4097, ["below 1k", "from 4k"]),
        (1 << 17, ["below 1k", "from 64k"]),
        ((1 << 17) + 1, ["below 1k", "from 128k"]),
    ],
)
def test_windows_of_the_usual_protocols_have_none(length, names):
    """A window of which the first and the last target are scored."""
    position = np.array([1, length - 1])
    scores = replace(made(position, position=position, full=False), against=None)
    found = depth_groups(scores, Blocks(scores.index, length))
    assert [group.name for group in found] == names


def test_a_depth_that_weighs_nothing_is_left_out():
    scores = long_scores(5000, windows=1)
    weights = np.where(scores.position < 1024, 0.0, 1.0)
    found = depth_groups(scores, Blocks(scores.index, 5000, weights))
    assert [group.name for group in found] == NAMES[1:4]


@pytest.mark.parametrize("alone", [False, True])
def test_a_record_has_them_with_intervals(alone):
    """Of as many windows as an interval needs; each is a block."""
    scores = long_scores(4200, windows=9)
    scores = replace(scores, against=None) if alone else scores
    found = sections(scores, 4200, {}, block_length=4200)["breakdown"]["depth"]
    assert [group["group"] for group in found] == NAMES[:4]
    for group in found:
        for name in ["ppl"] if alone else ["ppl", "ppl_ratio", "kld", "top1", "acceptance"]:
            low, high = group[name]["ci95"]
            assert low <= group[name]["value"] <= high
    if not alone:
        # All of 4,096 and more are worse, and no other is.
        late, before = found[-1]["ppl_ratio"]["ci95"], found[-2]["ppl_ratio"]["ci95"]
        assert before[1] < 1.1 < 2 < late[0]


def test_a_run_of_ordinary_windows_has_none_in_its_record():
    scores = replace(long_scores(2048), against=None)
    assert "breakdown" not in sections(scores, 2048, {}, block_length=2048)

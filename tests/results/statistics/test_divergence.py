"""The metrics of a comparison, their intervals and percentiles, against plain loops over rows."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import interval_by_hand, made, overlapping

from scoremode.results.metrics import METRICS
from scoremode.results.record.section import Metric
from scoremode.results.record.sections import sections
from scoremode.results.scores import Comparison, Scores, expected
from scoremode.results.statistics import bootstrap
from scoremode.results.statistics.divergence import CONFIDENT, effects_by, rare, worst_tokens
from scoremode.results.statistics.means import Blocks
from scoremode.text.plan import Plan
from scoremode.text.protocol import preset
from scoremode.text.token_class import token_table
from scoremode.text.tokenizer import Tokenizer, load_tokenizer, tokenize

LENGTH = 40


def by_hand(scores: Scores) -> dict[str, np.ndarray]:
    """Per row, in plain Python: what each metric is the mean of."""
    c = scores.against
    assert c is not None
    rows = range(len(scores))
    p_q = [math.exp(x) for x in scores.logprob]
    p_b = [math.exp(x) for x in c.base_logprob]
    values = {
        "nll": [-x for x in scores.logprob],
        "nll_base": [-x for x in c.base_logprob],
        "ppl_ratio": [c.base_logprob[i] - scores.logprob[i] for i in rows],
        "kld": list(c.kld),
        "kld_reverse": list(c.kld_reverse),
        "tv": list(c.tv),
        "acceptance": [1 - x for x in c.tv],
        "top1": [float(scores.top1[i] == c.base_top1[i]) for i in rows],
        "lost": [float(c.base_top1[i] == t != scores.top1[i]) for i, t in enumerate(scores.target)],
        "gained": [
            float(scores.top1[i] == t != c.base_top1[i]) for i, t in enumerate(scores.target)
        ],
        "delta_p": [p_q[i] - p_b[i] for i in rows],
        "rms_delta_p": [(p_q[i] - p_b[i]) ** 2 for i in rows],
    }
    pairs = zip(values["gained"], values["lost"], strict=True)
    values["accuracy_change"] = [gained - lost for gained, lost in pairs]
    if c.jsd is not None:
        assert c.topk_sets is not None and c.topk_order is not None
        values["jsd"] = list(c.jsd)
        assert c.base_entropy is not None and c.model_entropy is not None
        values |= {"entropy": list(c.model_entropy), "entropy_base": list(c.base_entropy)}
        for k in range(1, 11):
            values[f"top{k}_sets"] = [float(bool(int(x) & 2 ** (k - 1))) for x in c.topk_sets]
            values[f"top{k}_order"] = [float(x >= k) for x in c.topk_order]
    return {name: np.array(column, np.float64) for name, column in values.items()}


THEN = {"ppl_ratio": math.exp, "rms_delta_p": math.sqrt}


@pytest.mark.parametrize("weighted", [False, True])
def test_every_metric_is_the_one_computed_by_hand(weighted):
    scores = made(**overlapping(1200, LENGTH, 13), noise=0.4)
    n = len(scores)
    extras, w = {}, np.ones(n)
    if weighted:
        w = np.random.default_rng(8).choice([0.0, 0.5, 1.0, 2.0], n)
        extras["weight"] = w
    found = sections(scores, LENGTH, extras, block_length=LENGTH)["metrics"]
    for name, column in by_hand(scores).items():
        then = THEN.get(name, float)
        mean = math.fsum(column * w) / math.fsum(w)
        assert found[name]["value"] == pytest.approx(then(mean), rel=1e-12, abs=1e-14), name
        low_high = interval_by_hand(column * w, w, scores.index, LENGTH, then)
        assert found[name]["ci95"] == pytest.approx(low_high, rel=1e-7, abs=1e-12), name
        assert (found[name]["n"], found[name]["note"]) == (n, None)
    for name in ("ppl", "ppl_base"):
        nll = found[name.replace("ppl", "nll")]
        assert found[name]["value"] == pytest.approx(math.exp(nll["value"]), rel=1e-14)
        assert found[name]["ci95"] == pytest.approx([math.exp(x) for x in nll["ci95"]], rel=1e-14)
    ratio = found["ppl"]["value"] / found["ppl_base"]["value"]
    assert found["ppl_ratio"]["value"] == pytest.approx(ratio, rel=1e-12)
    assert found["rms_delta_p"]["value"] > abs(found["delta_p"]["value"])
    assert found["top1_sets"]["value"] == found["top1_order"]["value"] == found["top1"]["value"]
    effects = {"confident_flips", "halved", "entropy_change", "kld_p99", "kld_p999"}
    assert set(found) == {*by_hand(scores), *effects, "ppl", "ppl_base"}


def test_the_interval_of_perplexity_is_what_it_was():
    """The draws of all other metrics are its own: for one column both ways give the same."""
    scores = made(np.arange(3000))
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]
    assert found["nll"] == bootstrap.perplexity(scores, LENGTH)["nll"].to_json()
    sums = scores.nll.reshape(-1, LENGTH).sum(1)
    totals = np.full(len(sums), float(LENGTH))
    many = bootstrap.percentile_interval(bootstrap.resampled(sums[None], totals[None]), len(sums))[
        :, 0
    ]
    assert many == pytest.approx(bootstrap.block_bootstrap(sums, totals), rel=1e-12)


def test_a_model_against_itself_is_0_exactly():
    scores = made(np.arange(1000), noise=0.0)
    found = sections(scores, LENGTH, {"token_bytes": np.ones(1000, np.uint16)}, block_length=LENGTH)
    metrics = found["metrics"]
    zero = ("kld", "kld_reverse", "jsd", "delta_p", "rms_delta_p")
    one = ("ppl_ratio", "top1", *(f"top{k}_{of}" for k in range(1, 11) for of in ("sets", "order")))
    for names, value in ((zero, 0), (one, 1)):
        for name in names:
            assert (metrics[name]["value"], metrics[name]["ci95"]) == (value, [value, value]), name
    for name in ("ppl", "nll", "bits_per_byte"):
        assert metrics[name] == metrics[f"{name}_base"]
    assert set(found["distribution"]["kld"].values()) == {0.0}


def test_the_paired_interval_is_much_narrower():
    scores = made(np.arange(6000), noise=0.1)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["metrics"]
    alone = np.ptp(np.log(found["ppl"]["ci95"]))
    paired = np.ptp(np.log(found["ppl_ratio"]["ci95"]))
    assert paired < alone / 10


@pytest.mark.parametrize(("tokens", "has"), [(1, False), (280, False), (281, True)])
def test_below_eight_blocks_no_metric_has_an_interval(tokens, has):
    extras = {"token_bytes": np.ones(tokens, np.uint16)}
    found = sections(made(np.arange(tokens)), LENGTH, extras, block_length=LENGTH)
    # Those of few targets: tests/results/statistics/test_effects.py.
    few = [metric.key for metric in METRICS if metric.of_few]
    for name, metric in found["metrics"].items():
        assert (metric["ci95"] is not None) == has or name in few, name
        assert math.isfinite(metric["value"])
        if not has and name not in few:
            blocks = -(-tokens // LENGTH)
            assert metric["note"] == bootstrap.too_few(blocks, LENGTH)


def test_one_token():
    scores = made(np.array([3]), noise=0.5)
    assert scores.against is not None
    found = sections(scores, LENGTH, {}, block_length=LENGTH)
    kld = float(scores.against.kld[0])
    assert found["metrics"]["kld"]["value"] == kld
    assert set(found["distribution"]["kld"].values()) == {kld}
    assert [g["n"] for groups in found["breakdown"].values() for g in groups] == [1, 1]


@pytest.mark.parametrize("n", [1, 2, 7, 1001, 1234])
def test_percentiles_are_those_of_the_library(n):
    scores = made(np.arange(n), noise=0.3)
    c = scores.against
    assert c is not None
    columns = {
        "kld": c.kld,
        "kld_reverse": c.kld_reverse,
        "tv": c.tv,
        "jsd": c.jsd,
        "delta_p": np.exp(scores.logprob) - np.exp(c.base_logprob),
    }
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["distribution"]
    assert set(found) == set(columns)
    names = ["0.1", "1", "5", "10", "25", "50", "75", "90", "95", "99", "99.9"]
    for name, column in columns.items():
        assert list(found[name]) == ["minimum", *names, "maximum"]
        wanted = np.percentile(column, [float(p) for p in names])
        assert [found[name][p] for p in names] == pytest.approx(wanted, rel=1e-12, abs=1e-16)
        assert (found[name]["minimum"], found[name]["maximum"]) == (column.min(), column.max())


def test_percentiles_are_those_of_llama_cpp():
    """Its `percentile()`: p·v[i + 1] + (1 - p)·v[i] at the place fraction · (n − 1)."""
    scores = made(np.arange(777), noise=0.3)
    assert scores.against is not None
    v = sorted(scores.against.kld)
    found = sections(scores, LENGTH, {}, block_length=LENGTH)["distribution"]["kld"]
    for percent in (0.1, 1, 5, 10, 50, 90, 95, 99, 99.9):
        place = percent / 100 * 776
        i, p = int(place), place - int(place)
        assert found[f"{percent:g}"] == pytest.approx((1 - p) * v[i] + p * v[i + 1], rel=1e-12)


def test_what_was_not_asked_for_is_not_there():
    found = sections(made(np.arange(400), full=False), LENGTH, {}, block_length=LENGTH)
    assert set(found["distribution"]) == {"kld", "kld_reverse", "tv", "delta_p"}
    assert not [
        name for name in found["metrics"] if name == "jsd" or "_sets" in name or "entropy" in name
    ]


def test_negative_divergences_of_rounding_pass():
    scores = made(np.arange(400), noise=0.0)
    c = scores.against
    assert isinstance(c, Comparison)
    rounded = replace(scores, against=replace(c, kld=c.kld - 1e-9))
    assert sections(rounded, LENGTH, {}, block_length=LENGTH)["metrics"]["kld"][
        "value"
    ] == pytest.approx(-1e-9)


def with_kld(scores: Scores, kld: np.ndarray) -> tuple[Scores, Comparison]:
    assert scores.against is not None
    against = replace(scores.against, kld=kld.astype(np.float64))
    return replace(scores, against=against), against


@pytest.fixture(scope="module")
def tokenizer(demo) -> Tokenizer:
    return load_tokenizer(demo / "model")


@pytest.fixture(scope="module")
def plan(demo, tokenizer) -> Plan:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:3000]
    protocol = preset("score-mode").override(context_length=64, stride=16).resolve(None)
    return tokenize(text, tokenizer, protocol)


@pytest.fixture(scope="module")
def scored(plan) -> Scores:
    columns = expected(plan, range(len(plan)))
    scores = made(columns["index"], window=columns["window"], position=columns["position"])
    return replace(scores, target=columns["target"])


def test_the_largest_are_found_and_no_place_twice(scored):
    rng = np.random.default_rng(0)
    scores, against = with_kld(scored, rng.exponential(size=len(scored)))
    found = worst_tokens(scores, against)
    best: dict[int, tuple[float, int]] = {}
    for i in range(len(scores)):
        place, kld = int(scores.index[i]), float(against.kld[i])
        if place not in best or kld > best[place][0]:
            best[place] = kld, i
    wanted = sorted(best.values(), key=lambda pair: (-pair[0], pair[1]))[:10]
    assert [f["kld"] for f in found] == [kld for kld, _ in wanted]
    for fact, (_, i) in zip(found, wanted, strict=True):
        assert (fact["window"], fact["position"]) == (scores.window[i], scores.position[i])
        assert (fact["index"], fact["target"]) == (scores.index[i], scores.target[i])
        assert fact["p_model"] == pytest.approx(np.exp(scores.logprob[i]))
        assert fact["p_base"] == pytest.approx(np.exp(against.base_logprob[i]))
        assert (fact["top1"], fact["base_top1"]) == (scores.top1[i], against.base_top1[i])
    json.dumps(found, allow_nan=False)


def test_on_ties_the_earlier_comes_first():
    scores, against = with_kld(made(np.arange(50)), np.array([1.0, 2.0] * 25))
    found = worst_tokens(scores, against, count=30)
    assert [f["index"] for f in found] == [*range(1, 50, 2), *range(0, 10, 2)]


def test_what_does_not_differ_is_not_listed():
    kld = np.zeros(50)
    scores, against = with_kld(made(np.arange(50)), kld)
    assert worst_tokens(scores, against) == []
    kld[7] = 1e-12
    kld[8] = -1e-9
    scores, against = with_kld(scores, kld)
    assert [f["index"] for f in worst_tokens(scores, against)] == [7]


@pytest.mark.parametrize("position", [1, 2, 12, 13, 63])
def test_texts_around_it(position, scored, plan, tokenizer):
    table = token_table(tokenizer)
    i = int(np.flatnonzero((scored.window == 5) & (scored.position == position))[0])
    scores, against = with_kld(scored, np.arange(len(scored)) == i)
    (fact,) = worst_tokens(scores, against, plan=plan, table=table)
    ids = plan.tokens[plan.start[5] :]
    before = ids[max(0, position - 12) : position]
    assert len(before) == min(12, position)
    assert fact["target"] == ids[position]
    assert fact["target_text"] == tokenizer.backend.decode([ids[position]])
    assert fact["context"] == tokenizer.backend.decode(before)
    assert fact["top1_text"] == table.text([fact["top1"]])
    assert fact["base_top1_text"] == table.text([fact["base_top1"]])


def test_a_window_s_own_bos_is_its_context(scored, plan, tokenizer):
    assert tokenizer.bos is not None
    table = token_table(tokenizer)
    i = int(np.flatnonzero((scored.window == 5) & (scored.position == 2))[0])
    scores, against = with_kld(scored, np.arange(len(scored)) == i)
    with_bos = replace(plan, window_bos=tokenizer.bos)
    (fact,) = worst_tokens(scores, against, plan=with_bos, table=table)
    assert fact["context"].startswith("<s>")


def test_an_id_beyond_the_tokenizer_is_called_by_its_number(scored, plan, tokenizer):
    scores, against = with_kld(scored, np.arange(len(scored)) == 3)
    padded = replace(scores, top1=np.full_like(scores.top1, 5000))
    (fact,) = worst_tokens(padded, against, plan=plan, table=token_table(tokenizer))
    assert fact["top1_text"] == "<id 5000>"


BLOCK = 40


def effects_by_hand(scores: Scores, confident: float) -> dict[str, tuple[list[float], list[float]]]:
    """Per row, in plain Python: what each share or mean is of, and whether the row counts."""
    c = scores.against
    assert c is not None and c.base_entropy is not None and c.model_entropy is not None
    rows = range(len(scores))
    sure = [float(math.exp(x) > confident) for x in c.base_top1_logprob]
    half = [math.exp(scores.logprob[i]) < math.exp(c.base_logprob[i]) / 2 for i in rows]
    return {
        "confident_flips": ([sure[i] * (scores.top1[i] != c.base_top1[i]) for i in rows], sure),
        "halved": ([float(x) for x in half], [1.0] * len(scores)),
        "entropy_change": (list(c.model_entropy - c.base_entropy), [1.0] * len(scores)),
    }


@pytest.mark.parametrize("confident", [0.5, CONFIDENT])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_is_the_one_computed_by_hand(confident, weighted):
    scores = made(**overlapping(2400, BLOCK, 13), noise=1.2)
    extras, w = {}, np.ones(len(scores))
    if weighted:
        w = np.random.default_rng(8).choice([0.0, 0.5, 1.0, 2.0], len(scores))
        extras["weight"] = w
    found = sections(scores, BLOCK, extras, block_length=BLOCK, confident=confident)
    assert found["thresholds"] == {"confident": confident}
    for name, (top, bottom) in effects_by_hand(scores, confident).items():
        metric = found["metrics"][name]
        top, bottom = np.array(top) * w, np.array(bottom)
        assert metric["n"] == int(bottom.sum()), name
        bottom = bottom * w
        assert 0 < abs(top.sum()) < bottom.sum()
        assert metric["value"] == pytest.approx(math.fsum(top) / math.fsum(bottom), rel=1e-12)
        ends = interval_by_hand(top, bottom, scores.index, BLOCK)
        assert metric["ci95"] == pytest.approx(ends, rel=1e-7, abs=1e-12), name


def test_percentiles_have_the_intervals_of_their_shares():
    """Woodruff's inversion, one resample after the other."""
    scores = made(np.arange(24_000), noise=0.6)
    assert scores.against is not None
    kld = scores.against.kld
    found = sections(scores, BLOCK, {}, block_length=400)
    ordered = sorted(kld)
    for name, percent in (("kld_p99", "99"), ("kld_p999", "99.9")):
        metric = found["metrics"][name]
        assert metric["value"] == found["distribution"]["kld"][percent]
        share = float(percent) / 100
        below = (kld <= metric["value"]).astype(float)
        low, high = interval_by_hand(below, np.ones(len(kld)), scores.index, 400)
        ends = []
        for end in (low, high):
            place = (share + end - below.mean()) * (len(kld) - 1)
            i = int(place)
            ends.append(ordered[i] + (place - i) * (ordered[i + 1] - ordered[i]))
        assert metric["ci95"] == pytest.approx(ends, rel=1e-7)
        assert metric["ci95"][0] < metric["value"] < metric["ci95"][1]


def test_groups_are_the_whole_of_their_own_targets():
    scores = made(np.arange(6_000), noise=1.0)
    assert scores.against is not None
    group = np.random.default_rng(3).integers(0, 3, len(scores))
    blocks = Blocks(scores.index, BLOCK)
    found = effects_by(scores, scores.against, blocks, group, 4)
    assert not found[3].means and not found[3].tails
    for g in range(3):
        rows = group == g
        own = {k: np.array(t)[rows] for k, (t, _) in effects_by_hand(scores, CONFIDENT).items()}
        sure = np.array(effects_by_hand(scores, CONFIDENT)["confident_flips"][1])[rows]
        assert found[g].means["halved"].value == pytest.approx(own["halved"].mean(), rel=1e-12)
        flips = found[g].means["confident_flips"]
        assert flips.value == pytest.approx(own["confident_flips"].sum() / sure.sum(), rel=1e-12)
        assert flips.n == int(sure.sum())
        for name, percent in (("kld_p99", 99), ("kld_p999", 99.9)):
            wanted = np.percentile(scores.against.kld[rows], percent)
            assert found[g].tails[name].value == pytest.approx(wanted, rel=1e-12)


def test_a_base_that_is_never_sure_has_no_flips():
    scores = made(np.arange(900), noise=0.5)
    found = sections(scores, BLOCK, {}, block_length=BLOCK, confident=0.999_999)["metrics"]
    assert "confident_flips" not in found and "halved" in found


def test_what_was_never_seen_has_no_interval():
    scores = made(np.arange(900), noise=0.0)
    found = sections(scores, BLOCK, {}, block_length=BLOCK)["metrics"]
    for name in ("confident_flips", "halved"):
        assert found[name]["value"] == 0 and found[name]["ci95"] is None
        assert found[name]["note"].startswith(f"none of {found[name]['n']:,} targets")
    kept = Metric(0.5, (0.4, 0.6), 10)
    assert rare(kept) is kept
    assert rare(Metric(1.0, (1.0, 1.0), 10)).ci95 is None


def test_a_tail_of_few_targets_has_no_interval():
    scores = made(np.arange(bootstrap.MIN_BLOCKS * BLOCK), noise=0.5)
    found = sections(scores, BLOCK, {}, block_length=BLOCK)["metrics"]["kld_p999"]
    assert found["ci95"] is None and "with a target beyond it" in found["note"]

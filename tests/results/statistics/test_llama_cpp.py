"""llama-perplexity's statistics, against its own output and against formulas written otherwise."""

import ctypes
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.comparisons import made

from scoremode.results.statistics.llama_cpp import (
    MIN_TOKENS,
    LlamaCppBlock,
    block_section,
    llama_cpp_block,
)

GOLDEN = Path(__file__).parents[2] / "golden" / "llama_cpp"
TITLE = "====== Perplexity statistics ======"


def block_of(nll, base_nll, kld, same_top) -> LlamaCppBlock:
    block = llama_cpp_block(
        np.array(nll, np.float64), np.array(base_nll, np.float64), np.array(kld, np.float64),
        np.array(same_top, bool),
    )  # fmt: skip
    assert block is not None
    return block


def random_tokens(n: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.exponential(2.0, n)
    return {
        "nll": np.abs(base + rng.normal(0.1, 0.3, n)),
        "base_nll": base,
        "kld": rng.exponential(0.05, n) - 1e-5,
        "same_top": rng.random(n) < 0.9,
    }


@pytest.mark.parametrize("name", ["W4A16-g32", "W2A16-g32", "base-self"])
def test_from_the_tools_own_values_comes_the_tools_own_block(name):
    with np.load(GOLDEN / "rows.npz") as rows:
        columns = {k: rows[f"{name}.{k}"] for k in ("nll", "base_nll", "kld", "same_top")}
    printed = (GOLDEN / f"{name}.txt").read_text()
    assert block_of(**columns).text() + "\n" == printed[printed.index(TITLE) :]


@given(st.integers(MIN_TOKENS, 500), st.integers(0, 2**32 - 1))
def test_means_and_errors(n, seed):
    columns = random_tokens(n, seed)
    a, b, kld = columns["nll"], columns["base_nll"], columns["kld"]
    block = block_of(**columns)
    root = math.sqrt(n - 1)

    def agree(estimate, value, error):
        assert estimate.value == pytest.approx(value, rel=1e-5, abs=1e-7)
        assert estimate.error == pytest.approx(error, rel=1e-4)

    ppl, base = math.exp(a.mean()), math.exp(b.mean())
    assert block.n == n
    agree(block.ppl, ppl, ppl * a.std() / root)
    agree(block.ppl_base, base, base * b.std() / root)
    assert block.correlation == pytest.approx(np.corrcoef(a, b)[0, 1], rel=1e-4)
    ratio_error = (a - b).std() / root  # of paired values, where the tool adds variances
    agree(block.log_ppl_ratio, (a - b).mean(), ratio_error)
    agree(block.ppl_ratio, ppl / base, ppl / base * ratio_error)
    agree(block.ppl_difference, ppl - base, (ppl * a - base * b).std() / root)
    agree(block.kld, kld.mean(), kld.std() / root)
    delta = np.exp(-a) - np.exp(-b)
    rms = math.sqrt((delta**2).mean())
    agree(block.delta_p, delta.mean(), delta.std() / root)
    agree(block.delta_p_rms, rms, 0.5 * (delta**2).std() / root / rms)
    same = columns["same_top"].mean()
    agree(block.same_top, same, columns["same_top"].std() / root)


@given(st.integers(MIN_TOKENS, 500), st.integers(0, 2**32 - 1))
def test_percentiles(n, seed):
    columns = random_tokens(n, seed)
    block = block_of(**columns)
    delta = np.exp(-columns["nll"]) - np.exp(-columns["base_nll"])
    ends = {"maximum": 100.0, "median": 50.0, "minimum": 0.0}
    for found, values in (
        (block.kld_percentiles, columns["kld"]),
        (block.delta_p_percentiles, delta),
    ):
        for name, value in found.items():
            expected = np.percentile(values, ends[name] if name in ends else float(name))
            # A place among 500 is a float32 within 3e-5 of a step.
            assert value == pytest.approx(expected, abs=1e-4 * np.ptp(values))
    assert len(block.kld_percentiles) == 11 and len(block.delta_p_percentiles) == 13


def test_a_percentiles_place_is_a_float32():
    """Of a million values a step apart, each percentile is its own place, rounded as C does."""
    n = 1_000_038
    kld = np.random.default_rng(0).permutation(n).astype(np.float64)
    found = block_of(np.ones(n), np.ones(n), kld, np.ones(n, bool)).kld_percentiles
    places = {}
    for name in ("99.9", "99.0", "95.0", "90.0", "10.0", "5.0", "1.0", "0.1"):
        fraction = ctypes.c_float(float(name) / 100).value
        places[name] = ctypes.c_float(fraction * (n - 1)).value
        assert found[name] == places[name]
    # What float64 would give lies elsewhere.
    assert abs(places["90.0"] - 0.9 * (n - 1)) > 0.04
    assert found["median"] == (n - 1) / 2


@pytest.mark.parametrize(("n", "median"), [(100, 49.5), (101, 50.0)])
def test_the_median_of_an_even_number_lies_between(n, median):
    kld = np.arange(n)[::-1]
    assert block_of(np.ones(n), np.ones(n), kld, np.ones(n)).kld_percentiles["median"] == median


def test_values_are_rounded_as_the_tool_stores_them():
    rng = np.random.default_rng(1)
    columns = random_tokens(300, 1)
    columns["nll"] = columns["base_nll"] + rng.normal(0, 1e-4, 300)
    block = block_of(**columns)
    a, b = columns["nll"].astype(np.float32), columns["base_nll"].astype(np.float32)
    sums = [math.fsum(x) / 300 for x in (a, b, a * a, b * b, a * b)]
    var = sums[2] - sums[0] ** 2 + sums[3] - sums[1] ** 2 - 2 * (sums[4] - sums[0] * sums[1])
    assert block.log_ppl_ratio.error == pytest.approx(math.sqrt(var / 299), rel=1e-6)
    exact = (columns["nll"] - columns["base_nll"]).std() / math.sqrt(299)
    assert block.log_ppl_ratio.error != pytest.approx(exact, rel=1e-3)
    kld = columns["kld"]
    assert block.kld.error == pytest.approx(kld.std() / math.sqrt(299), rel=1e-10)
    assert block.kld_percentiles["maximum"] == float(np.float32(kld.max()))
    assert block.kld_percentiles["minimum"] == float(np.float32(kld.min()))
    middle = np.sort(kld.astype(np.float32))[149:151]
    assert block.kld_percentiles["median"] == np.float32(0.5) * (middle[0] + middle[1])


def test_squares_of_probabilities_are_rounded_too():
    columns = random_tokens(300, 4)
    p, q = (
        np.array([math.exp(-float(np.float32(x))) for x in columns[name]], np.float32)
        for name in ("base_nll", "nll")
    )
    rms = math.sqrt(math.fsum((q - p) * (q - p)) / 300)
    assert block_of(**columns).delta_p_rms.value == pytest.approx(rms, rel=1e-12, abs=0)
    assert rms != pytest.approx(math.sqrt(((q - p).astype(float) ** 2).mean()), rel=1e-11, abs=0)


def test_below_a_hundred_tokens_the_tool_prints_none():
    columns = random_tokens(MIN_TOKENS, 2)
    assert block_of(**columns).n == 100
    assert llama_cpp_block(**{k: v[:-1] for k, v in columns.items()}) is None


def test_the_records_section_is_of_a_comparison_without_weights():
    scores = made(np.arange(MIN_TOKENS), full=False)
    against = scores.against
    assert against is not None
    wanted = block_of(
        scores.nll, -against.base_logprob, against.kld, scores.top1 == against.base_top1
    )
    assert block_section(scores, {}) == {"llama_cpp": wanted.to_json()}
    weighted = block_section(scores, {"weight": np.ones(MIN_TOKENS)})
    assert weighted == {"llama_cpp_note": "llama.cpp knows no weights, which this protocol has"}
    few = block_section(made(np.arange(MIN_TOKENS - 1), full=False), {})
    assert few["llama_cpp"] is None and few["llama_cpp_note"].endswith("and these are 99")
    assert block_section(replace(scores, against=None), {}) == {}
    # llama.cpp's own KLD comes before ours.
    own = replace(scores, against=replace(against, kld_llama_cpp=against.kld + 1))
    found = block_section(own, {})["llama_cpp"]
    assert found["kld"]["value"] == pytest.approx(wanted.kld.value + 1)


def test_equal_models():
    nll = np.random.default_rng(3).exponential(size=200)
    block = block_of(nll, nll, np.zeros(200), np.ones(200))
    assert block.ppl == block.ppl_base and block.ppl_ratio.value == 1.0
    assert block.kld.value == block.kld.error == 0.0
    assert math.isnan(block.delta_p_rms.error)
    assert "RMS Δp    :  0.000 ±   nan %" in block.text()
    assert "Same top p: 100.000 ± 0.000 %" in block.text()
    value = json.loads(json.dumps(block.to_json(), allow_nan=False))
    assert value["delta_p_rms"] == {"value": 0.0, "error": None}
    assert value["kld_percentiles"]["99.9"] == 0.0


def test_tokens_all_alike_have_no_correlation():
    block = block_of(np.ones(150), np.ones(150), np.zeros(150), np.ones(150))
    assert math.isnan(block.correlation)
    assert "Cor(ln(PPL(Q)), ln(PPL(base))):    nan%" in block.text()


def test_a_perplexity_beyond_any_number():
    block = block_of(np.full(150, 800.0), np.ones(150), np.zeros(150), np.ones(150))
    assert block.ppl.value == math.inf
    assert block.to_json()["ppl"]["value"] is None

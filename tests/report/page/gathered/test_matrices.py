"""Blocks of a section, and the pairs by them."""

import numpy as np
import pytest
from support.chat_blocks import NUMBERS, chat_scores, ends_by_hand, write_chat_run

from scoremode.report.page.gathered.matrices import cut, matrices
from scoremode.report.page.gathered.summary import summarized
from scoremode.results.folders.finished import open_run
from scoremode.results.statistics.block_length import block_length


@pytest.fixture(scope="module")
def summaries(made_report):
    return {name: summarized(made_report.folders[name], []) for name in ("a", "d", "e", "alone")}


def test_blocks_are_those_that_the_columns_ask_for(made_report, summaries):
    runs = [open_run(made_report.folders[name]) for name in ("a", "d", "e")]
    columns = {}
    for i, run in enumerate(runs):
        columns |= {f"nll {i}": run.nll, f"kld {i}": run.kld}
        if i:
            before = runs[i - 1]
            columns[f"nll {i - 1} - {i}"] = before.nll - run.nll
            columns[f"kld {i - 1} - {i}"] = before.kld - run.kld
    expected = block_length(runs[0].places.index, columns, 64)
    found = cut([summaries[name] for name in ("a", "d", "e")])
    assert (found.chosen.tokens, found.chosen.rule) == (expected.tokens, expected.rule)
    for name, length in expected.measured.items():
        assert found.chosen.measured[name] == pytest.approx(length, rel=1e-6), name
    block = runs[0].places.index // expected.tokens
    assert found.weights == pytest.approx(np.bincount(block))
    sums = found.sums(summaries["a"].units.nll)
    assert sums == pytest.approx(np.bincount(block, weights=runs[0].nll))


def test_differences_are_those_of_the_columns(made_report, summaries):
    found = matrices(summaries, cut(list(summaries.values())))
    assert [m["of"] for m in found] == ["kld", "nll"]
    assert [m["order"] for m in found] == [["a", "d", "e"], ["a", "d", "e", "alone"]]
    columns = {name: made_report.columns(name) for name in summaries}
    for matrix in found:
        many = len(matrix["order"])
        assert len(matrix["pairs"]) == many * (many - 1) / 2 and matrix["note"] is None
        for pair in matrix["pairs"]:
            a, b = columns[pair["a"]], columns[pair["b"]]
            of_a, of_b = (c["kld"] if matrix["of"] == "kld" else -c["logprob"] for c in (a, b))
            assert pair["value"] == pytest.approx((of_a - of_b).mean(), rel=1e-6, abs=1e-12)
            assert pair["lower"] < pair["value"] < pair["upper"]
            assert pair["p"] <= pair["p_holm"] <= 1
            assert (pair["ratio"] is None) == (matrix["of"] == "kld")
    verdicts = {(p["a"], p["b"]): p["verdict"] for p in found[0]["pairs"]}
    # d and e have noise of one size, and a far less.
    assert verdicts == {
        ("a", "d"): "lower", ("a", "e"): "lower", ("d", "e"): "not distinguishable"
    }  # fmt: skip


def test_one_run_has_no_pair(summaries):
    assert matrices({"a": summaries["a"]}, cut([summaries["a"]])) == []


def test_conversations_are_drawn_whole(tmp_path):
    runs = {n: write_chat_run(tmp_path / n, 0.3, seed) for n, seed in (("a", 0), ("b", 5))}
    found = {name: summarized(folder, []) for name, folder in runs.items()}
    blocks = cut(list(found.values()))
    assert blocks.chosen.rule == "conversation" and len(blocks.weights) == len(NUMBERS)
    (a, conversation), (b, _) = chat_scores(0.3), chat_scores(0.3, 5)
    sizes = [(conversation == n).sum() for n in NUMBERS]
    assert blocks.weights.tolist() == sizes
    kld, nll = matrices(found, blocks)
    for matrix, d in ((kld, a.against.kld - b.against.kld), (nll, a.nll - b.nll)):
        (pair,) = matrix["pairs"]
        assert pair["value"] == pytest.approx(d.mean(), rel=1e-6)
        by_hand = ends_by_hand(d, conversation)
        assert [pair["lower"], pair["upper"]] == pytest.approx(by_hand, rel=1e-6)

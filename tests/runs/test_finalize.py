"""A run's results, made again from what is on disk."""

from dataclasses import replace

import numpy as np
import pytest
from support.tampered_runs import each, run

from scoremode.errors import (
    TokenizerError,
)
from scoremode.results.folders.store import (
    SCORES,
    read_columns,
    read_record,
)
from scoremode.results.record.sections import sections
from scoremode.results.scores import Comparison, Scores
from scoremode.runs.measure import measure
from scoremode.text.protocol import preset


@pytest.mark.parametrize("protocol", ["disjoint", "score-mode", "strided", "hf-strided", "gptq"])
def test_every_metric_is_recomputed_from_the_parquet(protocol, request_):
    rules = preset(protocol).override(
        context_length=64, stride=None if protocol in ("disjoint", "gptq") else 24
    )
    result = measure(replace(request_, protocol=rules))
    scores, extras = read_columns(result.folder / SCORES)
    weights = extras.get("weight")
    assert (weights is not None) == (protocol == "hf-strided")
    again = sections(scores, 64, extras)["metrics"]
    assert again == result.record.document["metrics"] == read_record(result.folder)["metrics"]
    w = np.ones(len(scores)) if weights is None else weights
    assert again["ppl"]["value"] == pytest.approx(
        np.exp((scores.nll * w).sum() / w.sum()), rel=1e-12
    )
    of_bytes = (scores.nll * w).sum() / np.log(2) / (extras["token_bytes"] * w).sum()
    assert again["bits_per_byte"]["value"] == pytest.approx(of_bytes, rel=1e-12)


def test_bits_per_byte_are_of_the_text_s_bytes(request_, text):
    """All but the first token is scored once, and a BOS, which has no bytes, is the first."""
    record = measure(
        replace(request_, protocol=preset("strided").override(context_length=64, stride=32))
    ).record.document
    metrics = record["metrics"]
    bits = metrics["nll"]["value"] * metrics["nll"]["n"] / np.log(2)
    assert record["tokenizer"]["adds"]["front"]
    assert metrics["bits_per_byte"]["value"] == pytest.approx(bits / len(text.encode()), rel=1e-12)


def compared(scores: Scores) -> Scores:
    """With a made base, which finds every target a little likelier."""
    base = np.minimum(scores.logprob * 0.9, scores.top1_logprob)
    kld = np.abs(np.sin(scores.index)) * 0.1
    tv = np.ones_like(kld)
    return replace(
        scores, against=Comparison(base, scores.top1 * 0 + 9999, scores.top1_logprob, kld, kld, tv)
    )


@pytest.mark.parametrize("protocol", ["score-mode", "hf-strided"])
def test_every_section_of_a_comparison_is_recomputed_from_the_parquet(protocol, request_):
    rules = preset(protocol).override(context_length=64, stride=24)
    result = run(replace(request_, protocol=rules), each(compared))
    scores, extras = read_columns(result.folder / SCORES)
    again = sections(scores, 64, extras)
    block = "llama_cpp_note" if protocol == "hf-strided" else "llama_cpp"
    assert set(again) == {"metrics", "intervals", "distribution", "breakdown", "thresholds", block}
    assert set(again["breakdown"]) == {"confidence", "position", "token_class"}
    record = read_record(result.folder)
    for name, section in again.items():
        assert section == result.record.document[name] == record[name]
    blocks = again["intervals"]["blocks"]
    assert (again["metrics"]["ppl_ratio"]["ci95"] is not None) == (blocks >= 8)
    worst = record["worst"]
    assert len(worst) == len({fact["index"] for fact in worst}) == 10
    assert all(fact["context"] and fact["base_top1_text"] == "<id 9999>" for fact in worst)


def test_a_tokenizer_that_does_not_tell_its_bytes_is_said(request_, monkeypatch):
    def unknown(tokenizer):
        raise TokenizerError("made: a token's bytes of text are not known")

    monkeypatch.setattr("scoremode.runs.finalize.token_table", unknown)
    lines = []
    result = measure(request_, notify=lines.append)
    assert lines[-1] == (
        "no bits per byte, and no kinds of tokens: made: a token's bytes of text are not known"
    )
    assert (
        set(result.record.document["metrics"]) == {"ppl", "nll"}
        and not read_columns(result.folder / SCORES)[1]
    )

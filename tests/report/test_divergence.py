"""The table of a run against a base: every number of it, and no character that does something."""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.comparisons import made, overlapping
from support.record_fields import fields
from support.run_folders import CONTEXT, write_run

from scoremode.report.run import _reference, kld_document, run_document
from scoremode.report.terminal import document_text
from scoremode.results.folders.store import read_record, read_scores
from scoremode.results.record.definition import read_document
from scoremode.results.statistics.divergence import worst_tokens

PLACES = overlapping(9000, CONTEXT, 64)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder and its record."""
    scores = made(**PLACES, noise=0.3)
    rng = np.random.default_rng(0)
    extras = {
        "token_class": rng.integers(0, 5, len(scores)).astype(np.uint8),
        "token_bytes": rng.integers(1, 6, len(scores)).astype(np.uint16),
    }
    folder = write_run(tmp_path_factory.mktemp("runs") / "one", scores, extras=extras)
    return folder, read_record(folder)


def line(text: str, name: str) -> str:
    (found,) = [line for line in text.splitlines() if line.startswith(f"{name}  ")]
    return found


def worst_of(folder):
    scores = read_scores(folder)
    assert scores.against is not None
    texts = {
        "target_text": " the",
        "base_top1_text": " a",
        "top1_text": "\n",
        "context": "so it is ",
    }
    return [fact | texts for fact in worst_tokens(scores, scores.against)]


def test_every_number_is_there(run):
    folder, record = run
    text, metrics = (
        document_text(kld_document(read_document(record), folder, verbose=True)),
        record["metrics"],
    )
    assert f"{metrics['ppl']['value']:.6f}" in line(text, "PPL")
    assert f"{metrics['ppl_base']['value']:.6f}" in line(text, "base PPL")
    assert f"{metrics['ppl_ratio']['ci95'][0]:.6f}, " in line(text, "PPL / base")
    assert "measurably above the base on this text" in line(text, "PPL / base")
    assert f"{metrics['kld']['value']:.6g} nats" in line(text, "KLD")
    assert f"median {record['distribution']['kld']['50']:.3g}" in line(text, "KLD percentiles")
    assert f"{metrics['kld_reverse']['value']:.6g}" in line(text, "KLD(model‖base)")
    assert f"{metrics['jsd']['value']:.6g}" in line(text, "Jensen-Shannon")
    assert f"{metrics['top1']['value']:.3%}" in line(text, "same top-1")
    assert f"5: {metrics['top5_sets']['value']:.2%}" in line(text, "same top-k, any order")
    assert f"3: {metrics['top3_order']['value']:.2%}" in line(text, "same top-k in order")
    assert f"{metrics['delta_p']['value']:+.3%}" in line(text, "Δp of the target")
    assert f"RMS {metrics['rms_delta_p']['value']:.3%}" in text
    assert f"{metrics['bits_per_byte']['value']:.6f}" in line(text, "bits per byte")
    assert "base (stored, models/base)" in line(text, "against")
    spread = record["distribution"]["kld"]
    assert line(text, "KLD p99").split()[2] == f"{spread['99']:.4g},"
    intervals = record["intervals"]
    words = f"{intervals['blocks']} blocks of {intervals['block_length']:,} tokens"
    assert words in line(text, "intervals from")
    for groups in record["breakdown"].values():
        for group in groups:
            assert f"{group['kld']['value']:.4g}" in line(text, group["group"])
            assert f"{group['share']:.2%}" in line(text, group["group"])
    for name in ("model", "protocol", "over", "arithmetic", "device", "record", "speed"):
        assert line(text, name)


def test_the_number_comes_first_and_details_where_asked(run):
    """KLD with its interval, against what, over how much: then whatever else there is."""
    folder, record = run
    short, long = (
        document_text(kld_document(read_document(record), folder, verbose=verbose))
        for verbose in (False, True)
    )
    verdict, short = short.split("\n\n")
    rows = short.splitlines()
    assert re.fullmatch(
        r"one: worse than base by at least [\d.]+ nats \(KLD [\d.]+ nats \[\S+, \S+\]\); "
        r"(better|worse) by at least [\d.]+% \(PPL / base ×[\d.]+ \[\S+, \S+\]\)",
        verdict,
    )
    assert rows[0].startswith("KLD ") and "95 % [" in rows[0]
    assert rows[1].startswith("against ")
    assert "\n\n" not in short and len(rows) == 15
    over = (
        f"{record['plan']['scored']:,} targets (scored tokens) in "
        f"{record['plan']['windows']:,} windows of made.txt"
    )
    assert over in line(short, "over")
    assert line(short, "more").endswith(f"scoremode show {folder} -v")
    assert rows[:-1] == long.split("\n\n")[1].splitlines()
    for name in ("softmax over", "arithmetic", "device", "KLD percentiles", "base's confidence"):
        assert f"\n{name} " in long and f"\n{name} " not in short


def test_it_shares_its_rows_with_a_run_without_base(run):
    folder, record = run
    theirs = document_text(run_document(read_document(record), folder, verbose=True)).splitlines()
    text = document_text(kld_document(read_document(record), folder, verbose=True))
    ours = {" ".join(row.split()) for row in text.splitlines()}
    for row in theirs[1:]:
        assert " ".join(row.split()) in ours or row.startswith("bits per byte")


def test_without_what_was_not_asked_for(tmp_path):
    folder = write_run(tmp_path / "x", made(**PLACES, noise=0.3, full=False))
    text = document_text(kld_document(read_document(read_record(folder)), folder, verbose=True))
    for words in ("Jensen", "top-k", "kind of token", "bits per byte", "noise", "largest KLD"):
        assert words not in text


@pytest.mark.parametrize(
    ("noise", "words"), [(0.3, "measurably above"), (0.0, "not distinguishable from")]
)
def test_the_verdict_in_words(noise, words, tmp_path):
    folder = write_run(tmp_path / "x", made(**PLACES, noise=noise))
    record = read_record(folder)
    assert f"{words} the base on this text" in document_text(
        kld_document(read_document(record), folder)
    )
    scores = made(**PLACES, noise=noise)
    kinder = replace(scores, logprob=scores.logprob + 0.1)
    better = write_run(tmp_path / "y", kinder)
    assert "measurably below the base on this text" in document_text(
        kld_document(read_document(read_record(better)), better)
    )


def test_flips_that_were_not_seen_are_none_of_so_many(tmp_path):
    """0.0 in 10,000 would be a rate that rounding has made."""
    for noise, words in ((0.0, "none of "), (2.0, " in 10,000 ")):
        folder = write_run(tmp_path / str(noise), made(**PLACES, noise=noise))
        said = line(
            document_text(kld_document(read_document(read_record(folder)), folder)),
            "confident flips",
        )
        assert words in said and "targets where the base gave > 0.9" in said


def test_few_blocks_have_no_verdict(tmp_path):
    folder = write_run(tmp_path / "x", made(**overlapping(200, CONTEXT, 64)))
    text = document_text(kld_document(read_document(read_record(folder)), folder, verbose=True))
    assert line(text, "PPL / base").endswith("(no interval)")
    why = "1 block of 1,024 tokens: an interval needs at least 8"
    assert line(text, "no interval").endswith(why)
    # Once, and not again for every metric or below either breakdown.
    assert text.count(why) == 1
    first = text.splitlines()[0]
    assert first.endswith("against base; not decidable with this text, too short for an interval")


def test_the_first_line_is_the_verdict_within_the_margin(run):
    folder, record = run
    text = document_text(kld_document(read_document(record), folder, margin=0.9))
    assert text.startswith("one: equivalent to base within 0.9 nats (KLD ")
    assert "; equivalent within ±90% (PPL / base " in text.splitlines()[0]


def test_groups_without_an_interval_have_their_reasons_together(tmp_path):
    folder = write_run(tmp_path / "x", made(**PLACES, noise=0.3))
    record = read_record(folder)
    groups = [g for rows in record["breakdown"].values() for g in rows]
    for number, group in enumerate(groups[:3], 1):
        group["kld"] |= {"ci95": None, "note": f"{number} blocks"}
    text = document_text(kld_document(read_document(record), folder, verbose=True))
    assert text.count("\nno interval: ") == 1
    assert "\n\nno interval: 1 blocks; 2 blocks; 3 blocks\n" in text + "\n"


@pytest.mark.parametrize(
    ("floor", "words"),
    [
        ({"value": 0.0}, "below resolution: the base with eager attention gives the same bits"),
        (
            {"value": 0.001},
            "0.001 nats, of the base with eager attention; the KLD is 25 times that",
        ),
        ({"value": 0.1}, "the KLD is 0.25 times that, and says nothing"),
    ],
)
def test_the_noise_floor(floor, words, run):
    folder, record = run
    kld = record["metrics"]["kld"] | {"value": 0.025}
    changed = record | {
        "metrics": record["metrics"] | {"kld": kld},
        "noise_floor": {
            "words": "with eager attention",
            "kld": {"value": floor["value"], "ci95": None, "n": 1, "note": None},
            "resolves": floor["value"] > 0,
        },
    }
    assert words in line(document_text(kld_document(read_document(changed), folder)), "noise floor")


def test_gates(run):
    folder, record = run
    gates = [
        {"name": "max_kld", "metric": "kld", "limit": 0.01, "value": 0.02812, "on": "value",
         "bound": 0.02812, "met": False, "note": None},
        {"name": "min_top1", "metric": "top1", "limit": 0.5, "value": 0.8, "on": "upper",
         "bound": 0.75, "met": True, "note": None},
        {"name": "max_ppl_ratio", "metric": "ppl_ratio", "limit": 2, "value": 1.1, "on": "upper",
         "bound": None, "met": False, "note": "1 block"},
        {"name": "min_half_life", "metric": "the half-life", "limit": 500, "value": 63, "on": "value",
         "bound": None, "met": False, "note": "it is longer than 63"},
    ]  # fmt: skip
    text = document_text(kld_document(read_document(record | {"gates": gates}), folder))
    rows = [row.split(maxsplit=1)[1] for row in text.splitlines() if row.startswith("gate ")]
    assert rows == [
        "--max-kld 0.01: 0.02812: NOT MET",
        "--min-top1 0.5: 0.8, lower bound 0.75: met",
        "--max-ppl-ratio 2: 1.1 (1 block): NOT MET",
        "--min-half-life 500: 63 (it is longer than 63): NOT MET",
    ]


def test_a_gate_met_by_a_value_without_an_interval_says_so(tmp_path):
    folder = write_run(tmp_path / "x", made(**overlapping(200, CONTEXT, 64)))
    record = read_record(folder)
    gate = {"name": "max_kld", "metric": "kld", "limit": 9.0, "value": 0.5, "on": "value",
            "bound": 0.5, "met": True, "note": None}  # fmt: skip
    text = document_text(kld_document(read_document(record | {"gates": [gate]}), folder))
    n = record["metrics"]["kld"]["n"]
    assert line(text, "gate").endswith(f"0.5: met, by a value without an interval ({n:,} targets)")
    assert text.splitlines()[0].endswith("1 gate met, without an interval")


def test_the_worst_tokens_in_context(run):
    folder, record = run
    worst = worst_of(folder)
    worst[0]["context"] = "a" * 100 + " next to it"
    text = document_text(
        kld_document(read_document(record | {"worst": worst}), folder, verbose=True)
    )
    table = text[text.index("largest KLD") :].splitlines()
    assert len(table) == 2 + len(worst) == 12
    assert f"{worst[0]['kld']:.4g}" in table[2]
    assert "…" + "a" * 33 + " next to it" in table[2] and "a" * 34 not in table[2]
    for words in ('" the"', '" a"', r'"\n"', f"{worst[3]['p_base']:.2%}", "so it is "):
        assert words in table[5]
    assert table[5].endswith(f"{worst[3]['window']}:{worst[3]['position']}")
    bare = [
        {k: v for k, v in fact.items() if not k.endswith(("text", "context"))} for fact in worst
    ]
    assert f"id {worst[0]['target']} " in document_text(
        kld_document(read_document(record | {"worst": bare}), folder, verbose=True)
    )


def test_no_control_character_gets_through(run):
    folder, record = run
    bad = "\x1b[2J\x9b\u202e\r\n\t"
    worst = [
        fact | dict.fromkeys(("target_text", "top1_text", "base_top1_text", "context"), bad * 10)
        for fact in worst_of(folder)
    ]
    reference = record["reference"] | {"source": bad, "kind": bad}
    floor = {"words": bad, "kld": record["metrics"]["kld"], "resolves": True}
    text = document_text(
        kld_document(
            read_document(record | {"worst": worst, "reference": reference, "noise_floor": floor}),
            folder,
            verbose=True,
        )
    )
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\\x1b" in text


def test_a_base_in_llama_cpps_arithmetic_is_told():
    reference = fields({"source": "kept", "kind": "stored"})
    reference.engine = {"arithmetic": "llama.cpp"}
    assert _reference(reference) == "kept (stored, in llama.cpp's arithmetic)"
    assert _reference(fields({"source": "kept", "kind": "stored"})) == "kept (stored)"


def test_a_base_without_a_checksum_is_told():
    reference = {"source": "base.kld", "kind": "llama.cpp", "checksum": "none in the file"}
    assert _reference(fields(reference)) == "base.kld (llama.cpp, checksum: none in the file)"

"""check's findings as text: a line a part for what held, each reason once, the total last."""

from copy import deepcopy
from typing import Any

from scoremode.report.checks import check_document, verify_document
from scoremode.report.rendering import table_csv
from scoremode.report.terminal import document_text

FINDINGS = [
    ("metrics", "ppl", "held", "46.95"),
    ("metrics", "nll", "held", "3.8"),
    ("metrics", "kld", "wrong", "its kld is 1, and its scores give 2"),
    ("metrics", "a interval", "unchecked", "not compared: made by 0.0.9"),
    ("metrics", "b interval", "unchecked", "not compared: made by 0.0.9"),
    ("text", "sha256", "held", "abc"),
]
VALUE = {
    "runs": [
        {
            "run": "runs/a",
            "model": "m\x1b[31m",
            "not_checked": ["command", "x\x1b[31m"],
            "findings": [dict(zip(("part", "name", "status", "words"), f, strict=True))
                         for f in FINDINGS],
            "second_run": {"windows": [1, 2], "of_windows": 20, "model": "m", "seed": 0,
                           "found_probability": {"1": 0.1, "10": 0.65132},
                           "targets": 100},
        }
    ],
    "left_out": ["runs/b: is not done"],
    "counts": {"held": 3, "unchecked": 3, "wrong": 1},
}  # fmt: skip


def test_what_held_is_one_line_and_the_rest_is_told():
    lines = document_text(check_document(VALUE)).splitlines()
    text = "\n".join(lines)
    assert "metrics             held: 2 (ppl, nll)" in text
    assert "metrics: kld        WRONG: its kld is 1, and its scores give 2" in text
    assert text.count("not compared: made by 0.0.9") == 1 and "metrics: 2 of them" in text
    assert "2 of 20 windows by m" in text and "\x1b" not in text
    # First, and not once more behind.
    assert lines[0] == "held: 3; could not be checked: 3; wrong: 1" and text.count("held: 3") == 1
    assert "runs/b: is not done" in text
    assert "not checked         nothing holds these fields of the record: command, x" in text
    assert "at least 0.1 for 1 of them, 0.651 for 10 of them" in text


def test_verbose_has_a_line_for_each_and_data_have_all():
    text = document_text(check_document(VALUE, verbose=True))
    assert "metrics: ppl        held: 46.95" in text and "metrics: nll" in text
    rows = table_csv(check_document(VALUE).data).splitlines()
    assert rows[0] == "run,part,what,result,found" and len(rows) == 1 + len(FINDINGS) + 2


VERIFIED = {
    "checkpoint": {"source": "m"},
    "protocol": {"name": "p", "context_length": 8, "stride": 8, "scored": "all",
                 "vocabulary": "config"},
    "corpus": {"name": "t", "rows": None, "row_limit": None,
               "text": {"bytes": 9, "rule": "rows", "sha256": ""}},
    "sample": {"windows": range(8), "seed": 4, "scored": 4088},
    "plan": {"windows": 45},
}  # fmt: skip


def engine(*, ci95: list[float] | None, note: str | None, own: bool) -> dict[str, Any]:
    difference = {
        "ppl_ratio": {"value": 1.0000523, "ci95": None},
        "bias": {"value": 5.2e-5, "ci95": ci95, "note": note},
        "rms": 9e-3,
        "worst": -6.1e-2,
        "top1": 0.9958,
    }
    bins = [
        {"first": 1, "last": 15, "n": 120, "rms": 8e-3, "bias": 0.0, "top1": 1.0},
        {"first": 16, "last": 31, "n": 1128, "rms": 1e-2, "bias": 0.0, "top1": 1.0},
    ]
    worst = {
        "window": 3, "position": 12, "index": 9, "target": 7, "logprob": -2.0, "top1": 1,
        "other_logprob": -1.5, "difference": 0.5, "other_top1": 1, "target_text": "\x1b[31mé",
        "context": "a text\nbefore the target, of some length",
    }  # fmt: skip
    return {
        "metrics": {"ppl": {"value": 40.382756}},
        "difference": difference,
        "verdict": {"agrees": True, "arithmetic": "same", "words": "agrees: as bfloat16"},
        "is_reference": own,
        "by_position": bins,
        "growth": 1.25,
        "worst": [worst],
    }


def test_differences_and_verdicts_are_an_engine_each():
    torch = engine(ci95=[-2.2e-4, 4.2e-4], note=None, own=True)
    vllm = engine(ci95=None, note="2 blocks", own=False)
    other = engine(ci95=None, note="1 block", own=False)
    between = {"engine": "vllm", "other": "torch", **deepcopy(vllm)}
    value = VERIFIED | {
        "reference": torch | {"compute": "float32", "sums": "float64",
                              "engine": {"arithmetic": "weights"}},
        "engines": {"torch": torch, "vllm": vllm, "other": other},
        "between": [between],
        "agree": False,
    }  # fmt: skip
    vllm["verdict"] |= {"arithmetic": "other"}
    other["verdict"] |= {"agrees": False}
    text = document_text(verify_document(value))
    first, facts, table, verdicts, positions, worst = text.split("\n\n")
    assert first == (
        "torch agrees with the float32 reference within rounding; vllm differs from the float32 "
        "reference no more than other arithmetic explains; other DISAGREES with the float32 reference; "
        "vllm agrees with torch within rounding, on 4,088 targets"
    )
    assert "windows    8 of 45 (seed 4), 4,088 targets" in facts
    assert facts.endswith("arithmetic weights, row sums in float64: PPL 40.382756")
    numbers = "×1.0000523  +5.2e-05", "9.0e-03  -6.1e-02      99.58%"
    rows = [" ".join(row.split()) for row in table.splitlines()[2:]]
    first, last = (" ".join(part.split()) for part in numbers)
    assert rows == [
        f"torch - reference 40.382756 {first} [-2.2e-04, +4.2e-04] {last}",
        f"vllm - reference 40.382756 {first} none {last}",
        f"other - reference 40.382756 {first} none {last}",
        f"vllm - torch {first} none {last}",
    ]
    assert [tuple(line.split("  ", 1)) for line in verdicts.splitlines()] == [
        ("torch", "       agrees: as bfloat16; the reference's own arithmetic: proves that it "
                  "repeats, no more"),
        ("vllm", "        agrees: as bfloat16"),
        ("other", "       agrees: as bfloat16"),
        ("vllm - torch", "agrees: as bfloat16"),
        ("no interval", " 1 block"),
        ("no interval", " 2 blocks"),
    ]  # fmt: skip
    rows = [" ".join(row.split()) for row in positions.splitlines()]
    assert rows[0].startswith("rms at position targets torch - reference vllm - reference")
    assert rows[2] == "1–15 120 8.0e-03 8.0e-03 8.0e-03 8.0e-03" and rows[3].startswith(
        "16–31 1,128"
    )
    assert rows[4] == "last / first - ×1.25 ×1.25 ×1.25 ×1.25"
    rows = [" ".join(row.split()) for row in worst.splitlines()]
    end = '"\\x1b[31mé" …e target, of some length -2.000 -1.500 +5.0e-01 3:12'
    assert rows[2] == f"torch - reference {end}" and rows[5] == f"vllm - torch {end}"


def test_without_a_reference_engines_are_told_of_as_pairs():
    one = engine(ci95=None, note="2 blocks", own=False)
    pair = {"engine": "b", "other": "a", **one}
    pair["verdict"] = {"agrees": False, "arithmetic": "same", "words": "disagrees: rms 3 nats"}
    pair |= {"by_position": one["by_position"][:1], "worst": []}
    alone = {"metrics": one["metrics"], "interpreter": {
        "path": "/opt/new/bin/python", "python": "3.12.1", "packages": {"vllm": "0.33.0"},
    }, "environment": {"VLLM_A": "1"}}  # fmt: skip
    value = VERIFIED | {
        "reference": None,
        "engines": {"a": {"metrics": one["metrics"]}, "b": alone},
        "between": [pair],
        "agree": False,
    }
    first, facts, table, verdicts = document_text(verify_document(value)).split("\n\n")
    assert first == "b DISAGREES with a, on 4,088 targets"
    assert "reference  none: engines are compared with one another alone" in facts
    assert "/opt/new/bin/python (Python 3.12.1; vllm 0.33.0) VLLM_A=1" in facts
    assert len(table.splitlines()) == 3 and "disagrees: rms 3 nats" in verdicts

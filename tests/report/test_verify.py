"""The table of `scoremode verify`."""

from typing import Any

from scoremode.report.verify import verify_table


def engine(*, ci95: list[float] | None, note: str | None, own: bool) -> dict[str, Any]:
    difference = {
        "ppl_ratio": {"value": 1.0000523},
        "bias": {"value": 5.2e-5, "ci95": ci95, "note": note},
        "rms": 9e-3,
        "worst": -6.1e-2,
        "top1": 0.9958,
    }
    return {
        "metrics": {"ppl": {"value": 40.382756}},
        "difference": difference,
        "verdict": {"words": "agrees: as bfloat16"},
        "is_reference": own,
    }


def test_differences_and_verdicts_are_an_engine_each():
    torch = engine(ci95=[-2.2e-4, 4.2e-4], note=None, own=True)
    vllm = engine(ci95=None, note="2 blocks", own=False)
    other = engine(ci95=None, note="1 block", own=False)
    between = {"engine": "vllm", "other": "torch", "difference": vllm["difference"]}
    value = {
        "checkpoint": {"source": "m"},
        "protocol": {"name": "p", "context_length": 8, "stride": 8, "scored": "all"},
        "corpus": {"name": "t", "row_limit": None, "text": {"bytes": 9, "rule": "rows"}},
        "sample": {"windows": range(8), "seed": 4, "scored": 4088},
        "plan": {"windows": 45},
        "reference": torch | {"compute": "float32", "sums": "float64",
                              "engine": {"arithmetic": "weights"}},
        "engines": {"torch": torch, "vllm": vllm, "other": other},
        "between": [between],
    }  # fmt: skip
    facts, table, verdicts = verify_table(value).split("\n\n")
    assert "windows    8 of 45 (seed 4), 4,088 targets" in facts
    assert facts.endswith("arithmetic weights, row sums in float64: PPL 40.382756")
    numbers = "1.0000523  +5.2e-05", "9.0e-03  -6.1e-02      99.58%"
    rows = [" ".join(row.split()) for row in table.splitlines()[2:]]
    first, last = (" ".join(part.split()) for part in numbers)
    assert rows == [
        f"torch - reference 40.382756 {first} [-2.2e-04, +4.2e-04] {last}",
        f"vllm - reference 40.382756 {first} none {last}",
        f"other - reference 40.382756 {first} none {last}",
        f"vllm - torch {first} none {last}",
    ]
    assert verdicts.splitlines() == [
        "torch        agrees: as bfloat16; the reference's own arithmetic: proves that it repeats, "
        "no more",
        "vllm         agrees: as bfloat16",
        "other        agrees: as bfloat16",
        "no interval  1 block",
        "no interval  2 blocks",
    ]

"""The pages' examples: tables as the program prints them, figures that agree. Commands are
test_docs_commands.py's."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.comparisons import made

from scoremode.demo.variants import _COLUMNS
from scoremode.report.checks import verify_document
from scoremode.report.document import Column, Table
from scoremode.report.terminal import document_text, table_text
from scoremode.results.record.sections import sections
from scoremode.results.scores import Comparison

ROOT = Path(__file__).parent.parent


def blocks(page: str) -> list[str]:
    return re.findall(r"^```\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def test_the_demos_table_has_the_columns_that_the_demo_prints():
    (block,) = (b for b in blocks("docs/start.md") if "PPL / dense" in b)
    header, rule, *rows = block.splitlines()
    columns = tuple(Column(column.head, None) for column in _COLUMNS)
    printed = table_text(Table(columns, tuple(tuple(re.split(r"\s{2,}", row)) for row in rows)))
    assert printed == block.rstrip("\n") and set(rule) == {"-"} and "KLD p99" in header
    assert "The last digits depend on the CPU" in (ROOT / "docs/start.md").read_text()


def difference(ratio: float, bias: float, ci95: list[float], *others: float) -> dict[str, Any]:
    rms, worst, top1 = others
    return {
        "ppl_ratio": {"value": ratio, "ci95": None},
        "bias": {"value": bias, "ci95": ci95, "note": None},
        "rms": rms,
        "worst": worst,
        "top1": top1,
    }


def test_verifys_page_shows_what_verify_prints():
    """Its numbers, put into the table that the program makes of them."""
    (block,) = (b for b in blocks("docs/check.md") if b.startswith("$ scoremode verify"))
    _, _, text = block.partition("\n")
    words = re.findall(r"^(?:torch|vllm|vllm - torch) +(\w+ ?\w*: .*)$", text, re.MULTILINE)
    rows = re.findall(r"^([\d,]+)–([\d,]+) +([\d,]+) +(\S+) +(\S+) +(\S+)$", text, re.MULTILINE)
    found = re.findall(
        r"^(.*\w)  +(\".*\") +…(.*?) +(\S+) +(\S+) +(\S+) +(\d+):(\d+)$", text, re.MULTILINE
    )
    assert (len(words), len(rows), len(found)) == (3, 6, 6)

    def pair(place: int, name: str, growth: float, *numbers: Any) -> dict[str, Any]:
        """The numbers of a pair by its place in the tables, as they are printed there."""
        bins = [
            {"first": int(r[0]), "last": int(r[1]), "n": int(r[2].replace(",", "")),
             "rms": float(r[3 + place])}
            for r in rows
        ]  # fmt: skip
        worst = [
            {"target_text": w[1][1:-1], "context": w[2], "logprob": float(w[3]),
             "other_logprob": float(w[4]), "difference": float(w[5]), "window": w[6],
             "position": w[7]}
            for w in found
            if w[0] == name
        ]  # fmt: skip
        return {
            "difference": difference(*numbers),
            "verdict": {"agrees": True, "arithmetic": "same", "words": words[place]},
            "by_position": bins,
            "growth": growth,
            "worst": worst,
        }

    def engine(ppl: float, place: int, name: str, growth: float, *numbers: Any) -> dict[str, Any]:
        own = pair(place, f"{name} - reference", growth, *numbers)
        return {"metrics": {"ppl": {"value": ppl}}, "is_reference": False, **own}

    value = {
        "checkpoint": {"source": "W4A16-g64"},
        "protocol": {
            "name": "disjoint+context-length=512",
            "context_length": 512,
            "stride": 512,
            "scored": "all",
            "vocabulary": "config",
        },
        "corpus": {
            "name": "heldout.txt",
            "rows": None,
            "row_limit": None,
            "text": {"bytes": 61_818, "rule": "rows", "sha256": ""},
        },
        "sample": {"windows": range(8), "seed": 0, "scored": 4088},
        "plan": {"windows": 45},
        "reference": {
            "compute": "float32",
            "sums": "float64",
            "engine": {"arithmetic": "weights"},
            "metrics": {"ppl": {"value": 40.380643}},
        },
        "engines": {
            "torch": engine(
                40.382863,
                0,
                "torch",
                0.85,
                1.000055,
                5.5e-5,
                [-3e-4, 4.9e-4],
                9.1e-3,
                0.054,
                0.9958,
            ),
            "vllm": engine(
                40.384657,
                1,
                "vllm",
                0.94,
                1.0000994,
                9.9e-5,
                [-1.8e-4, 4.7e-4],
                0.011,
                -0.069,
                0.9892,
            ),
        },
        "agree": True,
        "between": [
            {"engine": "vllm", "other": "torch"}
            | pair(
                2, "vllm - torch", 0.92, 1.0000444, 4.4e-5, [-5.2e-4, 4e-4], 0.012, 0.069, 0.9885
            )
        ],
    }
    assert f"{document_text(verify_document(value))}\n" == text


def test_choosings_figures_are_those_of_readme_and_the_first_run():
    """Each row of its table is one of a table there."""
    rows = re.findall(
        r"^\| (demo|SmolLM2-135M) \| (.*) \|$",
        (ROOT / "docs/choosing.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 11
    pages = {"demo": "docs/start.md", "SmolLM2-135M": "README.md"}
    for model, row in rows:
        name, kld, top1, acceptance, ratio = (cell.replace(" %", "%") for cell in row.split(" | "))
        text = (ROOT / pages[model]).read_text()
        (line,) = (line.split() for line in text.splitlines() if line.split()[:1] == [name])
        ratios = [f"×{float(cell[1:]):.4f}" for cell in line if cell.startswith("×")]
        assert {kld, top1, acceptance, ratio} <= {*line, *ratios}, name


def test_every_metric_of_a_comparison_has_its_meaning():
    n = 400
    scores = made(np.arange(n))
    # All columns that there are, but for another tool's own.
    assert scores.against is not None
    scores = replace(scores, against=replace(scores.against, tv_draft=scores.against.tv))
    assert scores.against is not None
    assert {f.name for f in fields(Comparison)} - set(scores.against.columns()) == {"kld_llama_cpp"}
    found = sections(scores, 40, {"token_bytes": np.ones(n, np.uint16)})
    page = (ROOT / "docs/statistics.md").read_text()
    for name in [*found["metrics"], *found["distribution"]]:
        assert f"`{re.sub(r'^top[0-9]+_', 'topK_', name)}`" in page, name


PAGES_OF_TODAY = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.stem != "log")


@pytest.mark.parametrize("page", PAGES_OF_TODAY)
def test_every_module_that_a_page_names_is_there(page):
    """docs/log.md is history, and names what was."""
    package, text = ROOT / "src" / "scoremode", (ROOT / "docs" / page).read_text(encoding="utf-8")
    for room, rest in re.findall(r"`([a-z_]+)(/[a-z_/]+\.py)`", text):
        if (package / room).is_dir():
            assert (package / f"{room}{rest}").is_file(), f"{room}{rest}"

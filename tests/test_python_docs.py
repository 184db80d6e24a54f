"""docs/python.md: its snippets run as they stand, on the demo's model."""

import re
from pathlib import Path
from typing import Any

import pytest

from scoremode.demo.quantize import VARIANTS, quantize_folder

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
# Enough for intervals: 8 blocks of 1,024 tokens.
TEXT_BYTES = 28_000
JOBS = dict(re.findall(r"<!-- job: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def names(demo, tmp_path_factory) -> dict[str, Any]:
    """What the page says that its snippets' names stand for."""
    folder = tmp_path_factory.mktemp("python")
    quants = []
    for variant in VARIANTS[:2]:
        quants.append(str(folder / variant.name))
        quantize_folder(demo / "model", folder / variant.name, variant)
    (folder / "text.txt").write_text((demo / "heldout.txt").read_text()[:TEXT_BYTES])
    return {
        "BASE": str(demo / "model"),
        "QUANT": quants[1],
        "QUANTS": quants,
        "TEXT": folder / "text.txt",
        "folder": folder,
    }


def ran(job: str, names: dict[str, Any], monkeypatch, **more: Any) -> list[tuple]:
    """What the snippet shows; its names go on into `names`."""
    monkeypatch.chdir(names["folder"])
    shown: list[tuple] = []
    exec(compile(JOBS[job], f"{PAGE.name}, {job}", "exec"), names | more | {
        "show": lambda *values: shown.append(values)
    })  # fmt: skip
    return shown


def test_the_page_has_these_jobs():
    jobs = ["measure", "base", "many", "scores", "frames", "gate", "before", "parts", "pipeline"]
    assert list(JOBS) == jobs
    # Nothing that looks like a snippet is left out, but for the first lines of both parts.
    assert PAGE.read_text().count("```python") == len(JOBS) + 2


def test_measuring_a_model(names, monkeypatch):
    (ppl, _), (bits,), (folder,) = ran("measure", names, monkeypatch)
    assert 44 < float(ppl) < 47 and bits == pytest.approx(4.5, abs=0.01)
    assert folder.parent == Path("runs") and (folder / "record.json").is_file()


def test_a_quant_and_its_base(names, monkeypatch):
    *rows, (p99,) = ran("base", names, monkeypatch)
    values = {name: value for name, value, _ in rows}
    assert 0.01 < values["kld"] < 0.05 < p99 and 0.8 < values["top1"] < 0.95
    assert 1.0 < values["ppl_ratio"] < 1.05


def test_many_quants_and_then_their_tokens_and_gates(names, monkeypatch, tmp_path):
    base, better, worse, (a, verdict, b) = ran("many", names, monkeypatch)
    assert base == ("demo", None, 16)
    assert [better[0], worse[0]] == ["W8A16", "W4A16-g32"] == [a, b] and better[1] < worse[1] / 10
    assert verdict == "better"
    run = next(p for p in (names["folder"] / "runs").glob("*W4A16*") if is_against(p, "stored"))
    (quantiles, _), (rows,) = ran("scores", names, monkeypatch, RUN=str(run))
    assert list(quantiles) == sorted(quantiles)
    assert len(rows) == 5 and rows[0]["kld"] == max(row["kld"] for row in rows) > quantiles[-1]
    (said,) = ran("gate", names, monkeypatch, RUN=run, base=names["folder"] / "reference")
    assert re.fullmatch(
        r"not released: runs/.*: gate not met: min_top1='90%': the share of same top-1 is 0\.8\d+",
        said[0],
    )


def test_frames(names, monkeypatch):
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    run = next(p for p in (names["folder"] / "runs").glob("*W4A16*") if is_against(p, "stored"))
    (series,), (frame,), (table,) = ran("frames", names, monkeypatch, RUN=run)
    assert series.tolist() == pytest.approx(frame["kld"].to_list()) and len(series) == 3
    assert isinstance(frame, polars.DataFrame)
    assert table["kld_nats"].notna().tolist() == [False, True]


def test_before_a_measurement(names, monkeypatch):
    (runs, bits), (windows, scored) = ran("before", names, monkeypatch)
    assert runs is True and bits == pytest.approx(4.5, abs=0.01)
    assert (windows - 1) * 255 < scored <= windows * 255


def test_parts_of_a_model(names, monkeypatch):
    *rows, (whole,) = ran("parts", names, monkeypatch)
    alone = [kld for _, kld, _ in rows]
    assert len(rows) == 3 and alone == sorted(alone, reverse=True) and 0 < alone[-1] < whole


def is_against(folder: Path, kind: str) -> bool:
    from scoremode.results.folders.store import read_record

    return (read_record(folder).get("reference") or {}).get("kind") == kind

"""Finished runs: of the demo model, as a user's command leaves them, and made ones."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.comparisons import made, overlapping
from support.run_folders import BASE_FILES, CONTEXT, NOISE, scores_of, write_run

from scoremode.cli.main import main
from scoremode.results.folders.store import find_runs


@pytest.fixture(scope="session")
def real_runs(demo, tmp_path_factory) -> dict[str, Path]:
    """By what each is of: a perplexity, a kept reference, a comparison with all that one may have."""
    folder = tmp_path_factory.mktemp("real")
    text, model = folder / "text.txt", str(demo / "model")
    text.write_bytes((demo / "heldout.txt").read_bytes()[:2500])
    how = ["-f", str(text), "--protocol", "disjoint", "--context-length", "64", "--quiet"]
    how += ["--device", "cpu"]
    kept = str(folder / "kept")
    compare = ["--reference", kept, "--noise-floor", "dtype", "--full", "--max-kld", "9"]
    assert main(["ppl", model, *how, "-o", str(folder / "ppl")]) == 0
    assert main(["reference", model, *how, "-o", kept]) == 0
    assert main(["kld", model, *how, *compare, "-o", str(folder / "kld")]) == 0
    found = {name: next(find_runs(folder / name))[0] for name in ("ppl", "kld")}
    return found | {"kept": Path(kept)}


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Runs of one plan that tests only read: three against a base, and the base alone."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {name: write_run(folder / name, scores_of(noise)) for name, noise in NOISE.items()}
    runs["base"] = write_run(
        folder / "base", replace(scores_of(0.0), against=None), files=BASE_FILES
    )
    runs["alone"] = write_run(folder / "alone", replace(scores_of(0.3, 5), against=None))
    return runs


@pytest.fixture
def one(tmp_path):
    """A run of the same plan with a changed record."""

    def write(changes=None, scores=None, name="one"):
        return write_run(tmp_path / name, scores or scores_of(0.3), changes=changes)

    return write


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    scores = made(**overlapping(700, CONTEXT, 64), noise=0.3, full=True)
    return write_run(tmp_path_factory.mktemp("whole") / "run", scores)


@pytest.fixture(scope="module")
def spoiled(whole, tmp_path_factory) -> Path:
    return shutil.copytree(whole, tmp_path_factory.mktemp("spoiled") / "run")

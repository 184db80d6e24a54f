"""Runs of the demo model, as a user's command leaves them, and their records."""

from pathlib import Path

import pytest

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

"""Runs of the demo model as a user's commands leave them, with all that they were made of."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tampered_runs import copy_model

from scoremode.cli.main import main
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.folders.store import find_runs

HOW = ["-c", "64", "--protocol", "disjoint", "--batch-size", "3", "--device", "cpu", "--quiet"]


@dataclass(frozen=True)
class Published:
    """What lies in one folder: models, a text, a reference, and runs."""

    model: Path
    quant: Path
    text: Path
    kept: Path
    ppl: Path
    against_kept: Path
    against_model: Path


@pytest.fixture(scope="session")
def published(demo, tmp_path_factory) -> Published:
    folder = tmp_path_factory.mktemp("published")
    model, quant, text = folder / "model", folder / "W4A16", folder / "text.txt"
    copy_model(demo, model)
    quantize_folder(model, quant, next(v for v in VARIANTS if v.name == "W4A16-g32"))
    text.write_bytes((demo / "heldout.txt").read_bytes()[:4000])
    how = ["-f", str(text), *HOW]
    kept = folder / "kept"
    gate = ["--max-kld", "1"]
    for command, *more in (
        ("ppl", str(quant), "-o", str(folder / "ppl"), "--token-text"),
        ("reference", str(model), "-o", str(kept)),
        ("kld", str(quant), "--reference", str(kept), "-o", str(folder / "against_kept"), *gate),
        ("kld", str(quant), "--reference", str(model), "-o", str(folder / "against_model"), "--full"),
    ):  # fmt: skip
        assert main([command, *more, *how]) == 0
    runs = {
        name: next(find_runs(folder / name))[0] for name in ("ppl", "against_kept", "against_model")
    }
    return Published(model, quant, text, kept, **runs)

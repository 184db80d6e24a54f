"""Made runs, as `scoremode card` groups them."""

from pathlib import Path
from typing import Any

from support.comparisons import made
from support.run_folders import PLACES, write_run

from scoremode.cli.card import groups_of
from scoremode.report.card.content import Group

HUB_TEXT = {
    "corpus.name": "org/data en validation",
    "corpus.source": "hub:org/data@" + 40 * "d",
    "corpus.rows": 10,
}
BASE = {
    "source": "hub:org/base@" + 40 * "b",
    "fingerprint": "f0",
    "bits_per_weight": {"body": 16.0, "file": 16.1},
    "gib": 14.96,
}


def changes_of(**more: Any) -> dict[str, Any]:
    return {"finished": "2026-01-02T03:04:05+00:00", "reference.checkpoint": BASE, **more}


def made_run(folder: Path, noise: float, model: str, **changes: Any) -> Path:
    scores = made(**PLACES, noise=noise, seed=3, full=False)
    return write_run(folder, scores, model=model, changes=changes_of(**changes))


def two_groups(folder: Path) -> list[Group]:
    """Two quants on a file, and one of them on a data set of the hub by another protocol."""
    runs = [
        made_run(folder / "a", 0.3, "hub:me/Q4_K_M@" + 40 * "a"),
        made_run(folder / "b", 0.02, "models/Q8_0"),
        made_run(
            folder / "c",
            0.3,
            "models/Q4_K_M",
            **{"protocol.name": "disjoint+context-length=64+bos=never", "protocol.bos": "never"},
            **HUB_TEXT,
        ),
    ]
    return groups_of(runs)

"""ARCHITECTURE.md against the tree: what it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scoremode"


def test_the_table_of_changes_names_what_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`([a-z_]+(?:/[a-z0-9_-]+)+/?(?:\.py|\.md)?)`", text):
        inside = path.split("/")[0] not in ("docs", "tests")
        assert ((PACKAGE if inside else ROOT) / path).exists(), path

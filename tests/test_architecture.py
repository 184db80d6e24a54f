"""ARCHITECTURE.md against the tree: each module is listed once, in its room, and nothing else is."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scoremode"


def listed() -> list[str]:
    """Paths below the package that the list of rooms names, in its order."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    found, rooms, indents = [], [], []
    for line in block.splitlines():
        head = re.match(r"( *)([a-z_]+)/ ", line)
        if head and len(head[1]) < 8:
            depth = len(head[1]) // 2
            rooms[depth:] = [head[2]]
        elif re.match(r"[a-z_]+\.py ", line):
            rooms = []
        indents.append(len(rooms))
        names = re.findall(r"\b([a-z][a-z0-9_]*\.py)\b", line)
        found += ["/".join([*rooms, name]) for name in names]
    assert max(indents) == 3
    return found


def test_every_module_is_listed_once_in_its_room():
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }
    named = listed()
    assert sorted(set(named) - modules) == [], "listed, and not there"
    assert sorted(modules - set(named)) == [], "there, and not listed"
    assert len(named) == len(set(named))


def test_the_table_of_changes_names_what_is_there():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`([a-z_]+(?:/[a-z_-]+)+/?(?:\.py|\.md)?)`", text):
        inside = path.split("/")[0] not in ("docs", "tests")
        assert ((PACKAGE if inside else ROOT) / path).exists(), path

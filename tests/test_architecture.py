"""ARCHITECTURE.md and the tests against the tree: each module is listed once, in its room, and nothing
else is; and each has its tests where it lies."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scoremode"

# Modules without a file of tests: what holds them instead, or why nothing need.
UNTESTED = {
    "reference/base.py": "two protocols, without a line that runs",
    "runs/context.py": "the fields of every run, one of them a sum of two",
    "runs/following.py": "runs in other processes alone: tests/cli/flags/test_devices.py",
    "runs/request.py": "the fields of a request and of its result",
    "runs/sweep/definition.py": "types alone, which test_manifest.py and test_board.py fill",
    "runs/sweep/request.py": "the fields of a sweep's request and of its outcome",
    "schemes/base.py": "two protocols, without a line that runs",
    "schemes/library.py": "two protocols, without a line that runs",
}


def listed() -> list[str]:
    """Paths below the package that the list of rooms names, in its order."""
    block = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("```")[1]
    found, rooms, indents = [], [], []
    for line in block.splitlines():
        head = re.match(r"( *)([a-z0-9_]+)/ ", line)
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
    for path in re.findall(r"`([a-z_]+(?:/[a-z0-9_-]+)+/?(?:\.py|\.md)?)`", text):
        inside = path.split("/")[0] not in ("docs", "tests")
        assert ((PACKAGE if inside else ROOT) / path).exists(), path


def test_each_module_has_its_tests_in_the_same_folder():
    """`a/b.py` has `tests/a/test_b.py`, underscores around names dropped."""
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    without = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules
        if not (
            ROOT / "tests" / path.parent.relative_to(PACKAGE) / f"test_{path.stem.strip('_')}.py"
        ).is_file()
    }
    assert sorted(without - set(UNTESTED)) == [], "no tests"
    assert sorted(set(UNTESTED) - without) == [], "an exception that is none any more"
    assert all(len(reason.split()) > 3 for reason in UNTESTED.values())

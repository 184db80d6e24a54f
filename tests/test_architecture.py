"""The tree against the rules that keep it readable, and ARCHITECTURE.md against the tree."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "scoremode"
MODULES = [p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py") if p.name != "__init__.py"]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
# More than that nobody reads.
WORDS = 1_500

# A module of fewer lines is a helper that belongs into its caller.
SMALL = 40
SMALL_WITH_A_REASON = {
    "lib/json.py": "rooms that read JSON of strangers share it",
    "lib/machine.py": "engines and commands share it",
}
# Names that a room has twice: whoever searches for one of them says of what.
TWICE_WITH_A_REASON = {
    ("checkpoint", "tokenizer.py"): "of a folder, and of a GGUF file's metadata",
    ("engines/torch", "engine.py"): "of one process, and of several ranks",
    ("engines/torch", "kernels.py"): "Triton's of each of three rooms, beside their twins",
    ("engines/torch", "proofs.py"): "of kernels, and of shared passes",
    ("report", "document.py"): "of a terminal, and of the page",
    ("results", "checks.py"): "of a record, and of shards",
    ("schemes", "kernels.py"): "Triton's of weights and of activations, beside their twins",
    ("text", "corpus.py"): "of texts, and of conversations",
}


def room_of(module: Path) -> str:
    """The two engines are rooms of their own: neither knows of the other."""
    return "/".join(module.parts[: 2 if module.parts[0] == "engines" else 1])


def test_no_module_is_small_without_a_reason():
    lines = {str(m): len((PACKAGE / m).read_text("utf-8").splitlines()) for m in MODULES}
    assert {name for name, n in lines.items() if n < SMALL} <= SMALL_WITH_A_REASON.keys()


def test_a_room_has_a_name_once():
    names = Counter((room_of(m), m.name) for m in MODULES if len(m.parts) > 1)
    assert {name for name, n in names.items() if n > 1} <= TWICE_WITH_A_REASON.keys()


def test_architecture_is_short_and_names_every_room():
    assert len(TEXT.split()) <= WORDS
    rooms = {m.parts[0] for m in MODULES if len(m.parts) > 1}
    assert not {room for room in rooms if f"{room}/" not in TEXT}


def test_the_table_of_changes_names_what_is_there():
    for path in re.findall(r"`([a-z_]+(?:/[a-z0-9_-]+)+/?(?:\.py|\.md)?)`", TEXT):
        inside = path.split("/")[0] not in ("docs", "tests")
        assert ((PACKAGE if inside else ROOT) / path).exists(), path

"""`python -m scoremode` and the package's own files."""

import subprocess
import sys
from pathlib import Path


def test_the_module_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "scoremode", "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("scoremode ")


def test_package_keeps_its_promises_about_files(demo):
    size = sum(f.stat().st_size for f in Path(demo).rglob("*") if f.is_file())
    assert size <= 3_000_000
    import scoremode

    assert (Path(scoremode.__file__).parent / "py.typed").exists()

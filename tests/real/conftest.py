"""The real model, as `make test-real` has it written by tools/real_model.py."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32. Skips where it is not there."""
    here = Path(__file__).resolve().parents[2] / ".real" / "SmolLM2-135M-Instruct"
    folder = Path(os.environ.get("SCOREMODE_REAL", here))
    if not folder.is_dir():
        pytest.skip(f"needs a real model in {folder}: `make test-real` puts it there")
    return folder

"""The real models, as `make test-real` has them written by tools/real_model.py."""

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


@pytest.fixture(scope="session")
def gemma3(smollm2) -> Path:
    """Gemma 3 270M as a GGUF file in Q4_K_M, beside the other model. Skips where it is not there."""
    file = smollm2.with_name("gemma-3-270m-q4_k_m.gguf")
    if not file.is_file():
        pytest.skip(f"needs {file}: `make test-real` puts it there")
    return file

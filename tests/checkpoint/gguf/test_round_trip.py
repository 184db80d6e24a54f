"""Models of every architecture as folders and as the GGUF files that llama.cpp's converter makes of
them: equal scores in float32."""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_golden import GOLDEN, contents, make_pair
from gguf_models import MODELS
from gguf_round_trip import difference


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """What tools/llama_cpp.py made: llama.cpp's `source`, and its tools in `build/bin`."""
    folder = os.environ.get("SCOREMODE_LLAMA_CPP")
    return Path(folder) if folder else pytest.skip("needs llama.cpp: set SCOREMODE_LLAMA_CPP")


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_file_scores_as_its_folder(name, tmp_path):
    assert difference(*make_pair(tmp_path, name)) < 1e-5


def test_a_golden_file_for_each_model():
    assert {path.stem for path in GOLDEN.glob("*.xz")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_converter_still_writes_what_the_golden_file_says(name, llama_cpp, tmp_path):
    folder, golden = make_pair(tmp_path, name)
    converted = tmp_path / "converted.gguf"
    command = [GOLDEN / "convert.py", llama_cpp / "source", folder, converted]
    subprocess.run([sys.executable, *map(str, command)], check=True, capture_output=True)
    assert contents(converted) == contents(golden)
    tensors = zip(gguf.GGUFReader(converted).tensors, gguf.GGUFReader(golden).tensors, strict=True)
    for one, other in tensors:
        assert one.name == other.name
        assert np.array_equal(one.data, other.data)

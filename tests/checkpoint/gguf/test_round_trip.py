"""Models of every architecture as folders and as the GGUF files that llama.cpp's converter makes of
them: equal scores in float32."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from support.engine import make_engine, score
from support.gguf.golden import GOLDEN, contents, make_pair
from support.gguf.models import MODELS
from support.gguf.round_trip import difference
from tokenizers import Tokenizer

from scoremode.text.plan import make_plan
from scoremode.text.protocol import preset


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


# What llama.cpp does otherwise than the library, or doesn't run.
NOT_THE_SAME = {
    "phi3": "wants a tokenizer of SentencePiece",
    "phi3-long": "ignores Phi 3's sliding windows",
    "exaone4": "has windows in the model of 64 layers alone",
    "command-r-norms": "reads these norms in models of 64 layers and more alone",
    "ernie4_5": "reads no biases",
    "hunyuan_v1_dense": "reads no biases",
    "qwen3-wide": "reads no biases",
    "gpt_oss": "rounds the ends of yarn's ramp, the model's config says not to",
    "deepseek_v2": "knows models without low ranks for queries by their 26 or 27 layers",
    "deepseek_v2-groups": "chooses groups by their best two experts, which is V3's way",
}


@pytest.mark.parametrize("name", sorted(set(MODELS) - set(NOT_THE_SAME)))
def test_llama_perplexity_says_the_same(name, llama_cpp, demo, tmp_path):
    """In float32, its KV cache too; GELU is a table of float16 there."""
    folder, file = make_pair(tmp_path, name)
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:3000]
    (tmp_path / "text").write_text(text, encoding="utf-8")
    command = [
        llama_cpp / "build" / "bin" / "llama-perplexity",
        "-m",
        file,
        "-f",
        tmp_path / "text",
    ]
    command += ["-c", "64", "-b", "64", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "-t", "1"]
    found = None
    for _ in range(30):
        # The tool may end before its log is written, on a busy machine more often than not.
        ran = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
        if found := re.search(r"Final estimate: PPL = ([\d.]+)", ran.stdout + ran.stderr):
            break
    assert found
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    protocol = replace(preset("llama.cpp"), context_length=64)
    plan = make_plan(np.array(ids, np.int32), protocol.resolve(None))
    ours = np.exp(-score(make_engine(file, dtype="float32"), plan).logprob.mean())
    assert ours == pytest.approx(float(found[1]), rel=1e-4)

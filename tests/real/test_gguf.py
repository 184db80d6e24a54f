"""The real model's own GGUF file against its weights decoded by the `gguf` package into a folder, and
against llama.cpp's figure of it."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from scoremode.engines.torch.options import TorchOptions
from scoremode.results.folders.store import read_scores
from scoremode.runs.measure import measure
from scoremode.runs.planning import plan_text
from scoremode.runs.request import Request
from scoremode.text.corpus import from_file, from_string
from scoremode.text.protocol import preset

CPU = TorchOptions(device="cpu", dtype="float32")
# llama-perplexity of the file as it is, by its defaults; it prints four digits. Of its weights in F32
# it has 23.1104, which is 3.4e-3 below.
LLAMA_CPP = 23.1886
# Runs of that program, and of ours, whose norms differ in a last bit differ by so much, a standard
# deviation relative to PPL (docs/log.md). What is equal, and how nearly, test_gguf_layers.py has.
SPREAD = 6e-4


@pytest.fixture(scope="module")
def gguf(smollm2) -> Path:
    file = smollm2.with_name(f"{smollm2.name}.Q4_1.gguf")
    if not file.is_file():
        pytest.skip(f"needs {file}: `make test-real` puts it there")
    return file


def test_its_tokens_are_those_of_the_folders_tokenizer(smollm2, gguf, data):
    text = (data / "wikitext2" / "wiki.test.raw").read_text(encoding="utf-8")[:200_000]
    protocol = preset("llama.cpp").override(context_length=512)
    ours, theirs = (
        plan_text(from_string(text), protocol, model=str(model)).plan.tokens
        for model in (gguf, smollm2)
    )
    assert np.array_equal(ours, theirs)


def test_its_weights_score_as_the_folders_to_the_bit(smollm2, gguf, demo, tmp_path):
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:1200]
    protocol = preset("disjoint").override(context_length=64)
    found = []
    for model in (gguf, smollm2):
        out = tmp_path / model.name
        request = Request(str(model), from_string(text), protocol, CPU, out)
        result = measure(request)
        assert result.record.document["checkpoint"]["parameters"] == 134_515_008
        found.append(read_scores(result.folder))
    assert np.array_equal(found[0].nll, found[1].nll)
    assert np.array_equal(found[0].target, found[1].target)


@pytest.mark.large
def test_llama_cpps_figure_of_the_file(gguf, data, tmp_path):
    """On the first 60,000 bytes of WikiText-2, the 7,395 targets that llama-perplexity scores."""
    part = tmp_path / "wiki.raw"
    part.write_bytes((data / "wikitext2" / "wiki.test.raw").read_bytes()[:60_000])
    options = dataclasses.replace(CPU, arithmetic="llama.cpp")
    request = Request(str(gguf), from_file(part), preset("llama.cpp"), options, tmp_path / "runs")
    result = measure(request)
    assert len(read_scores(result.folder)) == result.record.document["plan"]["scored"] == 7_395
    ppl = result.record.document["metrics"]["ppl"]["value"]
    # Two runs, so twice the variance, and three standard deviations: weights alone are without.
    assert math.isclose(ppl, LLAMA_CPP, rel_tol=3 * math.sqrt(2) * SPREAD)


@pytest.mark.large
def test_llama_cpps_figures_of_gemma_3(gemma3, data, tmp_path):
    """On the first 24,000 bytes, 2,550 targets: of the weights in F32 the tool prints 20.1681."""
    part = tmp_path / "wiki.raw"
    part.write_bytes((data / "wikitext2" / "wiki.test.raw").read_bytes()[:24_000])
    found = {}
    for arithmetic in ("weights", "llama.cpp"):
        options = dataclasses.replace(CPU, arithmetic=arithmetic)
        out = tmp_path / arithmetic
        request = Request(str(gemma3), from_file(part), preset("llama.cpp"), options, out)
        record = measure(request).record.document
        assert record["plan"]["scored"] == 2_550
        found[arithmetic] = record["metrics"]["ppl"]["value"]
    assert math.isclose(found["weights"], 20.1681, abs_tol=2e-4)
    # Five runs of the tool, norms changed in a last bit: 20.243, one run's deviation 0.045.
    assert math.isclose(found["llama.cpp"], 20.243, abs_tol=3 * 0.045)

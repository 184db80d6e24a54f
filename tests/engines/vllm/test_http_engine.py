"""The http engine against vLLM's own server: exact targets, and bounds below an exact divergence."""

import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from engines.vllm.harness import finish, kill
from support.waiting import HANG

from scoremode.checkpoint.model_files import resolve_local
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.http.options import HttpOptions
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError
from scoremode.results.folders.finished import load_run
from scoremode.runs.measure import measure
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset

TORCH = TorchOptions(device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def served(engines, demo) -> Iterator[str]:
    """The base URL of a server of the demo model in float32."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = engines.start(
        [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", str(demo / "model")),
            *("--served-model-name", "demo", "--dtype", "float32", "--enforce-eager"),
            *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512"),
            *("--kv-cache-memory-bytes", str(64 << 20), "--max-logprobs", "100"),
        ]
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        while True:
            assert program.process.poll() is None, program.output()
            try:
                opener.open(f"http://127.0.0.1:{port}/health", timeout=HANG)
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
        os.kill(program.process.pid, signal.SIGINT)
        finish(program)
    finally:
        kill(program)


@pytest.fixture
def request_(demo, served, tmp_path) -> Request:
    text = (demo / "heldout.txt").read_text(encoding="utf-8")[:9000]
    return Request(
        model=resolve_local(demo / "model"),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=128),
        options=HttpOptions(served, base=TORCH),
        output=tmp_path / "runs",
    )


def test_a_served_models_scores_are_its_own(request_, demo):
    run = measure(request_)
    (_, scores) = load_run(run.folder)
    (_, own) = load_run(measure(replace(request_, options=TORCH)).folder)
    np.testing.assert_allclose(scores.logprob, own.logprob, atol=1e-4)
    assert (scores.top1 == own.top1).mean() > 0.999
    engine = run.record.document["engine"]
    assert (engine["server"], engine["model"]) == ("vLLM", "demo") and engine["version"]
    assert engine["probed"]["tokenizer"] == "the same 512 tokens by /tokenize"
    assert engine["probed"]["aligned"].startswith("at 3 places")


def test_bounds_hold_for_every_target(request_, demo, tmp_path):
    base = tmp_path / "base"
    quantize_folder(demo / "model", base, next(v for v in VARIANTS if v.name == "W3A16-g32"))
    (_, exact) = load_run(measure(replace(request_, options=TORCH, reference=str(base))).folder)
    assert exact.against is not None
    shares = []
    for top in (1, 5, 20, 100):
        options = replace(request_.options, top=top)  # pyright: ignore[reportArgumentType]
        (_, found) = load_run(
            measure(replace(request_, options=options, reference=str(base))).folder
        )
        bounds = found.bounds
        assert bounds is not None
        assert (bounds.kld_least <= exact.against.kld + 1e-6).all()
        assert (bounds.tv_least <= exact.against.tv + 1e-6).all()
        assert (exact.against.tv <= bounds.tv_most + 1e-6).all()
        shares.append(bounds.kld_least.mean() / exact.against.kld.mean())
    assert shares == sorted(shares) and shares[0] > 0.1 and shares[-1] > 0.8


def test_more_ids_than_the_server_gives_are_refused_in_its_words(request_):
    with pytest.raises(EngineError, match=r"400: .*101"):
        measure(replace(request_, options=replace(request_.options, top=101)))  # pyright: ignore[reportArgumentType]

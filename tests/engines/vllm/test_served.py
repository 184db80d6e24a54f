"""`vllm serve` with the switch set: rows of scores over HTTP."""

import base64
import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engines.vllm.dtypes import SERVED
from engines.vllm.harness import finish, kill
from engines.vllm.processes import LENGTH
from support.waiting import HANG

COLUMNS = ("position", "target", "logprob", "entropy", "top1", "top1_logprob")
Ask = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def served(engines, checkpoint) -> Iterator[Ask]:
    """Asks a server on a free port of this machine for the scores of token ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What `vllm serve MODEL` runs; the CPU build's own `vllm` looks for itself by another name.
    program = engines.start(
        [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", checkpoint("dense")),
            *("--host", "127.0.0.1", "--port", str(port), "--runner", "pooling"),
            *("--max-model-len", str(LENGTH), "--skip-tokenizer-init", "--enforce-eager"),
            *("--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(16 << 20)),
            *("--dtype", SERVED),
        ],
        SCOREMODE_VLLM="1",
    )

    def ask(path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            json.dumps(body).encode() if body else None,
            {"Content-Type": "application/json"},
        )
        # No proxy: it is this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=HANG) as answer:
            return answer.read()

    try:
        while True:
            assert program.process.poll() is None, program.output()
            try:
                ask("/health")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.2)
        yield lambda **body: json.loads(ask("/pooling", task="token_classify", **body))["data"]
        os.kill(program.process.pid, signal.SIGINT)
        finish(program)
    finally:
        kill(program)


def test_a_server_gives_the_same_rows(served, ran, calls):
    prompt = calls["alone"]["prompts"][0]
    (answer,) = served(input=[prompt])
    rows = np.array(answer["data"], np.float32)
    assert rows.shape == (len(prompt) - 1, len(COLUMNS))
    for name, column in zip(COLUMNS, rows.T, strict=True):
        np.testing.assert_allclose(column, ran("dense").column("alone", name), rtol=0, atol=1e-5)
    # The same as bytes; a prompt of one token has no target. They share a batch, so no bits are equal.
    packed, empty = served(input=[prompt, [5]], encoding_format="base64")
    other = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(rows.shape)
    assert np.array_equal(other[:, :2], rows[:, :2])
    np.testing.assert_allclose(other[:, 2:4], rows[:, 2:4], rtol=0, atol=0.25)
    assert empty["data"] == ""


def test_a_field_that_nobody_reads_is_refused(served):
    with pytest.raises(urllib.error.HTTPError) as refused:
        served(input=[[1, 5, 3]], targets=[[5, 3, 9]])
    assert refused.value.code == 400
    assert "nobody reads the field targets" in refused.value.read().decode()

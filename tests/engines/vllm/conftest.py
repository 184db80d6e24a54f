"""Fixtures of tests that start vLLM, which are skipped where it is not installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.vllm.checkpoints import write_checkpoint
from engines.vllm.dtypes import HAS_AVX512, SERVED
from engines.vllm.harness import Answer, Engines
from engines.vllm.processes import NARROW, PROCESSES, make_calls
from engines.vllm.references import cut_reference, write_reference
from numpy.typing import NDArray


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long goes first, so that pytest's workers share it out and the rest finds it done.

    Without vLLM, what needs it is skipped: it all comes by the fixture `engines`.
    """
    here = f"{Path(__file__).parent}/"
    lacks_vllm = importlib.util.find_spec("vllm") is None
    order = (
        *("test_ladder_faults.py", "test_ladder.py", "test_processes.py", "test_command_line.py"),
        *("test_verify_vllm.py", "test_served.py"),
    )
    places = [i for i, item in enumerate(items) if str(item.path).startswith(here)]
    ours = [items[i] for i in places]
    ours.sort(key=lambda t: order.index(t.path.name) if t.path.name in order else len(order))
    for i, item in zip(places, ours, strict=True):
        items[i] = item
        if lacks_vllm and "engines" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason="needs vLLM: make test-vllm"))


def pytest_report_header() -> list[str]:
    if SERVED == "bfloat16":
        return []
    return [f"vLLM serves {SERVED}: on a CPU with AMX its bf16 attention may die by SIGILL"]


@pytest.fixture(scope="session")
def engines(tmp_path_factory, worker_id) -> Engines:
    """Runs each process once a session."""
    base = tmp_path_factory.getbasetemp()
    return Engines((base if worker_id == "master" else base.parent) / "engines")


@pytest.fixture(scope="session")
def checkpoint(engines, demo) -> Callable[[str], str]:
    """The demo model in one of `checkpoints.FORMATS`, as a path."""

    def make(form: str) -> str:
        folder = engines.folder / form
        with engines.once(f"checkpoint-{form}") as is_first:
            if is_first:
                write_checkpoint(demo / "model", folder, form)
        return str(folder)

    return make


@pytest.fixture(scope="session")
def encode(demo) -> Callable[[str], list[int]]:
    """Token ids by the demo's tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(demo) / "model" / "tokenizer.json"))
    return lambda text: tokenizer.encode(text).ids


@pytest.fixture(scope="session")
def text(demo, encode) -> NDArray[np.int32]:
    """Token ids of the demo's held-out text."""
    return np.array(encode((demo / "heldout.txt").read_text()), np.int32)


@pytest.fixture(scope="session")
def references(engines, checkpoint) -> Path:
    """The folder of all references; runs of `measured.py` add their own.

    `torch` and `bf16` are the torch engine's of the dense and the W4A16 model, `float32` of the latter
    in that dtype; a number is that one's, cut to so many entries.
    """
    folder = engines.folder / "references"
    with engines.once("references") as is_first:
        if is_first:
            write_reference(checkpoint("dense"), folder / "torch", SERVED)
            write_reference(checkpoint("W4A16"), folder / "bf16", SERVED)
            wide = write_reference(checkpoint("W4A16"), folder / "float32", "float32")
            for entries in (NARROW, 300):
                cut_reference(wide, folder / str(entries), entries)
    return folder


@pytest.fixture(scope="session")
def calls(text, encode, references) -> dict[str, dict[str, Any]]:
    return make_calls(text, encode, references)


@pytest.fixture(scope="session")
def ran(engines, checkpoint, calls, references) -> Callable[[str, str], Answer]:
    """What a start of one of `processes.PROCESSES` gave."""

    def answer(process: str, start: str = "ours") -> Answer:
        starts = PROCESSES[process]
        if "on Ray" in process and importlib.util.find_spec("ray") is None:
            pytest.skip("needs Ray: pip install ray")
        # Of float32 inputs vLLM's CPU kernels for 4-bit and int8 weights know nothing, and its float8
        # product is oneDNN's plain loop, which had not ended after a quarter of an hour.
        if SERVED == "float32" and any(s.form != "dense" for s in starts.values() if s.is_vllm):
            pytest.skip("serves quantized weights, which vLLM's CPU kernels can't in float32")
        lacking = {
            n
            for n, s in starts.items()
            if s.is_vllm and (s.form == "W4A16" or "kv_cache_dtype" in s.arguments)
        }
        if not HAS_AVX512 and start in lacking:
            pytest.skip("vLLM's build for CPUs without AVX-512 lacks the kernel")
        jobs = {
            name: s.to_job(checkpoint(s.form), calls, str(references))
            for name, s in starts.items()
            if HAS_AVX512 or name not in lacking
        }
        return engines.answers(process, jobs)[start]

    return answer

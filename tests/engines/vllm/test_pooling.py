"""What the process that asks believes of its workers. Needs no vLLM."""

from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from support.llama_cpp.files import GOLDEN

from scoremode.engines.vllm.pooling import Mismatch, PoolingEngine
from scoremode.engines.vllm.prompts import Keep
from scoremode.errors import InvalidMeasurement
from scoremode.llama_cpp.reference import LlamaCppReference


def test_a_reference_is_named_so_that_a_worker_can_open_it():
    """Only plain values reach the workers."""
    asked = []
    engine = cast(PoolingEngine, SimpleNamespace(ask=lambda *call: asked.append(call)))
    reference = LlamaCppReference(GOLDEN)
    PoolingEngine.compare_with(engine, reference)
    ((method, kind, path, sha256),) = asked
    assert method == "scoremode_compare_with" and {type(x) for x in asked[0]} == {str}
    opened = resolve_name(kind)(Path(path))
    assert type(opened) is LlamaCppReference and opened.path == GOLDEN.resolve()
    assert opened.sha256 == reference.sha256 == sha256


def test_a_row_that_no_worker_wrote_is_no_measurement(tmp_path):
    asked = []

    def ask(question: str, *arguments: Any) -> list[Any]:
        asked.append((question, *arguments))
        return [3, 0]

    keep = Keep(tmp_path / "states", 4, 8, "bfloat16", [0])
    engine = cast(PoolingEngine, SimpleNamespace(ask=ask))
    with (
        pytest.raises(InvalidMeasurement, match="kept 3 of 4 states"),
        PoolingEngine.keeping(engine, keep),
    ):
        pass
    assert asked[0] == ("scoremode_keep", str(tmp_path / "states"), 4, 8, "bfloat16")


def answered(change=lambda column, values: values) -> PoolingEngine:
    """An engine whose workers answer the self-test, right but for `change` of a column."""

    def encode(prompts, kind):
        answers = []
        for prompt in prompts:
            rows = np.zeros((len(prompt.expected), len(kind.columns)), np.float32)
            for i, name in enumerate(kind.columns):
                values = np.full(len(rows), {"entropy": 2.0}.get(name.split("_")[-1], -8.0))
                values = prompt.expected if name == "target" else values
                rows[:, i] = change(name, np.array(values, np.float32))
            answers.append(rows)
        return answers

    return cast(PoolingEngine, SimpleNamespace(entries=50, _encode=encode))


@pytest.mark.parametrize("length", [1, 16])
def test_numbers_of_the_gathered_logits_are_believed(length):
    PoolingEngine._test(answered(), length)
    # A thousandth of a percent is a float32's rounding; a model without finite logits is no mismatch.
    PoolingEngine._test(answered(lambda name, x: x * 1.00001 if name == "logprob" else x), length)
    PoolingEngine._test(answered(lambda name, x: x * np.nan if "gathered" in name else x), length)


@pytest.mark.parametrize(
    ("column", "change", "said"),
    [
        ("target", lambda x: np.roll(x, 1), "scored other targets than it was given"),
        ("logprob", lambda x: x * 1.001, "the self-test's logprob is 0.008 nats off"),
        ("logprob", lambda x: x * np.nan, "the self-test's logprob is nan nats off"),
        ("entropy", lambda x: x + 0.001, "the self-test's entropy is 0.001 nats off"),
        ("top1", lambda x: x + 1, "the self-test's top-1 is not that of the gathered logits"),
    ],
)
def test_other_numbers_are_a_mismatch(column, change, said):
    with pytest.raises(Mismatch, match=said):
        PoolingEngine._test(answered(lambda name, x: change(x) if name == column else x), 16)

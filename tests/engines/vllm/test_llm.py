"""`ScoringLLM` asked by several threads at once, and for how much; vLLM itself is stood in for."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scoremode.engines.vllm import llm as llms
from scoremode.engines.vllm.llm import ScoringLLM
from scoremode.engines.vllm.prompts import scores_of
from scoremode.engines.vllm.start import Started
from scoremode.errors import EngineError


class StandIn(Started):
    """Answers with each prompt's ids as log-probabilities, and takes its time."""

    path = "stand-in"

    @property
    def entries(self) -> int:
        return 100

    def __init__(self, start: Any):
        self._close: Any = SimpleNamespace(alive=True)
        self.at_once, self.most = 0, 0

    def score(self, prompts, kind):
        with self.working():
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            time.sleep(0.02)
            self.at_once -= 1
            if any(5 in p.ids for p in prompts):
                raise KeyboardInterrupt
        return [scores_of(_rows(p, kind), p, kind) for p in prompts]

    def ask(self, question, *arguments):
        assert self.at_once == 0, question
        return [1.0]


def _rows(prompt, kind) -> np.ndarray:
    rows = np.zeros((len(prompt.expected), len(kind.columns)))
    rows[:, 0] = np.arange(1, len(prompt.expected) + 1)
    rows[:, 1] = prompt.expected
    rows[:, 2] = -prompt.expected
    return rows


@pytest.fixture
def llm(demo, monkeypatch) -> ScoringLLM:
    monkeypatch.setattr(llms, "require_plugin", lambda: None)
    monkeypatch.setattr(llms, "vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(llms, "PoolingEngine", StandIn)
    return ScoringLLM(str(demo / "model"))


def test_a_gguf_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(llms, "require_plugin", lambda: None)
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(EngineError, match=r"x\.gguf: is a GGUF file, which vLLM is not given here"):
        ScoringLLM(str(tmp_path))


def test_threads_wait_for_their_turn_and_get_their_own_answers(llm):
    answers: dict[int, Any] = {}

    def ask(number: int) -> None:
        try:
            answers[number] = llm.logprobs([[1, 10 + number, 20 + number]])
            llm.head_seconds()
        except BaseException as error:  # noqa: BLE001  for the test's own thread
            answers[number] = error

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, found in answers.items():
        assert isinstance(found, list), found
        np.testing.assert_array_equal(found[0], [-10 - number, -20 - number])
    assert len(answers) == 8 and llm._backend.most == 1


def test_one_that_was_interrupted_at_work_says_so_to_all(llm):
    with pytest.raises(KeyboardInterrupt):
        llm.logprobs([[1, 5]])
    for _ in range(2):
        with pytest.raises(EngineError, match="was interrupted at work and can't go on"):
            llm.logprobs([[1, 2]])


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"text_config": {"n_positions": 64}}, 64),
        # These say the length before scaling, others the one after it.
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 4}}, 2048),
        (
            {
                "max_position_embeddings": 512,
                "rope_parameters": {
                    **{"rope_type": "yarn", "factor": 4.0},
                    "original_max_position_embeddings": 100,
                },
            },
            512,
        ),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "llama3", "factor": 4}}, 512),
    ],
)
def test_the_longest_prompt_is_the_models_limit(config, longest):
    assert llms._longest(None, config, Path()) == llms._longest(longest, config, Path()) == longest
    with pytest.raises(EngineError, match=f"the model has {longest} positions"):
        llms._longest(longest + 1, config, Path())


def test_a_model_without_a_limit_has_to_be_given_one():
    assert llms._longest(7, {}, Path()) == 7
    with pytest.raises(EngineError, match="gives no context length: give max_model_len"):
        llms._longest(None, {}, Path())
    with pytest.raises(EngineError, match="max_model_len 0: must be at least 1"):
        llms._longest(0, {}, Path())


def test_a_prompt_with_nothing_to_score_is_answered_in_its_place(llm):
    found = llm.score([[7], [1, 2], [3, 4]], first=[0, 1, 1])
    assert [len(scores) for scores in found] == [0, 0, 0] and llm._backend.most == 0
    found = llm.score([[7], [1, 2], [9]])
    assert [scores.target.tolist() for scores in found] == [[], [2], []]

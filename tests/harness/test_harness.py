"""The harness asked twice: all requests at once, the same prompts, and its errors in a line."""

import os

import pytest
from support.harness_runs import NEEDED
from support.local_tasks import ALL

from scoremode.checkpoint.model_files import resolve_local
from scoremode.errors import CorpusError, TokenizerError, UsageError
from scoremode.harness.chat import ChatPrompts

pytest.importorskip("lm_eval", reason=NEEDED)
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def harness(demo, local_data):
    def make(*tasks: str, **more):
        from scoremode.harness.harness import Harness, Prompting

        prompting = Prompting(tasks, include_path=local_data, runs_code=True, **more)
        return Harness(prompting, ChatPrompts([resolve_local(demo / "model")]), quiet=True)

    return make


def test_all_that_is_asked_comes_at_once(harness, capfd):
    asked = harness(*ALL).corpus()
    assert {r.task for r in asked.requests} == {*ALL, "letters_small", "letters_large"} - {
        "letters"
    }
    assert sum(r.context is None for r in asked.requests) == 2
    assert harness(*ALL).corpus().source_sha256 == asked.source_sha256
    assert capfd.readouterr() == ("", "")


def test_examples_and_limits_are_the_harnesss(harness):
    plain, more = (harness("shots", num_fewshot=n).corpus().requests for n in (1, 3))
    assert all(len(b.context) > len(a.context) for a, b in zip(plain, more, strict=True))
    assert {r.question for r in harness("ends", limit=2).corpus().requests} == {0, 1}


def test_its_bootstraps_are_drawn_in_this_process():
    from scoremode.harness.harness import _one_process

    before = os.environ.get("DISABLE_MULTIPROC")
    with _one_process():
        assert os.environ["DISABLE_MULTIPROC"] == "1"
    assert os.environ.get("DISABLE_MULTIPROC") == before


def test_what_cannot_be_asked_is_one_line(harness):
    with pytest.raises(CorpusError, match="--tasks no_such_task: lm-evaluation-harness") as error:
        harness("no_such_task").corpus()
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=r"says: generates text \(generate_until\)"):
        harness("ends", "says").corpus()
    with pytest.raises(TokenizerError, match="has no chat template"):
        harness("ends", chat=True).corpus()

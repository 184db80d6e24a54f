"""The harness's requests as ours, and what is refused."""

from types import SimpleNamespace

import pytest
from support.harness_runs import NEEDED

from scoremode.errors import UsageError
from scoremode.text.task_requests import TextRequest

pytest.importorskip("lm_eval", reason=NEEDED)


def instance(*args, doc_id=3, task_name="t", idx=1):
    return SimpleNamespace(args=args, doc_id=doc_id, task_name=task_name, idx=idx)


def test_requests_keep_whose_they_are():
    from scoremode.harness.requests import text_requests

    found = text_requests(
        [instance("a", " b"), instance("page"), instance("c", "d", doc_id=None, task_name=None)]
    )
    assert found == [
        TextRequest("t", 3, 1, "a", " b"),
        TextRequest("t", 3, 1, None, "page"),
        TextRequest("requests", 2, 1, "c", "d"),
    ]


def test_an_answer_is_of_the_very_texts():
    from scoremode.harness.requests import answer_of

    answers = {("a", " b"): (-1.5, True), (None, "a b"): (-9.0, False)}
    assert answer_of(instance("a", " b"), answers) == (-1.5, True)
    assert answer_of(instance("a b"), answers) == (-9.0, False)
    with pytest.raises(UsageError, match="t: asks other questions the second time"):
        answer_of(instance("a ", "b"), answers)


def test_generated_text_is_refused_by_name():
    from scoremode.harness.requests import refusal

    assert str(refusal(["gsm8k", None, "gsm8k"])).startswith("a request, gsm8k: generates text")

"""Requests that no rule can end."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.run_requests import request

from scoremode.errors import ProtocolError, UsageError
from scoremode.runs.request import check_stopping

PLAIN = request(Path("model"), "text", Path("runs"))


def with_rule(rule: str, **more):
    return replace(PLAIN, protocol=PLAIN.protocol.override(stop_when=rule, seed=0), **more)


def test_a_request_without_a_rule_and_one_that_it_fits_go_through():
    check_stopping(PLAIN)
    check_stopping(replace(PLAIN, keep="stored"))
    check_stopping(with_rule("ppl±1%"))
    check_stopping(with_rule("kld±1%", reference="base"))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"keep": "stored"}, "a reference has all windows"),
        ({}, "no KLD without --reference"),
        ({"reference": "base", "noise_floor": "auto"}, "--noise-floor auto"),
    ],
)
def test_what_it_can_not_end_is_refused_by_name(more, words):
    with pytest.raises(UsageError, match=r"^--stop-when kld±1%") as refused:
        check_stopping(with_rule("kld±1%", **more))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_rule_that_is_none_is_refused():
    with pytest.raises(ProtocolError, match="no rule to stop by"):
        check_stopping(with_rule("ppl better"))

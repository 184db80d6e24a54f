"""Verdicts as JUnit XML: what a reader of the schema finds in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.test_checks import engine
from support.junit import read_junit

from scoremode.errors import RunFolderError
from scoremode.report.junit import (
    Case,
    gate_cases,
    junit_xml,
    ladder_cases,
    verify_cases,
    write_junit,
)
from scoremode.results.gates import Gate


def gate(limit: float, value: float = 0.02) -> Gate:
    return Gate("max_kld", "the mean KLD", limit, value, "value", value, value <= limit)


def test_a_gate_is_a_case_and_a_missed_one_a_failure_in_a_line():
    cases = [
        *gate_cases([gate(0.03), gate(0.01)], "Q4"),
        Case("Q5", "measured", "no file", "error"),
    ]
    assert read_junit(junit_xml("scoremode kld", cases)) == [
        ("Q4", "--max-kld 0.03", "passed", "gate met: --max-kld 0.03: the mean KLD is 0.02"),
        ("Q4", "--max-kld 0.01", "failure", "gate not met: --max-kld 0.01: the mean KLD is 0.02"),
        ("Q5", "measured", "error", "no file"),
    ]


def test_each_pair_of_engines_is_a_case():
    torch = engine(ci95=None, note=None, own=True)
    vllm = engine(ci95=None, note=None, own=False)
    vllm["verdict"] |= {"agrees": False, "words": "disagrees: rms 3 nats"}
    value = {
        "checkpoint": {"source": "m"},
        "reference": {},
        "engines": {"torch": torch, "vllm": vllm},
        "between": [{**vllm, "engine": "vllm", "other": "torch"}],
    }
    cases = read_junit(junit_xml("scoremode verify", verify_cases(value)))
    assert cases == [
        ("m", "torch - reference", "passed", "agrees: as bfloat16"),
        ("m", "vllm - reference", "failure", "disagrees: rms 3 nats"),
        ("m", "vllm - torch", "failure", "disagrees: rms 3 nats"),
    ]


def test_each_step_of_a_ladder_is_a_case_and_so_are_its_gates():
    alarm, fine = {"alarm": True, "words": "grows"}, {"alarm": False, "words": "as rounding"}
    value = {
        "folder": "runs/ladder-m",
        "findings": {
            "steps": [
                {"step": "base", "judged": fine},
                {"step": "weights", "judged": None},
                {"step": "vllm-prefill", "judged": alarm},
            ]
        },
        "steps": [
            {"name": "base", "status": "done", "reason": None},
            {"name": "vllm-decode", "status": "failed", "reason": "no memory"},
        ],
    }
    cases = read_junit(junit_xml("scoremode ladder", ladder_cases(value, [gate(0.01)])))
    assert {of for of, _, _, _ in cases} == {"runs/ladder-m"}
    assert [case[1:] for case in cases[:3]] == [
        ("base", "passed", "as rounding"),
        ("vllm-prefill", "failure", "grows"),
        ("vllm-decode", "error", "no memory"),
    ]
    assert cases[3][1:3] == ("--max-kld 0.01", "failure")


def test_a_command_without_a_verdict_is_a_document_too():
    assert read_junit(junit_xml("scoremode kld", [])) == []


@given(st.text(st.characters(), min_size=1), st.sampled_from(["passed", "failure", "error"]))
def test_whatever_a_name_holds_it_is_well_formed_and_can_be_told(name, outcome):
    text = junit_xml(name, [Case(name, name, name, outcome)])
    ((of, called, found, words),) = read_junit(text)
    assert found == outcome and of == called == words
    if name.isprintable():
        assert of == name


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / "junit.xml"
    file.write_text("before")
    write_junit(file, "scoremode kld", [Case("a", "b", "c")])
    assert read_junit(file.read_text()) == [("a", "b", "passed", "c")]
    assert [path.name for path in tmp_path.iterdir()] == ["junit.xml"]
    with pytest.raises(RunFolderError, match="cannot be written: No such file"):
        write_junit(tmp_path / "none" / "junit.xml", "scoremode kld", [])

"""Gates and verdicts as JUnit XML, which CI services show beside a build's tests.

The elements and attributes are those that every reader knows: `testsuites`, in it one `testsuite` with
its counts, in it a `testcase` for each verdict, with a `failure` where it is missed and an `error`
where there is none, since something else went wrong.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from scoremode.errors import escaped
from scoremode.report.checks import pairs_of
from scoremode.results.folders.paths import write_output

if TYPE_CHECKING:
    from scoremode.results.gates import Gate


@dataclass(frozen=True)
class Case:
    """A verdict: `name` of what is judged, which CI lists under `of`, such as a model; `words` on it.

    - `outcome`: whether what was demanded holds, or there is nothing to judge (`error`).
    """

    of: str
    name: str
    words: str
    outcome: Literal["passed", "failure", "error"] = "passed"


def gate_cases(gates: Iterable["Gate"], of: str) -> list[Case]:
    """A case for each gate of a model."""
    return [Case(of, g.flag, str(g), "passed" if g.met else "failure") for g in gates]


def verify_cases(value: Mapping[str, Any]) -> list[Case]:
    """A case for each pair of a result of `scoremode verify`."""
    of = value["checkpoint"]["source"]
    return [
        Case(of, p.name, p.words, "passed" if p.found["verdict"]["agrees"] else "failure")
        for p in pairs_of(value)
    ]


def ladder_cases(value: Mapping[str, Any], gates: Iterable["Gate"]) -> list[Case]:
    """A case for each step of a ladder that was judged, a failure where it has an alarm, and for each
    that failed; then its `gates`, which are held against the last one."""
    of = value["folder"]
    judged = [(s["step"], s["judged"]) for s in value["findings"]["steps"] if s["judged"]]
    failed = [(s["name"], s["reason"]) for s in value["steps"] if s["status"] == "failed"]
    return [
        *(Case(of, n, j["words"], "failure" if j["alarm"] else "passed") for n, j in judged),
        *(Case(of, name, reason, "error") for name, reason in failed),
        *gate_cases(gates, of),
    ]


def junit_xml(command: str, cases: Sequence[Case]) -> str:
    """The XML text of a command's cases.

    What a name holds that can't be printed, and so much that XML can't hold, is escaped.
    """
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.outcome == "failure" for case in cases)),
        "errors": str(sum(case.outcome == "error" for case in cases)),
        "skipped": "0",
        "time": "0",
    }
    suites = ElementTree.Element("testsuites", {"name": "scoremode", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": escaped(command), **counts})
    for case in cases:
        # Readers group by what stands before the last dot of a class.
        named = {"classname": escaped(case.of), "name": escaped(case.name), "time": "0"}
        each = ElementTree.SubElement(suite, "testcase", named)
        words = escaped(case.words)
        if case.outcome == "passed":
            ElementTree.SubElement(each, "system-out").text = words
        else:
            told = {"message": words, "type": case.outcome}
            ElementTree.SubElement(each, case.outcome, told).text = words
    ElementTree.indent(suites)
    text = ElementTree.tostring(suites, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def write_junit(path: Path, command: str, cases: Sequence[Case]) -> None:
    """Writes the cases of a command to `path`, all or nothing. Raises RunFolderError."""
    write_output(path, junit_xml(command, cases))

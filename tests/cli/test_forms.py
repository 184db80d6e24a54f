"""Forms of a result: the flags, and what is printed."""

import io

import pytest
from support import specs

from scoremode.cli.command import print_result, rendered
from scoremode.cli.screen import Screen, Session
from scoremode.errors import UsageError
from scoremode.report.document import Column, Document, Facts, Table
from scoremode.spec.flag import Flags
from scoremode.spec.run import Form
from scoremode.startup.clock import StageClock

TABLE = Table((Column("a", "a_nats"),), ((1,),))
DOCUMENT = Document((Facts((("x", "y"),)), TABLE), TABLE)


class Printed(Flags):
    form = Form("all")


def parsed(*arguments: str) -> Printed:
    return specs.given(Printed, *arguments)


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ([], "table"),
        (["--json"], "json"),
        (["--format", "json"], "json"),
        (["--json", "--format=json"], "json"),
        (["--format", "csv"], "csv"),
        (["--format", "markdown", "--format", "markdown"], "markdown"),
    ],
)
def test_one_form_is_chosen(arguments, form):
    assert parsed(*arguments).form == form


@pytest.mark.parametrize("arguments", [["--json", "--format", "csv"], ["--format=table", "--json"]])
def test_two_forms_are_refused(arguments):
    with pytest.raises(UsageError, match=r"the result is printed as \w+ or as \w+"):
        parsed(*arguments)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("table", "x  y\n\na\n-\n1\n"),
        ("markdown", "- x: y\n\n| a |\n| --- |\n| 1 |\n"),
        ("csv", "a_nats\n1\n"),
    ],
)
def test_a_document_in_each_form(form, text):
    assert rendered(DOCUMENT, form) == text


@pytest.mark.parametrize(
    ("flags", "printed"),
    [
        ({"form": "json"}, '{\n  "a": 1\n}\n'),
        ({"form": "csv"}, "a_nats\n1\n"),
        ({"form": "table", "quiet": True}, ""),
        ({"form": "json", "quiet": True}, '{\n  "a": 1\n}\n'),
    ],
)
def test_a_result_takes_the_place_of_the_line(flags, printed, capsys):
    """`scoremode show` printed its table behind it."""
    stream = io.StringIO()
    stream.isatty = lambda: True
    screen = Screen(stream)
    screen.stage("start")
    session = Session((), screen, StageClock())
    print_result(session, {"a": 1}, lambda value: DOCUMENT if value == {"a": 1} else None, **flags)
    assert stream.getvalue().endswith("\r") and capsys.readouterr().out == printed
    screen.close()

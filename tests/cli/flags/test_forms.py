"""Forms of a result: the flags, and what is printed."""

import argparse
import io

import pytest

from scoremode.cli.flags.forms import add_form, print_result, rendered
from scoremode.cli.flags.parser import Parser
from scoremode.cli.process.screen import Screen
from scoremode.errors import UsageError
from scoremode.report.document import Column, Document, Facts, Table

TABLE = Table((Column("a", "a_nats"),), ((1,),))
DOCUMENT = Document((Facts((("x", "y"),)), TABLE), TABLE)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = Parser(prog="scoremode x")
    add_form(parser, "all")
    return parser.parse_args(arguments)


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
    args = argparse.Namespace(screen=screen, **flags)
    print_result(args, {"a": 1}, lambda value: DOCUMENT if value == {"a": 1} else None)
    assert stream.getvalue().endswith("\r") and capsys.readouterr().out == printed
    screen.close()

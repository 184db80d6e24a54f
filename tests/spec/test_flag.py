"""A flag is declared once: what argparse reads and what a program gives are one spec, or one line."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest
from support import specs

from scoremode.errors import UsageError
from scoremode.spec.flag import Flag, Flags, Group, Name, Number, PathName, Switch
from scoremode.spec.values import object_of, whole

FIRST = Group("first", "what it is about")


class Part(Flags, part="text", group=FIRST):
    name: Name = Flag("a name", "NAME", once=True)
    count: Number = Flag("a count", "N", read=whole, also=("-c", "--number"))


class Command(Part, part="engine"):
    called = "run"
    count: Number = Part.count.but(default=3, group=None)
    kind: Flag[Literal["a", "b"], str] = Flag("a kind", choices=("a", "b"), default="a")
    files: Flag[Sequence[str | Path] | None, list[Path] | None] = Flag(
        "files", "FILE", read=Path, repeats=True, spelled="--file"
    )
    options: Flag[dict | None, dict | None] = Flag("an object", "JSON", read=object_of)
    place: PathName = Flag("a place", "DIR", read=Path, required=True)
    eager: Flag[bool | None, bool | None] = Flag("eager or not", pair=True)
    floor: Name = Flag("a floor", nargs="?", const="auto")
    shown = Switch("of a command line alone", switch=True)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--name=x", "-c", "4"], {"name": "x", "count": 4}),
        (["--number", "5", "--kind=b"], {"count": "5", "kind": "b"}),
        (["--file=a", "--file=b"], {"files": ["a", Path("b")]}),
        (['--options={"x": [1]}'], {"options": {"x": [1]}}),
        (["--no-eager"], {"eager": False}),
        (["--eager", "--floor", "--shown"], {"eager": True, "floor": True, "shown": True}),
        (["--floor=y"], {"floor": "y", "shown": False, "name": None}),
    ],
)
def test_a_command_line_and_a_program_give_one_spec(words, given):
    read = specs.given(Command, *words, "--place=p")
    made = Command.of(**given, place="p")
    assert {n: getattr(read, n) for n in read.flags} == {n: getattr(made, n) for n in made.flags}
    # And the words of the one are those that make the other again.
    assert made.words()[0] == "run"
    again = specs.given(Command, *made.words()[1:])
    assert {n: getattr(again, n) for n in again.flags} == {n: getattr(made, n) for n in made.flags}


@pytest.mark.parametrize(
    ("given", "line", "words", "typed"),
    [
        (
            {"count": "x"},
            "count: 'x' is not a whole number",
            ["-c", "x"],
            "argument -c/--count/--number: 'x' is not a whole number",
        ),
        (
            {"count": True},
            "count: takes one value, not True",
            ["-c"],
            "argument -c/--count/--number: expected one argument",
        ),
        ({"count": [1]}, "count: takes one value, not [1]", None, ""),
        (
            {"options": "[1]"},
            "options: '[1]' is not an object in JSON",
            ["--options=[1]"],
            "argument --options: '[1]' is not an object in JSON",
        ),
        ({"kind": "c"}, "kind: 'c' is none of 'a', 'b'", None, ""),
        ({"place": None}, "run: place must be given", None, ""),
        (
            {"no_such": 1},
            "run: there is no keyword no_such",
            ["--no-such=1"],
            "unrecognized arguments: --no-such=1",
        ),
        ({"coumt": 1}, "run: there is no keyword coumt; did you mean count?", None, ""),
        ({"name": "\udc80"}, "--name=\\udc80: is not UTF-8", None, ""),
    ],
)
def test_what_can_not_be_is_one_line_from_either(given, line, words, typed):
    with pytest.raises(UsageError) as error:
        Command.of(**{"place": "p", **given})
    assert str(error.value).startswith(line)
    if words is not None:
        with pytest.raises(UsageError) as error:
            specs.given(Command, "--place=p", *words)
        assert str(error.value).startswith(typed)


def test_flags_stand_in_the_order_of_their_classes_and_in_their_groups():
    assert list(Command.flags)[:3] == ["name", "count", "kind"]
    assert [flag.part for flag in Command.flags.values()][:3] == ["text", "text", "engine"]
    parser = argparse.ArgumentParser()
    Command.add_to(parser)
    grouped = {g.title: [a.dest for a in g._group_actions] for g in parser._action_groups}
    assert grouped["first"] == ["name"] and "count" in grouped["options"]
    assert Part.flags["count"].default is None and Part.flags["count"].group is FIRST


def test_a_spec_does_not_change_and_another_may_be_made_of_it():
    spec = Command(place="p", count=4)
    with pytest.raises(AttributeError):
        spec.count = 5  # pyright: ignore[reportAttributeAccessIssue]
    other = spec.but(count=5)
    assert (spec.count, other.count, other.place) == (4, 5, Path("p"))
    assert isinstance(Command.count, Flag) and Command.count.names == ("-c", "--count", "--number")


def test_a_long_value_stands_in_a_command_by_its_length():
    flag = Flag[str, str]("a text", spelled="--text", longest=3)
    assert flag.words("abc") == ["--text=abc"] and flag.words("abcd") == ["--text=<4 characters>"]

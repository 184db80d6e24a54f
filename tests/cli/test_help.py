"""Help of the commands: a screen for what most people use, all of it by groups, and each text can be
read alone."""

import argparse
import re
import shlex

import pytest
from support.programs import run

from scoremode.cli import main as commands
from scoremode.spec.engine import Engine


def helped(capsys, *words: str) -> str:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    return out


def flags(command: str) -> list[argparse.Action]:
    return [
        action
        for action in commands.command_parser(command)._actions
        if action.option_strings and "--help" not in action.option_strings
    ]


def lists(text: str, action: argparse.Action) -> bool:
    return bool(re.search(rf"^  {action.option_strings[0]}(?![\w-])", text, re.MULTILINE))


def groups(command: str) -> dict[str, list[str]]:
    """Title → the longest name of each flag in it, in the order of the help; without empty ones."""
    found = {
        str(group.title): [max([a.dest, *a.option_strings], key=len) for a in group._group_actions]
        for group in commands.command_parser(command)._action_groups
    }
    return {title: flags for title, flags in found.items() if flags and title != "options"}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", list(commands.COMMANDS))
def test_a_help_is_a_screen_and_says_how_many_flags_it_leaves_out(command, capsys):
    text = helped(capsys, command, "--help")
    lines = text.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 80
    shown = [a for a in flags(command) if lists(text, a)]
    assert 0 < len(shown) <= 15
    left_out = len(flags(command)) - len(shown)
    assert (left_out > 0) == (len(flags(command)) > 15)
    if left_out:
        assert lines[-1] == f"'scoremode {command} --help all' shows the other {left_out} flags"
        assert text.startswith(f"usage: scoremode {command} ") and not lines[1]
    examples = text.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert 2 <= len(examples) <= 4
    for line in examples:
        words = shlex.split(line)
        assert words[:2] == ["scoremode", command]
        assert commands.parsed_command(words[1:]).called == command


def test_what_most_people_use_is_there(capsys):
    text = helped(capsys, "kld", "-h")
    used = ["MODEL", "--reference", "--max-kld", "--min-top1", "--file", "--dataset-file", "--limit",
            "--protocol", "--context-length", "--output-path", "--resume", "--engine"]  # fmt: skip
    assert all(f" {name} " in text for name in used)
    # The same flag is no use where the command refuses it.
    assert "--devices" in text and "--devices" not in helped(capsys, "attribute", "-h")


@pytest.mark.parametrize("command", list(commands.COMMANDS))
def test_help_all_has_every_flag_and_stands_anywhere(command, capsys):
    text = helped(capsys, command, "--help", "all")
    for action in flags(command):
        assert lists(text, action), action.option_strings
    assert "shows the other" not in text
    assert helped(capsys, command, "name", "-h", "all", "--no-such-flag") == text
    assert helped(capsys, command, "--help=all") == text


@pytest.mark.parametrize("command", ["ppl", "kld", "reference"])
def test_groups_go_from_the_model_to_the_engines(command):
    titles = list(groups(command))
    assert titles[0] == "model" and titles[-3:] == ["both engines", "torch engine", "vllm engine"]
    assert titles.index("text") + 1 == titles.index("conversations") < titles.index("output")


def test_only_one_engines_flags_are_under_its_name():
    """Those that the other engine refuses."""
    for engine in ("torch", "vllm"):
        only = {f.spelled for f in Engine.flags.values() if f.engine == engine and f.refusal}
        assert only and only <= set(groups("ppl")[f"{engine} engine"]), engine


@pytest.mark.parametrize("command", list(commands.COMMANDS))
def test_each_flags_text_is_there_and_stands_alone(command):
    for action in commands.command_parser(command)._actions:
        text, name = action.help, max([action.dest, *action.option_strings], key=len)
        assert text, f"{command} {name}: no help"
        begin = text.split()[0]
        assert begin not in {"of", "its", "as", "by", "and", "default:"}, (
            f"{command} {name}: {text}"
        )
        assert not text.endswith("."), f"{command} {name}: {text}"

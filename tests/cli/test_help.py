"""Help of the commands: what everyone uses stands first, and each text can be read alone."""

import argparse

import pytest

from scoremode.cli import main as commands
from scoremode.spec.engine import Engine


def parsers() -> dict[str, argparse.ArgumentParser]:
    return {name: commands.command_parser(name) for name in commands.COMMANDS}


def groups(command: str) -> dict[str, list[str]]:
    """Title → the longest name of each flag in it, in the order of the help; without empty ones."""
    found = {
        str(group.title): [max([a.dest, *a.option_strings], key=len) for a in group._group_actions]
        for group in parsers()[command]._action_groups
    }
    return {title: flags for title, flags in found.items() if flags and title != "options"}


@pytest.mark.parametrize("command", ["ppl", "kld", "reference"])
def test_what_everyone_uses_stands_first_and_engines_flags_last(command):
    titles = list(groups(command))
    assert titles[0] == "most used"
    assert titles[-3:] == ["both engines", "torch engine", "vllm engine"]
    first = groups(command)["most used"]
    assert {"model", "--file", "--protocol", "--context-length", "--output-path"} <= set(first)
    assert ("--reference" in first) == (command == "kld") and len(first) <= 14
    help_text = parsers()[command].format_help()
    # The first screen is what there is to know; the usage doesn't repeat all flags before it.
    assert help_text.index("--context-length") < 1500 < help_text.index("--tensor-parallel-size")
    assert help_text.startswith(f"usage: scoremode {command} ")
    assert len(help_text.split("\n\n")[0].splitlines()) == 1


def test_only_one_engines_flags_are_under_its_name():
    """Those that the other engine refuses."""
    for engine in ("torch", "vllm"):
        only = {f.spelled for f in Engine.flags.values() if f.engine == engine and f.refusal}
        assert only and only <= set(groups("ppl")[f"{engine} engine"]), engine


@pytest.mark.parametrize("command", list(commands.COMMANDS))
def test_each_flags_text_is_there_and_stands_alone(command):
    for action in parsers()[command]._actions:
        text, name = action.help, max([action.dest, *action.option_strings], key=len)
        assert text, f"{command} {name}: no help"
        begin = text.split()[0]
        assert begin not in {"of", "its", "as", "by", "and", "default:"}, (
            f"{command} {name}: {text}"
        )
        assert not text.endswith("."), f"{command} {name}: {text}"

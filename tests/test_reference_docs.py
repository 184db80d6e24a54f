"""The pages that are made of the code: as tools/reference_docs.py makes them today, and whole."""

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import scoremode
from scoremode.cli.main import COMMANDS, command_parser

ROOT = Path(__file__).parents[1]
MADE = [
    *("cli.md", "api.md", "record.schema.json", "record.md"),
    *("formats.md", "report.md", "statistics.md"),
]


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location(
        "reference_docs", ROOT / "tools/reference_docs.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def written(tool) -> dict[str, str]:
    return tool.written()


@pytest.mark.parametrize("name", MADE)
def test_a_page_is_what_the_code_says(name, written):
    """If not: python tools/reference_docs.py."""
    assert (ROOT / "docs" / name).read_text("utf-8") == written[name]
    assert sorted(written) == sorted(MADE)


def section(page: str, title: str) -> str:
    return re.split(r"^## ", page.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_flag_of_a_command_is_on_the_page(command, written):
    text = section(written["cli.md"], command)
    for action in command_parser(command)._actions:
        for name in action.option_strings:
            assert name in ("-h", "--help") or re.search(rf"`{name}[ `]", text), name


def test_every_public_name_and_every_keyword_is_on_the_page(written):
    page = written["api.md"]
    for name in scoremode.__all__:
        assert f"\n### {name}\n" in page or f"\n| `{name}` | " in page, name
    for name in inspect.signature(scoremode.measure).parameters.keys() - {"model"}:
        assert f"\n| `{name}` | `" in page, name
    # A table's cell ends at a bar.
    rows = re.findall(r"^\|.*\|$", page, re.MULTILINE)
    assert {row.count("|") for row in rows} == {4, 5}


def test_a_help_text_is_no_markdown_by_chance(tool):
    said = tool._prose("a|b of 'layers.*.mlp', --max-kld [x] (docs/gate.md#exit-codes) `*`")
    assert said == (
        "a\\|b of 'layers.\\*.mlp', `--max-kld` \\[x\\] ([gate.md](gate.md#exit-codes)) `*`"
    )

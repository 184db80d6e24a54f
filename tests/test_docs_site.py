"""The documentation's site: every page is in its navigation, its links lead somewhere, it asks no other
server for anything; `make docs` builds it."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages(nav) -> list[str]:
    """The pages that a part of the navigation names, in its order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for part in inner for page in pages(part)]


def test_the_navigation_has_every_page_once(hooks):
    named = pages(CONFIG["nav"])
    own = {path.name for path in (ROOT / "docs").glob("*.md")} - {CONFIG["not_in_nav"]}
    assert sorted(named) == sorted({*own, *hooks.PAGES.values()}), "nav of mkdocs.yml and docs/"
    assert not own & set(hooks.PAGES.values())
    assert all((ROOT / name).is_file() for name in hooks.PAGES)


def test_links_lead_to_pages_of_the_site_and_from_the_repository_too(hooks):
    known = {*pages(CONFIG["nav"]), CONFIG["not_in_nav"], "record.schema.json"}
    files = [ROOT / name for name in hooks.PAGES] + sorted((ROOT / "docs").glob("*.md"))
    for path in files:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#: ]+\.(?:md|json))[)#]", text):
            assert (path.parent / link).is_file(), f"{path.name}: {link}"
        for link in re.findall(r"\]\(([^)#: ]+\.(?:md|json))[)#]", hooks.turned(text)):
            assert link in known, f"{path.name}: {link}"
        for plot in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
            assert (path.parent / plot).is_file(), f"{path.name}: {plot}"


def test_links_are_turned_with_their_anchors(hooks):
    assert hooks.turned("[a](../README.md#use) [b](docs/kld.md)") == "[a](start.md#use) [b](kld.md)"
    assert (
        hooks.turned("[c](ARCHITECTURE.md), [d](vllm.md#x)")
        == "[c](architecture.md), [d](vllm.md#x)"
    )
    assert hooks.turned("[e](https://a.b/README.md)") == "[e](https://a.b/README.md)"


def test_the_example_is_the_report_where_there_is_one_and_else_says_how_to_make_it(
    hooks, monkeypatch, tmp_path
):
    class Page:
        class file:  # noqa: N801
            src_uri = "report.md"

    text = (ROOT / "docs" / "report.md").read_text()
    monkeypatch.setattr(hooks, "REPORT", tmp_path / "report.html")
    said = hooks.on_page_markdown(text, Page, None, None)
    assert "make test-real" in said and "iframe" not in said
    (tmp_path / "report.html").write_text("")
    said = hooks.on_page_markdown(text, Page, None, None)
    assert 'src="example/report.html"' in said and "without the report" not in said


def test_nothing_is_fetched_and_a_broken_link_is_an_error():
    assert CONFIG["theme"]["font"] is False and CONFIG["plugins"] == ["search"]
    assert not {"extra_css", "extra_javascript"} & CONFIG.keys()
    rules = [*CONFIG["validation"]["nav"].values(), *CONFIG["validation"]["links"].values()]
    assert set(rules) == {"warn"}
    # --quiet would keep warnings from --strict, which counts them.
    (line,) = (x for x in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in x)
    assert "--strict" in line and "--quiet" not in line
    assert re.search(r"^make .*\bdocs\b", (ROOT / ".ci" / "run").read_text(), re.M)


def test_plots_are_small_and_made_of_shapes_and_words_alone():
    plots = sorted((ROOT / "docs" / "plots").glob("*.svg"))
    assert [path.stem for path in plots] == ["blocks", "paired", "size", "tail"]
    for path in plots:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 40_000 and "script" not in text and text.count("http") == 1
        numbers = re.findall(r' c?[xy]="([^"]+)"', text)
        assert numbers and all(-20 < float(n) < 660 for n in numbers)

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


def test_four_sections_have_at_most_30_pages_and_every_page_is_somewhere(hooks):
    assert [title for part in CONFIG["nav"] for title in part] == [
        "Start", "Do", "Understand", "Reference"
    ]  # fmt: skip
    named, others = pages(CONFIG["nav"]), CONFIG["not_in_nav"].split()
    assert len(named) <= 30 and named[:2] == ["index.md", "start.md"]
    own = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert sorted(named + others) == sorted({*own, *hooks.PAGES.values()}), "mkdocs.yml and docs/"
    assert not own & set(hooks.PAGES.values()) and set(hooks.PAGES.values()) < set(others)
    assert all((ROOT / name).is_file() for name in hooks.PAGES)


def test_links_lead_to_pages_of_the_site_and_from_the_repository_too(hooks):
    known = {*pages(CONFIG["nav"]), *CONFIG["not_in_nav"].split(), "record.schema.json"}
    files = [ROOT / name for name in hooks.PAGES] + sorted((ROOT / "docs").glob("*.md"))
    for path in [ROOT / "README.md", *files]:
        text = path.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#: ]+\.(?:md|json))[)#]", text):
            assert (path.parent / link).is_file(), f"{path.name}: {link}"
        for link in re.findall(r"\]\(([^)#: ]+\.(?:md|json))[)#]", hooks.turned(text)):
            assert path not in files or link in known, f"{path.name}: {link}"
        for plot in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text):
            assert (path.parent / plot).is_file(), f"{path.name}: {plot}"


def test_no_code_in_a_table_has_an_escaped_pipe():
    """GitHub needs it escaped, the site shows the backslash."""
    for path in (ROOT / "docs").glob("*.md"):
        assert not re.findall(r"^\|.*`[^`|]*\\\|[^`]*`", path.read_text("utf-8"), re.M), path.name


def test_links_are_turned_with_their_anchors(hooks):
    turned = hooks.turned("[a](../SECURITY.md#use) [b](docs/kld.md)")
    assert turned == "[a](security.md#use) [b](kld.md)"
    turned = hooks.turned("[c](ARCHITECTURE.md), [d](vllm.md#x)")
    assert turned == "[c](architecture.md), [d](vllm.md#x)"
    assert hooks.turned("[e](https://a.b/SECURITY.md)") == "[e](https://a.b/SECURITY.md)"


def test_the_example_is_the_demos_report_which_make_docs_writes(hooks):
    class Page:
        class file:  # noqa: N801
            src_uri = "report.md"

    text = (ROOT / "docs" / "report.md").read_text()
    assert 'src="example/report.html"' in hooks.on_page_markdown(text, Page, None, None)
    rules = (ROOT / "Makefile").read_text()
    (example,) = re.findall(r"^EXAMPLE = (.*)$", rules, re.M)
    assert ROOT / example == hooks.REPORT and re.search(r"^docs: .*\$\(EXAMPLE\)", rules, re.M)


def test_nothing_is_fetched_and_a_broken_link_is_an_error():
    assert CONFIG["theme"]["font"] is False and CONFIG["plugins"] == ["search"]
    assert CONFIG["extra_css"] == ["site.css"] and "extra_javascript" not in CONFIG
    assert not re.search(r"url|import|//", (ROOT / "docs" / "site.css").read_text())
    rules = [*CONFIG["validation"]["nav"].values(), *CONFIG["validation"]["links"].values()]
    assert set(rules) == {"warn"}
    # --quiet would keep warnings from --strict, which counts them.
    (line,) = (x for x in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in x)
    assert "--strict" in line and "--quiet" not in line
    assert re.search(r"^make .*\bdocs\b", (ROOT / ".ci" / "run").read_text(), re.M)


def test_plots_are_small_and_made_of_shapes_and_words_alone():
    plots = sorted((ROOT / "docs" / "plots").glob("*.svg"))
    assert [path.stem for path in plots] == [
        *("blocks", "frontier-dark", "frontier", "paired", "size", "tail")
    ]
    for path in plots:
        text = path.read_text(encoding="utf-8")
        assert len(text) < 40_000 and "<script" not in text
        assert set(re.findall(r"https?://[^/\"]*", text)) == {"http://www.w3.org"}
        # vl-convert's own draws by paths.
        numbers = re.findall(r' c?[xy]="([^"]+)"', text)
        assert numbers or path.stem.startswith("frontier")
        assert all(-20 < float(n) < 660 for n in numbers)

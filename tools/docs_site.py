"""Hooks of the documentation's site (`mkdocs.yml`): pages from the root's files, the example report.

The files at the repository's root are pages of the site as they are, with their links turned; nothing
is written twice. The example is a report that `make test-real` leaves in `.real/`: a page of the site
where it lies there, else the page says how to make it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# A file at the root → the page that it is.
PAGES = {
    "README.md": "start.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
REPORT = ROOT / ".real" / "report.html"
_LINK = re.compile(r"\]\((?P<up>\.\./)?(?P<path>[\w./-]+\.(?:md|json))(?P<anchor>#[\w-]+)?\)")
_MARK = "<!-- the report -->"
_THERE = (
    "[**The report**](example/report.html){ target=_blank } of SmolLM2-135M in a dozen formats, one "
    "file of its own.\n\n"
    '<iframe src="example/report.html" title="the report" loading="lazy" '
    'style="width:100%;height:80vh;border:1px solid #8888"></iframe>'
)
_NOT_THERE = (
    "!!! note\n    This copy of the site was built without the report. `make test-real` measures the "
    "model and writes it to `.real/report.html`; `make docs` then takes it in."
)


def on_files(files: Any, config: Any) -> Any:
    """Adds the root's pages, and the report where it was made."""
    # Of the site's own environment.
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    if REPORT.is_file():
        report = File.generated(config, "example/report.html", abs_src_path=str(REPORT))
        files.append(report)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A page's text with its links turned to the site's pages, and the example put in."""
    if page.file.src_uri == "report.md":
        markdown = markdown.replace(_MARK, _THERE if REPORT.is_file() else _NOT_THERE)
    return turned(markdown)


def turned(markdown: str) -> str:
    """The text with every link to a file of the repository as one to the page that it is here."""

    def link(found: re.Match[str]) -> str:
        path = PAGES.get(found["path"], found["path"].removeprefix("docs/"))
        return f"]({path}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)

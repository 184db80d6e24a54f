"""Hooks of the documentation's site (`mkdocs.yml`): pages from the root's files, the example report.

The files at the repository's root are pages of the site as they are, with their links turned; nothing
is written twice. The example is the demo's report, which `make docs` writes to `build/example`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# A file at the root → the page that it is; none of them is in the navigation.
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
REPORT = ROOT / "build" / "example" / "report.html"
_LINK = re.compile(r"\]\((?P<up>\.\./)?(?P<path>[\w./-]+\.(?:md|json))(?P<anchor>#[\w-]+)?\)")
_MARK = "<!-- the report -->"
_EXAMPLE = (
    "[**The report of `scoremode demo`**](example/report.html){ target=_blank }, one file:\n\n"
    '<iframe src="example/report.html" title="the report" loading="lazy" '
    'style="width:100%;height:80vh;border:1px solid #8888"></iframe>'
)


def on_files(files: Any, config: Any) -> Any:
    """Adds the root's pages and the example. Raises PluginError where no example was made."""
    # Of the site's own environment.
    from mkdocs.exceptions import PluginError  # pyright: ignore[reportMissingImports]
    from mkdocs.structure.files import File  # pyright: ignore[reportMissingImports]

    if not REPORT.is_file():
        raise PluginError(f"{REPORT.relative_to(ROOT)} is missing: make docs writes it")
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    files.append(File.generated(config, "example/report.html", abs_src_path=str(REPORT)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A page's text with its links turned to the site's pages, and the example put in."""
    if page.file.src_uri == "report.md":
        markdown = markdown.replace(_MARK, _EXAMPLE)
    return turned(markdown)


def turned(markdown: str) -> str:
    """The text with every link to a file of the repository as one to the page that it is here."""

    def link(found: re.Match[str]) -> str:
        path = PAGES.get(found["path"], found["path"].removeprefix("docs/"))
        return f"]({path}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)

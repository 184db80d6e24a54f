"""Hatchling's hook: the description that a package index shows, and the repository's addresses.

README.md links to files of the repository, which an index doesn't have. A release says which repository
it is made in (`SCOREMODE_REPOSITORY=https://github.com/OWNER/NAME`, as .github/workflows/release.yml
does): the links then lead there, to the files of that version's tag. A build that doesn't say leaves
the words without the links, and names no address. An sdist brings the description it was made with.
"""

from __future__ import annotations

import os
import re
from email import message_from_string
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# The picture's files are the repository's, too, and an index shows no SVG.
_PICTURE = re.compile(r"<picture>.*?</picture>\n\n", re.DOTALL)
_LINK = re.compile(r"\[(?P<words>[^]\n]+)\]\((?!https?:|#)(?P<path>[^)\s]+)\)")
# Addresses: their name in the metadata, and where they lie in a repository.
_URLS = {
    "Source": "",
    "Issues": "/issues",
    "Documentation": "/blob/v{version}/docs/index.md",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Security": "/blob/v{version}/SECURITY.md",
}


class MetadataHook(MetadataHookInterface):
    """Sets `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fills in the two fields, whose `metadata` has the version already."""
        kept = Path(self.root) / "PKG-INFO"
        if kept.is_file():
            text, urls = of_sdist(kept.read_text(encoding="utf-8"))
        else:
            text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            repository = os.environ.get("SCOREMODE_REPOSITORY", "").rstrip("/")
            version = metadata["version"]
            text = description(text, repository, version)
            urls = addresses(repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls


def description(readme: str, repository: str, version: str) -> str:
    """The README without its picture, with links to the files of `repository` at the tag of `version`;
    "" turns them into their words."""

    def link(found: re.Match[str]) -> str:
        words, path = found["words"], found["path"]
        return f"[{words}]({repository}/blob/v{version}/{path})" if repository else words

    return _LINK.sub(link, _PICTURE.sub("", readme))


def addresses(repository: str, version: str) -> dict[str, str]:
    """The metadata's addresses; none where `repository` is ""."""
    if not repository:
        return {}
    return {name: repository + path.format(version=version) for name, path in _URLS.items()}


def of_sdist(pkg_info: str) -> tuple[str, dict[str, str]]:
    """Description and addresses of an sdist's metadata."""
    message = message_from_string(pkg_info)
    pairs = (line.partition(", ") for line in message.get_all("Project-URL", []))
    payload = message.get_payload()
    assert isinstance(payload, str)
    return payload, {name: address for name, _, address in pairs}

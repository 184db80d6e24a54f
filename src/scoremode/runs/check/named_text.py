"""A run's named text, read again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.runs.check.sources import Sources, Unreachable
from scoremode.text.corpus import Corpus
from scoremode.text.presets import load_text, named_text

__all__ = ["named_corpus"]


def named_corpus(
    section: Mapping[str, Any], sources: Sources, how: Mapping[str, Any] | None = None
) -> Corpus:
    """The text that a record's corpus names; `how`: further fields of conversations.

    Raises Unreachable, CorpusError, UsageError for a name that this release doesn't know.
    """
    text, source = named_text(section["preset"]), str(section.get("source") or section["name"])
    file, revision = None, None
    if sources.files:
        file = sources.files[0]
    elif source.startswith("hub:"):
        if not sources.fetch:
            raise Unreachable(
                f"{source}: --fetch gets it from the hub, or --file PATH says where a copy lies"
            )
        revision = source.partition("@")[2]
    elif os.path.isfile(sources.at(source)):  # noqa: PTH113  Path.is_file raises for a name too long
        file = Path(sources.at(source))
    else:
        raise Unreachable(f"there is no {source} here: --file PATH says where it lies")
    return load_text(text, file=file, revision=revision, group_by=section.get("group_by"), how=how)

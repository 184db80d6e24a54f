"""All files that a card is in a repository: its README, the hub's results, the runs' records."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError, UsageError, words_of
from scoremode.lib.files import MOST_JSON, make_folder, read_regular, write_text
from scoremode.report.card.block import Group, card_block
from scoremode.report.card.metadata import entry_files, model_index, results_of
from scoremode.report.card.readme import with_block, with_model_index
from scoremode.results.folders.paths import check_folder
from scoremode.results.folders.store import RECORD

__all__ = ["README", "card_files", "read_readme", "write_files"]

README = "README.md"


def card_files(
    groups: Sequence[Group],
    readme: str,
    *,
    name: str,
    model: str,
    address_of: Callable[[str], str] | None = None,
) -> dict[str, str]:
    """Path in the repository → text, of every file that is written.

    - `readme`: what the README is now, and `name` what errors call it. `model`: the model's name there.
    - `address_of`: a path in the repository → its address; None where that is not known, and then no
      result names a source, and no record goes along.

    Raises UsageError for a README that can't be added to, or whose front matter is no model card's.
    """
    records = _records(groups) if address_of else {}
    sources = {folder: address_of(path) for folder, path in records.items()} if address_of else {}
    results = results_of(groups, sources)
    text = with_model_index(readme, model_index(model, results), name)
    text = with_block(text, card_block(groups), name)
    _check(text, name, results)
    files = {README: text, **entry_files(groups, sources)}
    for folder, path in records.items():
        files[path] = read_regular(Path(folder) / RECORD, MOST_JSON, links=False).decode()
    return files


def read_readme(folder: Path) -> str:
    """The README in `folder`, "" where there is none. Raises UsageError."""
    path = folder / README
    try:
        return read_regular(path, MOST_JSON, links=False).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {words_of(error, named=False)}") from None


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Writes `files` below `folder`, each whole, and none through a link. Raises RunFolderError."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {error.strerror}") from None
    for path, text in files.items():
        place = folder / path
        try:
            make_folder(place.parent, below=folder)
        except OSError as error:
            raise RunFolderError(f"{error.filename}: cannot be written: {error.strerror}") from None
        write_text(place, text)


def _records(groups: Sequence[Group]) -> dict[str, str]:
    """A run's folder → the path of its record in the repository."""
    folders = [row["folder"] for group in groups for row, _ in group.published]
    return {folder: f"scoremode/{Path(folder).resolve().name}/{RECORD}" for folder in folders}


def _check(text: str, name: str, results: Sequence[object]) -> None:
    """Raises UsageError unless the hub's own class finds all of `results` in the README."""
    from huggingface_hub import ModelCard

    try:
        data: Any = ModelCard(text).data
        found = data.eval_results
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{name}: is no model card to the hub: {words_of(error)}") from None
    for result in results:
        if result not in (found or ()):
            raise UsageError(f"{name}: the hub would not read {result}")

"""Data sets of the Hugging Face hub, read as the files they are.

Only the files of one split are downloaded, at a fixed revision, and the result is a `Corpus` like
any other. `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` work as huggingface_hub has
them. No loading script is ever run.

The hub says which files a split has. Where it can't be reached, the cache holds what earlier runs
wanted of it, which may be part of a split or another configuration: it is believed only where the
files' own names say that they are all there are.
"""

import re
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from scoremode.errors import CorpusError, words_of
from scoremode.lib.files import MOST_TEXT, read_regular
from scoremode.lib.hub import downloaded, find_revision
from scoremode.text.corpus import Corpus, from_rows
from scoremode.text.rows import read_rows, row_names

__all__ = ["HubRows", "from_hub", "rows_of_hub"]

# A name, as people write it, → the repository and the revision whose rows are known.
_WIKITEXT = "Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3"
_PINNED = {"wikitext": _WIKITEXT, "Salesforce/wikitext": _WIKITEXT}
# Where the hub keeps its own conversion of data sets stored in another format.
_CONVERTED = "refs/convert/parquet"


class HubRows(NamedTuple):
    """Rows of a hub data set's split and what to call each (where they are whole ones), its title and
    commit, and the sha256 and size of its files."""

    rows: list[Any]
    names: list[str]
    title: str
    source: str
    sha256: str
    bytes: int


class _Several(CorpusError):
    """A split that several configurations have."""


def from_hub(
    dataset: str,
    config: str | None = None,
    *,
    split: str = "test",
    text_field: str = "text",
    revision: str | None = None,
    group_by: str | None = None,
    files: Sequence[str] = (),
) -> Corpus:
    """The texts of one split of a hub data set. Raises CorpusError.

    `group_by`: the field that names each row's group; `files`: those to read, in place of a split's.
    `revision` is a commit or branch; the default is a pinned commit for WikiText and `main` for
    anything else, and the corpus names the commit it resolved to.
    """
    read = partial(rows_of_hub, dataset, config, split=split, revision=revision, files=files)
    found, groups = read(text_field=text_field), None
    if group_by is not None:
        groups = group_by, read(text_field=group_by, revision=found.source.rpartition("@")[2]).rows
    return from_rows(
        found.rows,
        name=found.title,
        source=found.source,
        digest=found.sha256,
        text_field=text_field,
        groups=groups,
    )


def rows_of_hub(
    dataset: str,
    config: str | None,
    *,
    split: str,
    text_field: str | None,
    revision: str | None,
    files: Sequence[str] = (),
    flag: str | None = None,
) -> HubRows:
    """The column or field `text_field` of one split, or of `files`; without one whole rows. `flag`:
    what named the data set, for errors, where that is not a flag of the scored text.

    Raises CorpusError.
    """
    from huggingface_hub import hf_hub_download

    repo, pinned = _PINNED.get(dataset, (dataset, None))
    title = " ".join(filter(None, (dataset, *(files or (config, split)))))
    try:
        commit, named = _find(repo, revision or pinned or "main", config, split, files)
        if not named and not files and not (revision or pinned):
            commit, named = _find(repo, _CONVERTED, config, split)
        if missing := [f for f in files if f not in named]:
            raise CorpusError(
                f"data set {repo}: has no {missing[0]} at revision {revision or pinned or 'main'}"
            )
        if not named:
            raise CorpusError(
                f"data set {title}: no .parquet or .jsonl files of that configuration and split "
                f"at revision {revision or pinned or 'main'} of {repo}"
            )
        if not files and len(named) != (_shards(named[0]) or len(named)):
            raise CorpusError(
                f"data set {title}: {repo} has {len(named)} of its {_shards(named[0])} files"
            )
        paths = [
            downloaded(hf_hub_download, repo, f, repo_type="dataset", revision=commit)
            for f in named
        ]
    except _Several as error:
        config = f"{flag or '--dataset'}-config"
        raise CorpusError(f"data set {title}: {error}: choose with {config}") from None
    except OSError as error:
        flags = "--conversations" if text_field is None else "--dataset-file, or a text with -f"
        # Of a named text no other flag takes a copy.
        flags = flag or ("--dataset-file" if files else flags)
        raise CorpusError(
            f"data set {title}: cannot be fetched from the hub ({words_of(error, 200, named=False)}); "
            f"give a local copy with {flags}"
        ) from None
    digest, rows, names, size = sha256(), [], [], 0
    for path, name in zip(paths, named, strict=True):
        data = read_regular(path, MOST_TEXT)
        digest.update(data)
        size += len(data)
        found = read_rows(data, f"{repo}/{name}", text_field)
        if text_field is None:
            names += row_names(data, f"{repo}/{name}", len(found))
        rows += found
    return HubRows(rows, names, title, f"hub:{repo}@{commit}", digest.hexdigest(), size)


def _find(
    repo: str, revision: str, config: str | None, split: str, files: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """The commit of a revision and the files of a split there, none if it has no such split; in place
    of a split's `files`, those of them that are there."""
    from huggingface_hub.errors import RevisionNotFoundError

    try:
        repository = find_revision(repo, revision, "dataset")
    except OSError as error:
        if isinstance(error.__cause__, RevisionNotFoundError) and revision == _CONVERTED:
            return revision, []
        raise
    chosen = _chosen(repository.files, config, split, files)
    if repository.unreachable is not None and (
        not chosen or (len(chosen) < len(files) if files else not _surely_whole(chosen, config))
    ):
        raise repository.unreachable
    return repository.commit, chosen


def _chosen(names: list[str], config: str | None, split: str, files: Sequence[str]) -> list[str]:
    """The `files` that are among `names`, without any those of the split."""
    return [f for f in files if f in set(names)] if files else _split_files(names, config, split)


def _surely_whole(files: list[str], config: str | None) -> bool:
    """Tells whether the names alone prove `files` to be all of the split that was asked for."""
    folder = files[0].rpartition("/")[0]
    if config is None and folder not in ("", "data"):
        return False  # one configuration, perhaps of several
    counted = _shards(files[0]) or not re.search(r"/\d+\.parquet$", files[0])
    return bool(counted) and len(files) == (_shards(files[0]) or 1)


def _split_files(names: list[str], config: str | None, split: str) -> list[str]:
    """The files of a split: `CONFIG/SPLIT-00000-of-00001.parquet` and the other usual layouts.

    Raises CorpusError where they are more than one split: _Several of several configurations, or the
    same rows twice. Parquet is preferred to a copy as JSON.
    """
    folder = f"(?:{re.escape(config)}|data/{re.escape(config)})" if config else r"(?:[^/]+/)?[^/]*"
    patterns = (
        rf"{folder}/{re.escape(split)}(?:-\d+-of-\d+)?\.(?:parquet|jsonl)",
        rf"{folder}/{re.escape(split)}/\d+\.parquet",
        *(() if config else (rf"{re.escape(split)}(?:-\d+-of-\d+)?\.(?:parquet|jsonl)",)),
    )
    found = sorted(n for n in names if any(re.fullmatch(p, n) for p in patterns))
    found = [n for n in found if n.endswith(".parquet")] or found
    folders = {n.rpartition("/")[0] for n in found}
    if len(folders) > 1:
        raise _Several(
            f"several configurations have a split {split!r} ({', '.join(sorted(folders))})"
        )
    if len({_shards(n) for n in found}) > 1:
        raise CorpusError(f"split {split!r} is there twice: {', '.join(found)}")
    return found


def _shards(name: str) -> int | None:
    """The number of files that the split has, where the file's name says so."""
    count = re.search(r"-of-(\d+)\.\w+$", name)
    return int(count[1]) if count else None

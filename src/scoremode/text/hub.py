"""Data sets of the Hugging Face hub, read as the files they are.

Only the files of one split are downloaded, at a fixed revision, and the result is a `Corpus` like
any other. `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` work as huggingface_hub has
them. No loading script is ever run.
"""

import re
from hashlib import sha256
from pathlib import Path

from scoremode.errors import CorpusError
from scoremode.text.corpus import Corpus, from_rows, read_jsonl, read_parquet

__all__ = ["from_hub"]

# A name, as people write it, → the repository and the revision whose rows are known.
_PINNED = {
    "wikitext": ("Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3"),
    "Salesforce/wikitext": ("Salesforce/wikitext", "b08601e04326c79dfdd32d625aee71d232d685c3"),
}
# Where the hub keeps its own conversion of data sets stored in another format.
_CONVERTED = "refs/convert/parquet"


def from_hub(
    dataset: str,
    config: str | None = None,
    *,
    split: str = "test",
    text_field: str = "text",
    revision: str | None = None,
) -> Corpus:
    """The rows of one split of a hub data set. Raises CorpusError.

    `revision` is a commit or branch; the default is a pinned commit for WikiText and `main` for
    anything else, and the corpus names the commit it resolved to.
    """
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repo, pinned = _PINNED.get(dataset, (dataset, None))
    title = " ".join(filter(None, (dataset, config, split)))
    try:
        commit, files = None, []
        for candidate in [revision or pinned or "main", _CONVERTED]:
            if _cached(repo, candidate):
                commit, names = _cached_files(repo, candidate)
            else:
                info = HfApi().dataset_info(repo, revision=candidate)
                commit, names = info.sha, [s.rfilename for s in info.siblings or ()]
            files = _split_files(names, config, split)
            if files or revision:
                break
        if not files:
            raise CorpusError(
                f"data set {title}: no .parquet or .jsonl files of that configuration and split "
                f"at revision {commit}"
            )
        paths = [
            Path(hf_hub_download(repo, f, repo_type="dataset", revision=commit)) for f in files
        ]
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CorpusError(
            f"data set {title}: cannot be fetched from the hub ({_reason(error)}); "
            "give a local copy with --dataset-file, or a text with -f"
        ) from None
    digest, rows = sha256(), []
    for path, name in zip(paths, files, strict=True):
        data = path.read_bytes()
        digest.update(data)
        if name.endswith(".parquet"):
            rows += read_parquet(data, f"{repo}/{name}", text_field)
        else:
            rows += read_jsonl(data.decode(), f"{repo}/{name}", text_field)
    source = f"hub:{repo}@{commit}"
    return from_rows(rows, name=title, source=source, digest=digest.hexdigest())


def _cached(repo: str, revision: str) -> Path | None:
    """The snapshot folder of a revision that an earlier run fetched, if the commit is fixed."""
    from huggingface_hub import constants

    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    folder = Path(constants.HF_HUB_CACHE, "datasets--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / revision
    return snapshot if snapshot.is_dir() else None


def _cached_files(repo: str, revision: str) -> tuple[str, list[str]]:
    snapshot = _cached(repo, revision)
    assert snapshot is not None
    files = (p for p in snapshot.rglob("*") if p.is_file())
    return revision, [p.relative_to(snapshot).as_posix() for p in files]


def _split_files(names: list[str], config: str | None, split: str) -> list[str]:
    """The files of a split: `CONFIG/SPLIT-00000-of-00001.parquet` and the other usual layouts."""
    folder = f"(?:{re.escape(config)}|data/{re.escape(config)})" if config else r"(?:[^/]+/)?[^/]*"
    patterns = (
        rf"{folder}/{re.escape(split)}(?:-\d+-of-\d+)?\.(?:parquet|jsonl)",
        rf"{folder}/{re.escape(split)}/\d+\.parquet",
        *(() if config else (rf"{re.escape(split)}(?:-\d+-of-\d+)?\.(?:parquet|jsonl)",)),
    )
    found = sorted(n for n in names if any(re.fullmatch(p, n) for p in patterns))
    folders = {n.rpartition("/")[0] for n in found}
    if len(folders) > 1:
        raise CorpusError(
            f"several configurations have a split {split!r} ({', '.join(sorted(folders))}): "
            "choose with --dataset-config"
        )
    return found


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

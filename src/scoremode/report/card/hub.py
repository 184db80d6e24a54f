"""A card's pull request on the hub: what is there now, what would change, and the request."""

import difflib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from scoremode.errors import ScoremodeError, UsageError, escaped, words_of
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.report.card.files import README
from scoremode.text.hub_client import asked

__all__ = ["address", "changes", "check_repo", "open_request", "remote_readme"]


def check_repo(repo: str) -> None:
    """Raises UsageError for what is no name of a repository."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UsageError(f"{repo}: {words_of(error, named=False)}") from None


def address(repo: str, path: str) -> str:
    """Where a file of a model's repository can be read."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}/blob/main/{path}"


def remote_readme(repo: str) -> tuple[str, str]:
    """The README in a model's repository, "" where it has none, and the commit it is of.

    Raises ScoremodeError.
    """
    from huggingface_hub import HfApi, hf_hub_download

    try:
        info = asked(partial(HfApi().model_info, repo))
        if not isinstance(info.sha, str):
            raise ScoremodeError(f"{repo}: the hub names no commit of it")
        if README not in [file.rfilename for file in info.siblings or ()]:
            return "", info.sha
        path = asked(partial(hf_hub_download, repo, README, revision=info.sha))
        return read_regular(Path(path), MOST_JSON).decode(), info.sha
    except UnicodeDecodeError:
        raise ScoremodeError(f"{repo}: its {README} is not UTF-8") from None
    except OSError as error:
        raise ScoremodeError(f"{repo}: can't be read on the hub: {words_of(error, 300)}") from None


def changes(files: Mapping[str, str], readme: str) -> str:
    """What would be sent, for a terminal: the README's change, and other files as they are; of a
    record its size."""
    shown = []
    for path, text in files.items():
        shown.append(f"--- {path} ({len(text.encode()):,} bytes)")
        if path == README:
            both = (readme.splitlines(), text.splitlines())
            lines = list(difflib.unified_diff(*both, lineterm="", n=1))[2:]
        else:
            lines = [] if path.endswith(".json") else text.splitlines()
        shown += [escaped(line) for line in lines]
    return "\n".join(shown)


def open_request(repo: str, files: Mapping[str, str], commit: str, title: str) -> str:
    """Opens a pull request with `files` on a model's repository, on top of `commit`; its address.

    Raises ScoremodeError.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [
        CommitOperationAdd(path_in_repo=path, path_or_fileobj=text.encode())
        for path, text in files.items()
    ]
    call: Any = partial(
        HfApi().create_commit,
        repo_id=repo,
        operations=operations,
        commit_message=title,
        create_pr=True,
        parent_commit=commit,
    )
    try:
        # Once: a request that came through without an answer would be there twice.
        made = asked(call, most=1)
    except OSError as error:
        reason = words_of(error, 300)
        raise ScoremodeError(f"{repo}: no pull request was opened: {reason}") from None
    if not made.pr_url:
        raise ScoremodeError(f"{repo}: has all of this already; no pull request was opened")
    return made.pr_url

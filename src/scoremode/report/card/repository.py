"""The files of a model's repository that a card is: in a folder, or by a pull request on the hub.

The README gets our block and our metadata; all else in it stays as it was, to the byte.
"""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scoremode.errors import RunFolderError, ScoremodeError, UsageError, escaped, words_of
from scoremode.lib.files import MOST_JSON, make_folder, read_regular, write_text
from scoremode.lib.hub import find_revision, hub_call
from scoremode.report.card.content import (
    BEGIN,
    END,
    TOOL,
    Group,
    card_block,
    entry_files,
    model_index,
    results_of,
)
from scoremode.results.folders.paths import check_folder
from scoremode.results.folders.store import RECORD

_FRONT = re.compile(r"\A\ufeff?\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_KEY = "model-index"
README = "README.md"


def with_block(text: str, block: str, name: str) -> str:
    """README `text` with `block` in the place of an earlier one, or at its end.

    Raises UsageError, which calls the file `name`, for markers that are not one pair.
    """
    begins, ends = text.count(BEGIN), text.count(END)
    block = block.rstrip("\n")
    if "\r\n" in text:
        block = block.replace("\n", "\r\n")
    if not begins and not ends:
        line = "\r\n" if "\r\n" in text else "\n"
        before = text.rstrip("\r\n")
        return f"{before}{line * 2 if before else ''}{block}{line}"
    at, until = text.find(BEGIN), text.find(END)
    if (begins, ends) != (1, 1) or until < at:
        raise UsageError(
            f"{name}: has {begins} of {BEGIN} and {ends} of {END}, not one pair of them"
        )
    return text[:at] + block + text[until + len(END) :]


def with_model_index(text: str, index: Sequence[Mapping[str, Any]], name: str) -> str:
    """README `text` whose front matter has the results of `index` in its `model-index`, beside those of
    others; earlier ones of ours are gone. Nothing else in it is touched.

    Raises UsageError for front matter that is not what the hub takes.
    """
    import yaml
    from huggingface_hub.utils import yaml_dump

    found = _FRONT.match(text)
    front = found[1] if found else ""
    line = "\r\n" if "\r\n" in text else "\n"
    try:
        old = yaml.safe_load(front) or {}
        node = yaml.compose(front)
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: its front matter is no YAML: {words_of(error)}") from None
    if not isinstance(old, dict):
        raise UsageError(f"{name}: its front matter is {type(old).__name__}, not names with values")
    merged = _merged(old.get(_KEY), index, name)
    made = yaml_dump({_KEY: merged}, sort_keys=False).rstrip("\n").replace("\n", line) + line
    lines = front.splitlines(keepends=True)
    begin, end = _place(node, len(lines))
    whole = "".join([*lines[:begin], made, *lines[end:]])
    _check_rest(old, whole, name)
    if found is None:
        return f"---{line}{whole}---{line}{line}{text}"
    return text[: found.start(1)] + whole + text[found.end(1) :]


def _place(node: Any, count: int) -> tuple[int, int]:
    """The lines of the front matter that `model-index` takes; behind all others where there is none."""
    for key, value in [] if node is None else node.value:
        if key.value == _KEY:
            return key.start_mark.line, _last_line(value) + 1
    return count, count


def _last_line(node: Any) -> int:
    """The last line that a node has something on. A list's own end is where the next name begins, with
    all comments before it."""
    inside = [] if isinstance(node.value, str) else node.value
    nodes = [one for each in inside for one in (each if isinstance(each, tuple) else (each,))]
    if nodes and not node.flow_style:
        return max(map(_last_line, nodes))
    # A block of text ends where the next line begins.
    return node.end_mark.line - (node.end_mark.column == 0)


def _check_rest(old: Mapping[str, Any], front: str, name: str) -> None:
    """Raises UsageError unless front matter says what `old` said but for our part."""
    import yaml

    try:
        new = yaml.safe_load(front)
    except yaml.YAMLError:
        new = None
    rest = {key: value for key, value in old.items() if key != _KEY}
    if not isinstance(new, dict) or {k: v for k, v in new.items() if k != _KEY} != rest:
        raise UsageError(
            f"{name}: its front matter is written so that a {_KEY} can't be put into it: give each "
            "name a line of its own"
        )


def _merged(old: Any, index: Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The results that others have put there, then ours, under the name that is there."""
    (ours,) = index
    if old is None:
        return [dict(ours)]
    try:
        entries = [{**entry, "results": list(entry["results"])} for entry in old]
        for entry in entries:
            entry["results"] = [kept for r in entry["results"] if (kept := _others(r)) is not None]
    except (TypeError, KeyError, AttributeError):
        raise UsageError(f"{name}: its {_KEY} is not as the hub has it") from None
    if not entries:
        return [dict(ours)]
    entries[0]["results"] += ours["results"]
    return [entry for entry in entries if entry["results"]]


def _others(result: dict[str, Any]) -> dict[str, Any] | None:
    """A result without metrics of ours; None where it had no others."""
    kept = [metric for metric in result["metrics"] if not _is_ours(metric)]
    return {**result, "metrics": kept} if kept else None


def _is_ours(metric: Mapping[str, Any]) -> bool:
    arguments = metric.get("args")
    tool = arguments.get("tool") if isinstance(arguments, dict) else None
    return isinstance(tool, str) and tool.startswith(f"{TOOL} ")


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


def address(repo: str, path: str) -> str:
    """The address of a file in a model's repository."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}/blob/main/{path}"


def remote_readme(repo: str) -> tuple[str, str]:
    """The README in a model's repository, "" where it has none, and the commit it is of.

    Raises ScoremodeError.
    """
    from huggingface_hub import hf_hub_download

    try:
        repository = find_revision(repo, None)
        if repository.unreachable is not None:
            raise repository.unreachable
        if README not in repository.files:
            return "", repository.commit
        path = hub_call(partial(hf_hub_download, repo, README, revision=repository.commit))
        return read_regular(Path(path), MOST_JSON).decode(), repository.commit
    except UnicodeDecodeError:
        raise ScoremodeError(f"{repo}: its {README} is not UTF-8") from None
    except OSError as error:
        raise ScoremodeError(f"{repo}: can't be read on the hub: {words_of(error, 300)}") from None


def changes(files: Mapping[str, str], readme: str) -> str:
    """The changes that a request would make, for a terminal: the README's difference, other files
    as they are, and of a record its size."""
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
        made = hub_call(call, most=1)
    except OSError as error:
        reason = words_of(error, 300)
        raise ScoremodeError(f"{repo}: no pull request was opened: {reason}") from None
    if not made.pr_url:
        raise ScoremodeError(f"{repo}: has all of this already; no pull request was opened")
    return made.pr_url

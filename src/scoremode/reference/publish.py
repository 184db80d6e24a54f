"""References for others: one is put into a data set's repository of its own, and indexes list many.

An index is a JSON file that anybody can host: what a reference is of, and its address.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from scoremode.errors import ReferenceUnusable, ScoremodeError, UsageError, words_of
from scoremode.lib import https
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.lib.hub import downloaded, find_revision, hub_call, on_hub
from scoremode.reference.address import repository_of
from scoremode.results.folders.store import HEAD, RECORD, SCORES, TOKENS

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference

__all__ = ["Entry", "Index", "check_new", "contents", "entry_of", "push", "read_index"]

INDEX = "references.json"
# What the hub puts into a new repository.
_OWN = {".gitattributes"}
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A reference in an index.

    - `address`: what `--reference` takes, of the hub at a commit; `sha256`: of all that makes its
      numbers; `bytes`: of its states and head.
    - `base`: the source of its model, `fingerprint` of its config and headers.
    - `text`, `protocol`: their names; `text_sha256`, `plan_sha256`; `windows` and `scored` targets.
    - `engine`, `dtype`: that computed it.
    """

    address: str
    sha256: _Sha256
    bytes: _Count
    base: str
    fingerprint: _Sha256
    text: str
    text_sha256: _Sha256
    protocol: str
    plan_sha256: _Sha256
    windows: _Count
    scored: _Count
    engine: str
    dtype: str

    def is_of(self, name: str) -> bool:
        """Tells whether its base is the hub's model of that name, with or without the owner."""
        own = (on_hub(self.base) or (self.base, ""))[0].rstrip("/").casefold()
        return name.casefold() in (own, own.rpartition("/")[2])


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """A list of references."""

    schema: Literal["scoremode.references"]
    schema_version: Literal[1]
    references: list[Entry]


def entry_of(stored: "StoredReference") -> Entry:
    """What an index says of a reference that was found by its address."""
    record = stored.record
    return Entry(
        address=stored.source,
        sha256=stored.sha256,
        bytes=sum(map(stored.bytes_of, stored.files_of(record.plan.scored))) + stored.head_bytes,
        base=record.checkpoint.source,
        fingerprint=record.checkpoint.fingerprint,
        text=record.corpus.name,
        text_sha256=record.corpus.text.sha256,
        protocol=record.protocol.name,
        plan_sha256=record.plan.sha256,
        windows=record.plan.windows,
        scored=record.plan.scored,
        engine=record.document["engine"]["engine"],
        dtype=record.engine.dtype,
    )


def read_index(place: str) -> Index:
    """The index in a file, at an https address, or, of `hub:ORG/NAME@REV`, the file references.json of
    that data set's repository. Raises UsageError, ReferenceUnusable."""
    try:
        if place.startswith("hub:"):
            from huggingface_hub import hf_hub_download

            repo, revision = repository_of(place)
            call = partial(hf_hub_download, repo, INDEX, repo_type="dataset", revision=revision)
            data = read_regular(downloaded(call), MOST_JSON)
        elif place.startswith("https://"):
            data = https.read(https.checked(place), MOST_JSON)
        else:
            data = read_regular(Path(place), MOST_JSON)
        return msgspec.json.decode(data, type=Index)
    except OSError as error:
        reason = words_of(error, named=False)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = f"is no index of references: {words_of(error, named=False)}"
    raise ReferenceUnusable(f"{place}: {reason}")


def check_new(address: str) -> None:
    """Raises UsageError, ReferenceUnusable unless a reference may be put at `hub:ORG/NAME`: nothing is
    there yet."""
    from huggingface_hub.errors import RepositoryNotFoundError

    repo, revision = repository_of(address)
    if revision is not None:
        raise UsageError(f"--push {address}: a new reference has no revision yet: give hub:{repo}")
    try:
        there = find_revision(repo, None, "dataset")
        if there.unreachable is not None:
            raise there.unreachable
    except OSError as error:
        if isinstance(error.__cause__, RepositoryNotFoundError):
            return
        raise ReferenceUnusable(f"{address}: {words_of(error, named=False)}") from None
    if names := sorted(set(there.files) - _OWN):
        what = "a reference" if RECORD in names else names[0]
        raise ReferenceUnusable(
            f"{address}: has {what} already, and nothing is written over: give another name"
        )


def contents(
    stored: "StoredReference", address: str, license_: str, command: Sequence[str]
) -> dict[str, Path | bytes]:
    """Path in the repository → the file or the bytes of it, of all that a reference is there.

    `license_`: of the card's field; `command`: the words that keep the same reference. Reads all
    files. Raises ReferenceUnusable for one that nobody could fetch, or that is damaged.
    """
    where = stored.place_of_head
    if where is not None and not (on_hub(where.source) or ("", ""))[1]:
        raise ReferenceUnusable(
            f"{stored.path}: its head was left in {where.source}, where nobody finds it: keep it with "
            "--head stored"
        )
    stored.check_files()
    kept = stored.record.document["kept"]
    names = [RECORD, SCORES, *(f["name"] for f in kept["states"]["files"])]
    names += [TOKENS] * ("tokens" in kept) + [HEAD] * (where is None)
    card = _card(stored, address, license_, command).encode()
    return {"README.md": card, **{name: stored.path / name for name in names}}


def push(address: str, files: Mapping[str, Path | bytes]) -> str:
    """Makes a data set's repository of the files, in one commit; its address at that. Raises
    ReferenceUnusable where anything is there, ScoremodeError."""
    from huggingface_hub import CommitOperationAdd, HfApi

    repo, api = repository_of(address)[0], HfApi()
    operations = [
        CommitOperationAdd(name, file if isinstance(file, bytes) else str(file))
        for name, file in files.items()
    ]
    commit: Any = partial(
        api.create_commit,
        repo,
        operations,
        commit_message="A reference, kept with scoremode",
        repo_type="dataset",
    )
    try:
        hub_call(partial(api.create_repo, repo, repo_type="dataset", exist_ok=True))
        # Another may have come since it was asked.
        check_new(address)
        # Whose commit theirs must follow, or it is refused.
        parent = find_revision(repo, None, "dataset").commit
        made = hub_call(partial(commit, parent_commit=parent), most=1)
    except OSError as error:
        raise ScoremodeError(f"{address}: was not sent: {words_of(error, named=False)}") from None
    return f"hub:{repo}@{made.oid}"


def _card(stored: "StoredReference", address: str, license_: str, command: Sequence[str]) -> str:
    """The README of a reference's repository."""
    from huggingface_hub.utils import yaml_dump

    record, base = stored.record, on_hub(stored.record.checkpoint.source)
    name = base[0] if base else Path(record.checkpoint.source).name
    front = {"license": license_, "tags": ["scoremode", "perplexity", "kl-divergence"]}
    front["configs"] = [{"config_name": "scores", "data_files": SCORES}]
    plan, ppl = record.plan, record.document["metrics"]["ppl"]["value"]
    return (
        f"---\n{yaml_dump(front, sort_keys=False)}---\n\n# Predictions of {name}\n\n"
        f"Every prediction of {name} ({record.engine.dtype}, {record.document['engine']['engine']}) of "
        f"{record.corpus.name}, kept as final hidden states: {plan.windows:,} windows of protocol "
        f"{record.protocol.name}, {plan.scored:,} targets, perplexity {ppl:.4f}. A quantized model is "
        "compared with it without the base's weights:\n\n"
        f"```\nscoremode kld MODEL --reference {address}\n```\n\nIt was kept with\n\n"
        f"```\n{shlex.join(command)}\n```\n\n"
        f"Plan `{plan.sha256[:12]}`, reference `{stored.sha256[:12]}`. `record.json` has "
        "the sha256 of every file of the model, of the text and of the reference.\n"
    )

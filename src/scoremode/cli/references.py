"""`scoremode references`: kept references of others, found in an index; and what `reference --push`
asks before it makes one of ours theirs."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, Found
from scoremode.cli.screen import Session
from scoremode.cli.text import base_of
from scoremode.errors import ReferenceUnusable, UsageError
from scoremode.lib.hub import is_address
from scoremode.spec.flag import Flags, Group, Name, Switch
from scoremode.spec.run import OUTPUT, Form, Quiet

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference
    from scoremode.report.document import Document
    from scoremode.results.record.definition import Done

__all__ = ["Push", "References", "pushed"]


class Push(
    Flags,
    part="output",
    group=Group("publishing", "with a finished reference as BASE, nothing is run"),
):
    push = Name(
        "put the reference into a new data set's repository on the hub, hub:ORG/NAME, after asking",
        "ADDRESS",
    )
    license = Name(
        "with --push: the license that its card names, such as apache-2.0; base and text decide "
        "which you may give",
        "NAME",
    )
    yes = Switch("with --push: don't ask", switch=True)

    def check_push(self) -> None:
        """Raises UsageError, ReferenceUnusable where it would come to nothing, before anything runs."""
        if self.push is None:
            for name in ("license", "yes"):
                if value := getattr(self, name):
                    shown = "" if value is True else f" {value}"
                    raise UsageError(f"--{name}{shown}: needs --push hub:ORG/NAME")
            return
        if self.license is None:
            raise UsageError(f"--push {self.push}: needs --license NAME, which its card names")
        if not self.yes and not sys.stdin.isatty():
            raise UsageError(f"--push {self.push}: there is no terminal to ask on: give --yes")
        from scoremode.reference.publish import check_new

        check_new(self.push)


def pushed(spec: Push, stored: "StoredReference", session: Session) -> int:
    """Asks, and puts a reference where `--push` says; the exit code. Raises ScoremodeError."""
    assert spec.push is not None and spec.license is not None
    from scoremode.reference.publish import contents, push

    session.screen.stage(f"reading {stored.path}")
    files = contents(stored, spec.push, spec.license, _command(stored.record))
    session.screen.clear()
    size = sum(len(f) if isinstance(f, bytes) else f.stat().st_size for f in files.values())
    card = files["README.md"]
    assert isinstance(card, bytes)
    print(card.decode())
    if not spec.yes:
        session.screen.line(
            "a record has the command line, the paths of the machine, and a few words of the text"
        )
        asked = f"Publish these {len(files)} files, {size / 1e9:.3g} GB, as {spec.push}?"
        if not session.agrees(asked):
            return 1
    session.screen.stage(f"sending {size / 1e9:.3g} GB to {spec.push}")
    address = push(spec.push, files)
    session.screen.clear()
    print(address)
    session.screen.line(f"its entry in an index: scoremode references entry {address}")
    return 0


def _command(record: "Done") -> list[str]:
    # Here, since it is made of this module's flags.
    from scoremode.cli.card import reproduction

    program, _, *words = reproduction(record)
    return [program, "reference", *words, "-o", "reference"]


class References(Command):
    called = "references"
    usage = "scoremode references {search MODEL --index INDEX | entry ADDRESS}"
    summary = "find references that others keep of a base"
    about = (
        "Lists the references of a base in an index, a JSON file that anybody can host; their "
        "addresses are what --reference takes. Prints the entry of a reference for an index."
    )
    examples = (
        "scoremode references search org/model --index hub:org/references",
        "scoremode references entry hub:org/reference",
    )
    action = Name(
        "search: for MODEL, a hub id or a model's folder, whose files must be the base's; entry: of "
        "the reference at ADDRESS",
        "ACTION",
        positional=True,
    )
    what = Name("what to search for, or to make an entry of", "MODEL", positional=True)
    index = Name("search in this file, also at hub:ORG/NAME or https://…", "INDEX")
    form = Form("the entries", OUTPUT)
    quiet = Quiet.quiet

    def found(self, session: Session) -> Found:
        assert self.what is not None
        if self.action not in ("search", "entry"):
            raise UsageError(f"references {self.action}: give search MODEL, or entry ADDRESS")
        if self.action == "entry":
            return Found(_entry(self.what, self.index, session), _document)
        if self.index is None:
            raise UsageError("references search: give --index, a file, hub:ORG/NAME or https://…")
        from scoremode.reference.publish import read_index

        is_address(self.index)
        session.screen.stage(f"reading {self.index}")
        references = read_index(self.index).references
        if Path(self.what).exists():
            from scoremode.checkpoint.files import open_checkpoint

            fingerprint = open_checkpoint(self.what).fingerprint
            found = [entry for entry in references if entry.fingerprint == fingerprint]
        else:
            found = [entry for entry in references if entry.is_of(self.what)]
        if not found:
            raise ReferenceUnusable(
                f"{self.index}: has no reference of {self.what} among its {len(references)}"
            )
        import msgspec

        return Found(msgspec.to_builtins(found), _document)


def _entry(address: str, index: str | None, session: Session) -> list[dict[str, Any]]:
    if index is not None:
        raise UsageError(f"--index {index}: changes nothing with references entry")
    if not is_address(address):
        raise UsageError(f"{address}: is no address: give hub:ORG/NAME@REV or https://…")
    import msgspec

    from scoremode.reference.publish import entry_of
    from scoremode.reference.stored import StoredReference

    folder = base_of(address, session)
    assert folder is not None
    return [msgspec.to_builtins(entry_of(StoredReference(Path(folder))))]


def _document(entries: Sequence[Mapping[str, Any]]) -> "Document":
    """A row for each entry."""
    from scoremode.report.document import Column, Document, Table, number

    columns = (
        Column("address", "address", importance=9),
        Column("base", "base"),
        Column("text", "text"),
        Column("protocol", "protocol"),
        number("targets", "scored", ","),
        Column("dtype", "dtype"),
        Column("engine", "engine"),
        Column("GB", "bytes", lambda count: f"{count / 1e9:.3g}"),
    )
    rows = tuple(tuple(entry[column.key or ""] for column in columns) for entry in entries)
    table = Table(columns, rows)
    return Document((table,), table)

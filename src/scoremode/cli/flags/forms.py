"""The forms in which a command prints its result: a table, Markdown, CSV, JSON."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scoremode.lib.json import print_json

if TYPE_CHECKING:
    from scoremode.cli.flags.arguments import Group
    from scoremode.report.document import Document

__all__ = ["FORMS", "add_form", "print_result", "rendered"]

FORMS = ("table", "markdown", "csv", "json")


class _Form(argparse.Action):
    """Stores a form, and refuses a second one: of two only one could be printed."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        form, chosen = self.const or values, getattr(namespace, "chosen_form", None)
        if chosen not in (None, form):
            raise argparse.ArgumentError(self, f"the result is printed as {chosen} or as {form}")
        namespace.chosen_form = namespace.form = form


def add_form(group: "argparse.ArgumentParser | Group", what: str) -> None:
    """`--format`, and `--json`, which is one of its values; `what` is printed as JSON."""
    group.add_argument(
        "--format",
        action=_Form,
        choices=FORMS,
        default="table",
        dest="form",
        help=f"how to print the result (default: table); json: {what}",
    )
    group.add_argument("--json", action=_Form, nargs=0, const="json", dest="form",
                       default="table", help="the same as --format json")  # fmt: skip


def rendered(document: "Document", form: str) -> str:
    """A document as a table, Markdown or CSV, with one newline at its end."""
    if form == "csv":
        from scoremode.report.rendering import table_csv

        return table_csv(document.data)
    if form == "markdown":
        from scoremode.report.rendering import document_markdown

        return document_markdown(document) + "\n"
    from scoremode.report.rendering import document_text

    return document_text(document) + "\n"


def print_result(
    args: argparse.Namespace, value: Any, document: "Callable[[Any], Document]"
) -> None:
    """Prints a command's result in place of the screen, in the form that was asked for."""
    args.screen.clear()
    if args.form == "json":
        print_json(value)
    elif not getattr(args, "quiet", False):
        print(rendered(document(value), args.form), end="")

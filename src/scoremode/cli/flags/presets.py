"""The flags of named texts."""

import argparse
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.conversations import conversation_fields
from scoremode.cli.flags.parser import Once

if TYPE_CHECKING:
    from scoremode.cli.flags.arguments import Group
    from scoremode.text.corpus import Corpus

__all__ = ["add_presets", "are_chats", "preset_of"]


class _List(argparse.Action):
    """Prints the texts that have names, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from scoremode.text.presets import TEXTS

        width = max(map(len, TEXTS))
        for text in TEXTS.values():
            print(f"{text.name:{width}}  {text.what}")
            print(f"{'':{width}}  {text.repo}@{text.revision[:12]}, {text.licence}")
        parser.exit()


def add_presets(group: "Group") -> None:
    group.add_argument(
        "--preset",
        action=Once,
        metavar="NAME",
        help="a text by its name, such as c4-gptq, from the hub; with --dataset-file from a local copy",
    )
    group.add_argument(
        "--list-presets", action=_List, nargs=0, help="print these names and what they stand for"
    )


def are_chats(args: argparse.Namespace) -> bool:
    """Tells whether the flags name conversations. Raises UsageError for a name that no text has."""
    if args.preset is None:
        return args.conversations is not None
    from scoremode.text.presets import named_text

    return named_text(args.preset).text_field is None


def preset_of(args: argparse.Namespace) -> "Corpus | None":
    """The named text, None where the flags name none. Raises UsageError, CorpusError."""
    if args.preset is None:
        return None
    from scoremode.text.presets import load_text, named_text

    text = named_text(args.preset)
    how = conversation_fields(args) if text.text_field is None else None
    if args.dataset_file is None:
        args.screen.reads("text", f"data set {text.repo}", from_hub=True)
    return load_text(
        text,
        file=args.dataset_file,
        revision=args.dataset_revision,
        group_by=args.group_by,
        how=how,
    )

"""Flags of texts that are conversations."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.parser import date_of, names_file, object_of
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.text.conversations.corpus import Conversations

__all__ = ["add_conversations", "conversation_fields", "conversations_of"]


def add_conversations(parser: argparse.ArgumentParser) -> None:
    chats = parser.add_argument_group("conversations", "how those of --conversations are scored")
    chats.add_argument(
        "--score",
        choices=("assistant", "completion", "all"),
        help="targets that count: all that the assistant generated, its last turn, or every token "
        "(default: assistant)",
    )
    chats.add_argument(
        "--long",
        choices=("truncate", "split", "skip"),
        help="what becomes of a conversation longer than the context length: its beginning, windows "
        "that each begin half a window before what is new, or nothing (default: truncate)",
    )
    chats.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="a Jinja template in place of the model's, for the base as well",
    )
    chats.add_argument(
        "--chat-template-kwargs",
        type=object_of,
        metavar="JSON",
        help="values for the template, such as '{\"enable_thinking\": false}'",
    )
    chats.add_argument(
        "--chat-date",
        type=date_of,
        metavar="DATE",
        help="the day that a template is told that asks for today's (default: 2025-01-01)",
    )
    chats.add_argument(
        "--skip-bad-rows",
        type=int,
        metavar="N",
        help="leave out up to N rows that are no conversation, that the template refuses or that have "
        "nothing to score, and name them (default: 0)",
    )


def conversations_of(args: argparse.Namespace) -> "Conversations | None":
    """The conversations that the flags name, None where they name none. Raises UsageError,
    CorpusError."""
    if args.conversations is None:
        return None
    how = conversation_fields(args)
    from scoremode.text.conversations.corpus import from_conversations_file, from_conversations_hub

    if names_file(args.conversations):
        return from_conversations_file(Path(args.conversations), **how)
    args.screen.reads("text", f"data set {args.conversations}", from_hub=True)
    return from_conversations_hub(
        args.conversations,
        args.dataset_config,
        split=args.split or "test",
        revision=args.dataset_revision,
        **how,
    )


def conversation_fields(args: argparse.Namespace) -> dict[str, Any]:
    """What the flags say of conversations but which they are. Raises UsageError."""
    if (args.skip_bad_rows or 0) < 0:
        raise UsageError(f"--skip-bad-rows {args.skip_bad_rows}: must be at least 0")
    from scoremode.text.conversations.template import DATE

    return {
        "template": args.chat_template,
        "arguments": args.chat_template_kwargs or {},
        "date": args.chat_date or DATE,
        "group_by": args.group_by,
        "skip_bad_rows": args.skip_bad_rows or 0,
    }

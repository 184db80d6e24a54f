"""Sources of a text, and the flags that each of them uses. A flag that changes nothing is refused."""

import argparse
from collections.abc import Mapping

from scoremode.cli.flags.parser import flag_of, names_file
from scoremode.errors import UsageError

__all__ = ["KEPT", "NAMING", "SOURCES", "named_source", "refuse_unused"]

# Flags that name a text; whoever gives two of them has one text too many, but for a local copy.
NAMING = ("text", "file", "dataset_file", "dataset", "conversations", "preset")
_COPY = {"dataset_file", "preset"}
_HUB = frozenset({"dataset_config", "dataset_revision", "split"})
_ROWS = frozenset({"group_by", "num_samples"})
# The windows of a text; conversations have one each, whose BOS is the template's.
_WINDOWS = frozenset({"bos", "stride"})
_SPOKEN = frozenset({"chat_date", "chat_template", "chat_template_kwargs", "long", "score",
                     "skip_bad_rows"})  # fmt: skip
_DATASET = _HUB | _ROWS | _WINDOWS | {"text_field"}
KEPT = "the text of a kept reference"
# Protocol, context length, limit and vocabulary are of every text, and so not in here.
SOURCES: Mapping[str, frozenset[str]] = {
    "--text": _WINDOWS,
    "-f": _WINDOWS | {"group_by"},
    "--dataset-file": _ROWS | _WINDOWS | {"text_field"},
    "--dataset": _DATASET,
    "the default text, WikiText-2": _DATASET,
    "--conversations FILE": _SPOKEN | _ROWS,
    "--conversations of the hub": _SPOKEN | _ROWS | _HUB,
    "--preset": _ROWS | _WINDOWS | {"dataset_revision"},
    "--preset with --dataset-file": _ROWS | _WINDOWS,
    "--preset of conversations": _SPOKEN | _ROWS | {"dataset_revision"},
    "--preset of conversations with --dataset-file": _SPOKEN | _ROWS,
    # What is said again has to be the same.
    KEPT: _WINDOWS | {"num_samples"},
}


def named_source(args: argparse.Namespace) -> str:
    """The source in SOURCES that the flags name. Raises UsageError for two, and for a preset that there
    isn't."""
    named = [name for name in NAMING if getattr(args, name) is not None]
    if len(named) > 1 and set(named) != _COPY:
        flags = " and ".join("-f" if name == "file" else flag_of(name) for name in named)
        raise UsageError(f"several texts: {flags}")
    if args.preset is not None:
        from scoremode.text.presets import named_text

        spoken = " of conversations" * (named_text(args.preset).text_field is None)
        return f"--preset{spoken}{' with --dataset-file' * (args.dataset_file is not None)}"
    if args.conversations is not None:
        where = "FILE" if names_file(args.conversations) else "of the hub"
        return f"--conversations {where}"
    if not named:
        return "the default text, WikiText-2"
    return "-f" if args.file is not None else flag_of(named[0])


def refuse_unused(
    args: argparse.Namespace,
    source: str,
    uses: Mapping[str, frozenset[str]] = SOURCES,
    what: str | None = None,
) -> None:
    """Raises UsageError for a flag that another source uses and `source` doesn't; `what`: the source as
    the error calls it."""
    for name in sorted(frozenset().union(*uses.values()) - uses[source]):
        if (value := getattr(args, name)) is None:
            continue
        users = [key for key, flags in uses.items() if name in flags and key.startswith("-")]
        flags = list(dict.fromkeys(key.partition(" ")[0] for key in users))
        others = ", ".join(flags if len(flags) > 1 else users)
        shown = flag_of(name) if isinstance(value, dict) else f"{flag_of(name)} {value}"
        raise UsageError(f"{shown}: changes nothing with {what or source}; it is for {others}")

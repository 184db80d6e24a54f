"""Flags of a text and its protocol, in the order of the help texts."""

import argparse
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from scoremode.spec.flag import (
    MOST_USED,
    Flag,
    Flags,
    Group,
    Name,
    Number,
    PathName,
    Place,
    Quantity,
)
from scoremode.spec.values import date_of, object_of, rule_of, tokens_of, whole

__all__ = [
    "CALIBRATIONS",
    "DEFAULT",
    "KEPT",
    "SOURCES",
    "Calibration",
    "Protocol",
    "Seed",
    "Stopping",
    "Text",
]

TEXT = Group("text", "without any, WikiText-2's test split from the hub")
CONVERSATIONS = Group("conversations", "how those of --conversations are scored")
PROTOCOL = Group(
    "protocol", "a flag that changes a preset makes it another protocol, and names it so"
)
STOPPING = Group("an early end", "windows are drawn at random, so that those done stand for all")

# Sources of a text; flags that change nothing with the one that is named are refused.
DEFAULT, KEPT = "the default text, WikiText-2", "the text of a kept reference"
SOURCES = (
    "--text", "-f", "--dataset-file", "--dataset", DEFAULT, "--conversations FILE",
    "--conversations of the hub", "--preset", "--preset with --dataset-file",
    "--preset of conversations", "--preset of conversations with --dataset-file", KEPT,
)  # fmt: skip
_HUB = frozenset({"--dataset", DEFAULT, "--conversations of the hub"})
_FIELDS = frozenset({"--dataset-file", "--dataset", DEFAULT})
_CHATS = frozenset(s for s in SOURCES if "conversations" in s)
# Conversations have one window each, whose BOS is the template's.
_WINDOWS = frozenset(SOURCES) - _CHATS
_ROWS = frozenset(SOURCES) - {"--text", "-f", KEPT}
CALIBRATIONS = (
    "no calibration text", "--calibration TEXT", "--calibration ROWS", "--calibration of the hub"
)  # fmt: skip
_CALIBRATION_HUB = frozenset({"--calibration of the hub"})


class _Presets(argparse.Action):
    """Prints the texts that have names, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from scoremode.text.presets import TEXTS

        width = max(map(len, TEXTS))
        for text in TEXTS.values():
            print(f"{text.name:{width}}  {text.what}")
            print(f"{'':{width}}  {text.repo}@{text.revision[:12]}, {text.licence}")
        parser.exit()


class Text(Flags, part="text", group=TEXT):
    file: Flag[str | Path | Sequence[str | Path] | None, list[Path] | None] = Flag(
        "a text file, taken as it is; given again: one text of all, in their order; a folder: its "
        "files, by name; -: standard input",
        "FILE",
        read=Path,
        also=("-f",),
        repeats=True,
        path="file",
        group=MOST_USED,
    )
    conversations: Place = Flag(
        "chats in a .jsonl or .parquet file, or of the hub: messages, ShareGPT's conversations, or "
        "prompt and completion; by the model's chat template, under the protocol chat",
        "CHATS",
        once=True,
        path="file or hub",
        group=MOST_USED,
    )
    preset: Name = Flag(
        "a text by its name, such as c4-gptq, from the hub; with --dataset-file from a local copy",
        "NAME",
        once=True,
    )
    list_presets = Flag[None, None](
        "print these names and what they stand for", action=_Presets, nargs=0, in_sweep=False
    )
    text: Name = Flag("a text, on the command line", "TEXT", once=True, longest=1000)
    dataset: Name = Flag("a data set on the hub (default: wikitext)", "NAME", once=True)
    dataset_file: PathName = Flag(
        "a data set on this machine: .jsonl, .parquet or wiki.test.raw",
        "FILE",
        read=Path,
        once=True,
        path="file",
    )
    dataset_config: Name = Flag(
        "configuration of the hub data set (default for wikitext: wikitext-2-raw-v1)",
        "NAME",
        sources=_HUB,
    )
    dataset_revision: Name = Flag(
        "branch, tag or commit of the hub data set",
        "REV",
        sources=_HUB | {"--preset", "--preset of conversations"},
    )
    split: Name = Flag("split of the hub data set (default: test)", "NAME", sources=_HUB)
    text_field: Name = Flag(
        "column or field of a data set that holds the text (default: text)", "NAME", sources=_FIELDS
    )
    group_by: Name = Flag(
        "column or field of a data set or of conversations that names each row's group, such as "
        "domain: a line of the table each; file: texts of -f, each by itself, labelled by its name",
        "FIELD",
        sources=_ROWS | {"-f"},
    )
    num_samples: Number = Flag(
        "take only N rows of the data set: the first ones, or those that --seed draws",
        "N",
        read=whole,
        sources=_ROWS | {KEPT},
    )
    score: Flag[Literal["assistant", "completion", "all"] | None, str | None] = Flag(
        "targets that count: all that the assistant generated, its last turn, or every token "
        "(default: assistant)",
        choices=("assistant", "completion", "all"),
        part="protocol",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    long: Flag[Literal["truncate", "split", "skip"] | None, str | None] = Flag(
        "what becomes of a conversation longer than the context length: its beginning, windows that "
        "each begin half a window before what is new, or nothing (default: truncate)",
        choices=("truncate", "split", "skip"),
        part="protocol",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_template: PathName = Flag(
        "a Jinja template in place of the model's, for the base as well",
        "FILE",
        read=Path,
        path="file",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_template_kwargs: Flag[Mapping[str, Any] | str | None, dict[str, Any] | None] = Flag(
        "values for the template, such as '{\"enable_thinking\": false}'",
        "JSON",
        read=object_of,
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_date: Flag[datetime.date | str | None, datetime.date | None] = Flag(
        "the day that a template is told that asks for today's (default: 2025-01-01)",
        "DATE",
        read=date_of,
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    skip_bad_rows: Number = Flag(
        "leave out up to N rows that are no conversation, that the template refuses or that have "
        "nothing to score, and name them (default: 0)",
        "N",
        read=whole,
        sources=_CHATS,
        group=CONVERSATIONS,
    )


class Protocol(Text, part="protocol", group=PROTOCOL):
    """A text under a protocol."""

    protocol: Name = Flag(
        "score-mode (default), score-mode-nonblank, exl3, exl3-s512, exl3-compare-q, exl3-qbench, "
        "gptq, llama.cpp, disjoint, strided, hf-strided, lm-eval, chat",
        "NAME",
        group=MOST_USED,
    )
    context_length: Quantity = Flag(
        "tokens of a window, such as 32k (default: the protocol's)",
        "L",
        read=tokens_of,
        also=("-c",),
        group=MOST_USED,
    )
    stride: Quantity = Flag(
        "tokens between the starts of windows (default: the protocol's)",
        "S",
        read=tokens_of,
        sources=_WINDOWS,
    )
    limit: Number = Flag("score only the first W windows", "W", read=whole, also=("--chunks",))
    bos: Flag[Literal["auto", "always", "never"] | None, str | None] = Flag(
        "whether a BOS token stands in front; auto: as the tokenizer has it (default: the protocol's)",
        choices=("auto", "always", "never"),
        sources=_WINDOWS,
    )
    vocabulary: Flag[Literal["config", "tokenizer", "head"] | None, str | None] = Flag(
        "entries that the softmax runs over: the config's vocab_size, the tokenizer's, or the whole "
        "head's (default: the protocol's)",
        choices=("config", "tokenizer", "head"),
    )


class Calibration(Flags, part="output", group=Group("held out?")):
    calibration: Place = Flag(
        "what the model was calibrated on: a text file, texts or chats in .jsonl or .parquet, or a "
        "data set of the hub; how much of the scored text is in it is noted",
        "TEXT",
        once=True,
        path="file or hub",
    )
    calibration_config: Name = Flag(
        "configuration of that hub data set", "NAME", sources=_CALIBRATION_HUB
    )
    calibration_revision: Name = Flag(
        "branch, tag or commit of it (default: main)", "REV", sources=_CALIBRATION_HUB
    )
    calibration_split: Name = Flag("split of it (default: train)", "NAME", sources=_CALIBRATION_HUB)
    calibration_field: Name = Flag(
        "column or field of its rows that holds the text, where they are no chats (default: text)",
        "NAME",
        sources=_CALIBRATION_HUB | {"--calibration ROWS"},
    )


class Seed(Flags, part="text"):
    seed: Number = Flag(
        "seed that draws the rows of --num-samples, in place of the first ones", "N", read=whole
    )


class Stopping(Flags, part="output", group=STOPPING):
    stop_when: Name = Flag(
        "end when the 95 %% interval of what all windows would give is this narrow: 'ppl ±0.5 %%', "
        "'ppl ±0.05', 'kld ±2 %%', 'kld ±0.001' (+- stands for ±)",
        "RULE",
        read=rule_of,
    )
    seed: Number = Seed.seed.but(
        help=f"{Seed.seed.help}; with --stop-when of the order of its windows (default there: 0)"
    )

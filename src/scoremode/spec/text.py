"""Flags of a text and its protocol, in the order of the help texts."""

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from scoremode.spec.flag import (
    Flag,
    Flags,
    Group,
    Name,
    Number,
    PathName,
    Place,
    Prints,
    Quantity,
)
from scoremode.spec.values import date_of, object_of, rule_of, tokens_of, whole

if TYPE_CHECKING:
    import datetime

__all__ = [
    "CALIBRATIONS",
    "DEFAULT",
    "KEPT",
    "SOURCES",
    "Calibration",
    "Day",
    "Protocol",
    "Seed",
    "Stopping",
    "Text",
    "Values",
]

# An object in JSON, and a day.
Values = Flag[Mapping[str, Any] | str | None, dict[str, Any] | None]
Day: TypeAlias = "Flag[datetime.date | str | None, datetime.date | None]"
TEXT = Group("text")
CONVERSATIONS = Group("conversations", "scored turns, long chats and the chat template")
PROTOCOL = Group(
    "protocol", "overriding a preset changes the protocol's recorded name, such as exl3+stride=1024"
)
STOPPING = Group(
    "early stopping", "windows are scored in random order, so those finished are a random sample"
)

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


def names_file(name: str) -> bool:
    """Tells whether `name` is a file's, here or not, rather than a data set's on the hub."""
    if os.path.exists(name):  # noqa: PTH110  Path.exists raises for a name too long
        return True
    # OpenHermes-2.5 ends with no suffix but with a version.
    suffix = Path(name).suffix
    return name.startswith((".", "/", "~")) or bool(suffix and not suffix[1:2].isdigit())


class _Presets(Prints):
    """Prints the texts that have names."""

    def text(self, parser: argparse.ArgumentParser, values: Any) -> str:
        from scoremode.text.presets import TEXTS

        width = max(map(len, TEXTS))
        return "".join(
            f"{text.name:{width}}  {text.what}\n"
            f"{'':{width}}  {text.repo}@{text.revision[:12]}, {text.licence}\n"
            for text in TEXTS.values()
        )


class Text(Flags, part="text", group=TEXT):
    file: Flag[str | Path | Sequence[str | Path] | None, list[Path] | None] = Flag(
        "score a text file as is (default: WikiText-2's test split, from the hub); repeat to join "
        "files in order; a folder: its files, by name; -: standard input",
        "FILE",
        read=Path,
        also=("-f",),
        repeats=True,
        path="file",
        common=True,
    )
    conversations: Place = Flag(
        "score chats from a .jsonl or .parquet file or the hub (messages, ShareGPT's conversations, "
        "or prompt and completion) by the model's chat template, under protocol chat",
        "CHATS",
        once=True,
        path="file or hub",
        group=CONVERSATIONS,
        common=True,
    )
    preset: Name = Flag(
        "score a predefined text, such as c4-gptq, from the hub, or from a local copy with "
        "--dataset-file",
        "NAME",
        once=True,
    )
    list_presets = Flag[None, None](
        "list the predefined texts and exit", action=_Presets, nargs=0, in_sweep=False
    )
    text: Name = Flag("score this text", "TEXT", once=True, longest=1000)
    dataset: Name = Flag("score a data set on the hub (default: wikitext)", "NAME", once=True)
    dataset_file: PathName = Flag(
        "score a data set on this machine: .jsonl, .parquet or wiki.test.raw",
        "FILE",
        read=Path,
        once=True,
        path="file",
        common=True,
    )
    dataset_config: Name = Flag(
        "use this configuration of the hub data set (default for wikitext: wikitext-2-raw-v1)",
        "NAME",
        sources=_HUB,
    )
    dataset_revision: Name = Flag(
        "use this branch, tag or commit of the hub data set",
        "REV",
        sources=_HUB | {"--preset", "--preset of conversations"},
    )
    split: Name = Flag("use this split of the hub data set (default: test)", "NAME", sources=_HUB)
    text_field: Name = Flag(
        "read the text from this column or field of a data set (default: text)",
        "NAME",
        sources=_FIELDS,
    )
    group_by: Name = Flag(
        "report each group of rows separately, by this column or field of a data set or of chats, "
        "such as domain; span: the reasoning, tool names, tool arguments, answers and code of chats; "
        "file: score each file of -f by itself, labeled by its name",
        "FIELD",
        sources=_ROWS | {"-f"},
    )
    num_samples: Number = Flag(
        "use only N rows of the data set: the first ones, or a random draw with --seed",
        "N",
        read=whole,
        sources=_ROWS | {KEPT},
    )
    score: Flag[Literal["assistant", "completion", "all"] | None, str | None] = Flag(
        "score what the assistant generated, only its last turn (completion), or every token "
        "(default: assistant)",
        choices=("assistant", "completion", "all"),
        part="protocol",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    long: Flag[Literal["truncate", "split", "skip"] | None, str | None] = Flag(
        "truncate conversations longer than the context (keep the beginning), split them "
        "(into windows that overlap by half) or skip them (default: truncate)",
        choices=("truncate", "split", "skip"),
        part="protocol",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_template: PathName = Flag(
        "use a Jinja template in place of the model's, for the base as well",
        "FILE",
        read=Path,
        path="file",
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_template_kwargs: Values = Flag(
        "pass these values to the template, such as '{\"enable_thinking\": false}'",
        "JSON",
        read=object_of,
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    chat_date: Day = Flag(
        "pass this date to chat templates that ask for today's date (default: 2025-01-01)",
        "DATE",
        read=date_of,
        sources=_CHATS,
        group=CONVERSATIONS,
    )
    skip_bad_rows: Number = Flag(
        "skip and list up to N rows that aren't conversations, that the template rejects, or "
        "that have nothing to score (default: 0)",
        "N",
        read=whole,
        sources=_CHATS,
        group=CONVERSATIONS,
    )


class Protocol(Text, part="protocol", group=PROTOCOL):
    """A text under a protocol."""

    protocol: Name = Flag(
        "use this protocol: score-mode (default), score-mode-nonblank, exl3, exl3-s512, "
        "exl3-compare-q, exl3-qbench, gptq, llama.cpp, disjoint, strided, hf-strided, "
        "lm-eval, chat",
        "NAME",
        common=True,
    )
    context_length: Quantity = Flag(
        "use windows of L tokens, such as 32k (default: the protocol's)",
        "L",
        read=tokens_of,
        also=("-c",),
        common=True,
    )
    stride: Quantity = Flag(
        "start a window every S tokens (default: the protocol's)",
        "S",
        read=tokens_of,
        sources=_WINDOWS,
    )
    limit: Number = Flag(
        "score only the first W windows", "W", read=whole, also=("--chunks",), common=True
    )
    bos: Flag[Literal["auto", "always", "never"] | None, str | None] = Flag(
        "start with a BOS token always, never, or as the tokenizer does (auto) (default: the "
        "protocol's)",
        choices=("auto", "always", "never"),
        sources=_WINDOWS,
    )
    vocabulary: Flag[Literal["config", "tokenizer", "head"] | None, str | None] = Flag(
        "run the softmax over the config's vocab_size, the tokenizer's entries, or the whole head "
        "(default: the protocol's)",
        choices=("config", "tokenizer", "head"),
    )


class Calibration(Flags, part="output", group=Group("contamination check")):
    calibration: Place = Flag(
        "look for the scored text in the model's calibration data (a text file, texts or "
        "chats in .jsonl or .parquet, or a data set on the hub), and record how much of it "
        "appears there",
        "DATA",
        once=True,
        path="file or hub",
    )
    calibration_config: Name = Flag(
        "use this configuration of the calibration data set", "NAME", sources=_CALIBRATION_HUB
    )
    calibration_revision: Name = Flag(
        "use this branch, tag or commit of the calibration data set (default: main)",
        "REV",
        sources=_CALIBRATION_HUB,
    )
    calibration_split: Name = Flag(
        "use this split of the calibration data set (default: train)",
        "NAME",
        sources=_CALIBRATION_HUB,
    )
    calibration_field: Name = Flag(
        "read the calibration text from this column or field, unless its rows are chats "
        "(default: text)",
        "NAME",
        sources=_CALIBRATION_HUB | {"--calibration ROWS"},
    )


class Seed(Flags, part="text"):
    seed: Number = Flag(
        "draw the rows of --num-samples with this seed, instead of taking the first ones",
        "N",
        read=whole,
    )


class Stopping(Flags, part="output", group=STOPPING):
    stop_when: Name = Flag(
        "stop once the 95 %% interval for all windows is this narrow: 'ppl ±0.5 %%', 'ppl ±0.05', "
        "'kld ±2 %%', 'kld ±0.001' (+- stands for ±)",
        "RULE",
        read=rule_of,
    )
    seed: Number = Seed.seed.but(
        help=f"{Seed.seed.help}; with --stop-when, draw the order of its windows (default there: 0)"
    )

"""Flags that several commands share, and what they mean."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.conversations import add_conversations, conversations_of
from scoremode.cli.flags.parser import Once, tokens_of
from scoremode.cli.flags.presets import add_presets, are_chats, preset_of
from scoremode.cli.flags.sources import named_source, refuse_unused
from scoremode.cli.flags.stopping import stopping_of
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.text.corpus import Corpus
    from scoremode.text.protocol import Protocol

__all__ = [
    "Group",
    "add_model",
    "add_text",
    "base_revision",
    "corpus_of",
    "model_of",
    "named_model",
    "protocol_of",
    "reads_model",
]


Group = argparse._ArgumentGroup


def add_model(parser: argparse.ArgumentParser, first: Group | None = None) -> None:
    """MODEL, in the group `first` where a command has one, and what says which model that is."""
    group = parser.add_argument_group("model")
    (first or group).add_argument(
        "model", nargs="?", metavar="MODEL", help="the model: a folder, a .gguf file or a hub id"
    )
    group.add_argument("--model", dest="model_flag", metavar="MODEL", help="MODEL, given as a flag")
    group.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub model")
    group.add_argument(
        "--tokenizer",
        metavar="T",
        help="folder, .gguf file or hub id of a tokenizer (default: the model's own)",
    )


def model_of(args: argparse.Namespace) -> str:
    """MODEL or --model. Raises UsageError for two different ones, and for none."""
    model = named_model(args)
    if model is None:
        raise UsageError("no model: give a folder, a .gguf file or a hub id")
    return model


def named_model(args: argparse.Namespace) -> str | None:
    """MODEL or --model, where one is named. Raises UsageError for two different ones."""
    if args.model and args.model_flag and args.model != args.model_flag:
        raise UsageError(f"two models: {args.model} and --model {args.model_flag}")
    return args.model or args.model_flag


def base_revision(args: argparse.Namespace) -> str | None:
    """--reference-revision. Raises UsageError where there is no base, or it is none of the hub's."""
    revision, base = args.reference_revision, args.reference
    if revision is not None and (base is None or os.path.exists(base)):  # noqa: PTH110
        what = "there is no --reference" if base is None else f"{base} is here, not on the hub"
        raise UsageError(f"--reference-revision {revision}: changes nothing, since {what}")
    return revision


def reads_model(args: argparse.Namespace, model: str) -> None:
    """Has the screen name the model while its files are read, or fetched, and before it the libraries
    of versions that scoremode was not tested with."""
    from scoremode.startup.warmup import untested

    for line in untested():
        args.screen.line(line, once=True)
    # Whatever is wrong with the name is said by who opens it. A pattern names no file: on the hub it
    # has the repository before a colon, `org/repo:*.gguf`.
    is_here = os.path.exists(model)  # noqa: PTH110  Path.exists raises for a name too long
    if any(c in model for c in "*?["):
        is_here = is_here or ":" not in model
    args.screen.reads("open", model, from_hub=not is_here)


def add_text(parser: argparse.ArgumentParser, first: Group) -> None:
    """The flags of text and protocol; those that most commands need go to the group `first`."""
    first.add_argument(
        "-f",
        "--file",
        type=Path,
        action="append",
        metavar="FILE",
        help="a text file, taken as it is; given again: one text of all, in their order; a folder: its "
        "files, by name; -: standard input",
    )
    first.add_argument(
        "--conversations",
        action=Once,
        metavar="CHATS",
        help="chats in a .jsonl or .parquet file, or of the hub: messages, ShareGPT's conversations, "
        "or prompt and completion; by the model's chat template, under the protocol chat",
    )
    first.add_argument(
        "--protocol",
        metavar="NAME",
        help="score-mode (default), score-mode-nonblank, exl3, exl3-s512, exl3-compare-q, "
        "exl3-qbench, gptq, llama.cpp, disjoint, strided, hf-strided, lm-eval, chat",
    )
    first.add_argument(
        "-c",
        "--context-length",
        type=tokens_of,
        metavar="L",
        help="tokens of a window, such as 32k (default: the protocol's)",
    )
    text = parser.add_argument_group("text", "without any, WikiText-2's test split from the hub")
    add_presets(text)
    text.add_argument("--text", action=Once, metavar="TEXT", help="a text, on the command line")
    text.add_argument(
        "--dataset", action=Once, metavar="NAME", help="a data set on the hub (default: wikitext)"
    )
    text.add_argument(
        "--dataset-file",
        type=Path,
        action=Once,
        metavar="FILE",
        help="a data set on this machine: .jsonl, .parquet or wiki.test.raw",
    )
    text.add_argument(
        "--dataset-config",
        metavar="NAME",
        help="configuration of the hub data set (default for wikitext: wikitext-2-raw-v1)",
    )
    text.add_argument(
        "--dataset-revision", metavar="REV", help="branch, tag or commit of the hub data set"
    )
    text.add_argument("--split", metavar="NAME", help="split of the hub data set (default: test)")
    text.add_argument(
        "--text-field",
        metavar="NAME",
        help="column or field of a data set that holds the text (default: text)",
    )
    text.add_argument(
        "--group-by",
        metavar="FIELD",
        help="column or field of a data set or of conversations that names each row's group, such as "
        "domain: a line of the table each; file: texts of -f, each by itself, labelled by its name",
    )
    text.add_argument(
        "--num-samples",
        type=int,
        metavar="N",
        help="take only N rows of the data set: the first ones, or those that --seed draws",
    )
    add_conversations(parser)
    protocol = parser.add_argument_group(
        "protocol", "a flag that changes a preset makes it another protocol, and names it so"
    )
    protocol.add_argument(
        "--stride",
        type=tokens_of,
        metavar="S",
        help="tokens between the starts of windows (default: the protocol's)",
    )
    protocol.add_argument(
        "--limit", "--chunks", type=int, metavar="W", help="score only the first W windows"
    )
    protocol.add_argument(
        "--bos",
        choices=("auto", "always", "never"),
        help="whether a BOS token stands in front; auto: as the tokenizer has it (default: the "
        "protocol's)",
    )
    protocol.add_argument(
        "--vocabulary",
        choices=("config", "tokenizer", "head"),
        help="entries that the softmax runs over: the config's vocab_size, the tokenizer's, or the "
        "whole head's (default: the protocol's)",
    )


def protocol_of(args: argparse.Namespace, usual: "Protocol | None" = None) -> "Protocol":
    """The preset with the flags' overrides; where they name none, `usual`. Raises ProtocolError."""
    from scoremode.text.protocol import preset

    named = usual if usual is not None and args.protocol is None else None
    default = "chat" if are_chats(args) else "score-mode"
    return (named or preset(args.protocol or default)).override(
        scored=args.score,
        long=args.long,
        context_length=args.context_length,
        stride=args.stride,
        bos=args.bos,
        vocabulary=args.vocabulary,
        max_windows=args.limit,
        **stopping_of(args),
    )


def corpus_of(args: argparse.Namespace, seed: int | None = None) -> "Corpus":
    """The one text that the flags name; `seed`: what draws its rows, None for the first ones.

    Raises UsageError, CorpusError.
    """
    refuse_unused(args, named_source(args))
    args.clock.begin("text")
    from scoremode.text import corpus, hub

    field = args.text_field or "text"
    if (known := preset_of(args) or conversations_of(args)) is not None:
        result = known
    elif args.text is not None:
        result = corpus.from_string(args.text)
    elif args.file is not None:
        if corpus.STDIN in args.file and getattr(args, "ranks", None) is not None:
            raise UsageError("-f -: several devices can't share standard input: give a file")
        result = corpus.from_files(args.file, args.group_by)
    elif args.dataset_file is not None:
        result = corpus.from_dataset_file(args.dataset_file, field, args.group_by)
    else:
        dataset = args.dataset or "wikitext"
        config = args.dataset_config
        if config is None and dataset in ("wikitext", "Salesforce/wikitext"):
            config = "wikitext-2-raw-v1"
        args.screen.reads("text", f"data set {dataset}", from_hub=True)
        args.clock.begin("text")
        result = hub.from_hub(
            dataset,
            config,
            split=args.split or "test",
            text_field=field,
            revision=args.dataset_revision,
            group_by=args.group_by,
        )
    return result.limited_to(args.num_samples, seed)

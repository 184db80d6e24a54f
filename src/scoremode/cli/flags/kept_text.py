"""The text and the protocol of a run that is compared with a kept reference: the reference's own."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from scoremode.cli.flags.arguments import corpus_of, protocol_of
from scoremode.cli.flags.sources import KEPT, NAMING, named_source, refuse_unused
from scoremode.cli.flags.stopping import row_seed
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.text.corpus import Corpus
    from scoremode.text.protocol import Protocol

__all__ = ["has_kept_text", "text_and_protocol"]


def has_kept_text(args: argparse.Namespace) -> bool:
    """Tells whether the text is that of a reference, since no flag names one."""
    return _kept(args) is not None and all(getattr(args, name) is None for name in NAMING)


def text_and_protocol(args: argparse.Namespace) -> "tuple[Corpus, Protocol]":
    """The flags' text and protocol; what they leave open is as in the reference, where there is one.

    Raises UsageError, CorpusError, ProtocolError, ReferenceUnusable, RunFolderError.
    """
    folder, is_kept = _kept(args), has_kept_text(args)
    # Before anything is looked up.
    source = KEPT if is_kept else named_source(args)
    refuse_unused(args, source, what=f"the text that {folder} keeps" if is_kept else None)
    if folder is None:
        return corpus_of(args, row_seed(args)), protocol_of(args)
    args.screen.words["base"] = f"reading {folder}"
    args.clock.begin("import")
    from scoremode.startup.warmup import libraries

    libraries.modules("scoremode.reference.stored")
    libraries.wait()
    from scoremode.reference.stored import StoredReference
    from scoremode.text.kept_text import kept_text

    args.clock.begin("base")
    stored = StoredReference(folder)
    plan = stored.plan()
    protocol = protocol_of(args, plan.protocol)
    if not is_kept:
        return corpus_of(args, row_seed(args)), protocol
    kept = kept_text(str(folder), stored.record, plan)
    asked = args.num_samples, row_seed(args)
    if args.num_samples is not None and asked != (kept.row_limit, kept.row_seed):
        of = "all rows" if kept.row_limit is None else f"{kept.row_limit} rows"
        drawn = "" if kept.row_seed is None else f", drawn by seed {kept.row_seed},"
        raise UsageError(
            f"--num-samples {args.num_samples}: {folder} was kept with {of}{drawn} of its text"
        )
    return kept, protocol


def _kept(args: argparse.Namespace) -> Path | None:
    """The folder of the run's kept reference."""
    name = getattr(args, "reference", None)
    return Path(name) if name is not None and (Path(name) / "record.json").is_file() else None

"""The text and the protocol that a command's flags ask for, and what they look for in it.

A flag that changes nothing with the text that is named is refused. A run that is compared with a kept
reference has that one's text and protocol, where no flag says another.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.lib.hub import is_address
from scoremode.spec.flag import Flags
from scoremode.spec.text import (
    CALIBRATIONS,
    DEFAULT,
    KEPT,
    SOURCES,
    Calibration,
    Protocol,
    Seed,
    Stopping,
    Text,
    names_file,
)

if TYPE_CHECKING:
    from scoremode.text import calibration, corpus, protocol

__all__ = [
    "base_of",
    "calibration_of",
    "corpus_of",
    "has_kept_text",
    "named_source",
    "protocol_of",
    "refuse_unused",
    "row_seed",
    "text_and_protocol",
]

# Flags that name a text. Only one may be given, but for a preset with a local copy of its data set.
NAMING = ("text", "file", "dataset_file", "dataset", "conversations", "preset")


def named_source(spec: Text) -> str:
    """The source in SOURCES that the flags name. Raises UsageError for two, and for a preset that there
    isn't."""
    named = [name for name in NAMING if getattr(spec, name) is not None]
    if len(named) > 1 and named != ["dataset_file", "preset"]:
        flags = " and ".join("-f" if name == "file" else spec.flags[name].spelled for name in named)
        raise UsageError(f"several texts: {flags}")
    if spec.preset is not None:
        from scoremode.text.presets import named_text

        spoken = " of conversations" * (named_text(spec.preset).text_field is None)
        return f"--preset{spoken}{' with --dataset-file' * (spec.dataset_file is not None)}"
    if spec.conversations is not None:
        where = "FILE" if names_file(spec.conversations) else "of the hub"
        return f"--conversations {where}"
    if not named:
        return DEFAULT
    return "-f" if spec.file is not None else spec.flags[named[0]].spelled


def refuse_unused(
    spec: Flags, source: str, sources: Sequence[str] = SOURCES, what: str | None = None
) -> None:
    """Raises UsageError for a flag that another of the `sources` uses and `source` doesn't; `what`: the
    source as the error calls it."""
    for name, flag in sorted(spec.flags.items()):
        used = flag.sources or frozenset()
        value = getattr(spec, name)
        if value is None or source in used or not used.intersection(sources):
            continue
        users = [each for each in sources if each in used and each.startswith("-")]
        flags = list(dict.fromkeys(each.partition(" ")[0] for each in users))
        others = ", ".join(flags if len(flags) > 1 else users)
        shown = flag.spelled if isinstance(value, dict) else f"{flag.spelled} {value}"
        raise UsageError(f"{shown}: changes nothing with {what or source}; it is for {others}")


def corpus_of(spec: Text, session: Session, seed: int | None = None) -> "corpus.Corpus":
    """The one text that the flags name; `seed`: what draws its rows, None for the first ones.

    Raises UsageError, CorpusError.
    """
    refuse_unused(spec, named_source(spec))
    session.clock.begin("text")
    from scoremode.runs.texts import read_text
    from scoremode.text.corpus import STDIN

    if STDIN in (spec.file or ()) and session.ranks is not None:
        raise UsageError("-f -: several devices can't share standard input: give a file")

    def reads(what: str) -> None:
        session.screen.reads("text", what, from_hub=True)
        session.clock.begin("text")

    return read_text(spec, reads).limited_to(spec.num_samples, seed)


def protocol_of(spec: Protocol, usual: "protocol.Protocol | None" = None) -> "protocol.Protocol":
    """The preset with the flags' overrides; where they name none, `usual`. Raises ProtocolError."""
    from scoremode.text.protocol import preset

    named = usual if usual is not None and spec.protocol is None else None
    default = "chat" if _are_chats(spec) else "score-mode"
    return (named or preset(spec.protocol or default)).override(
        scored=spec.score,
        long=spec.long,
        context_length=spec.context_length,
        stride=spec.stride,
        bos=spec.bos,
        vocabulary=spec.vocabulary,
        max_windows=spec.limit,
        **_stopping(spec),
    )


def _are_chats(spec: Text) -> bool:
    """Tells whether the flags name conversations. Raises UsageError for a name that no text has."""
    if spec.preset is None:
        return spec.conversations is not None
    from scoremode.text.presets import named_text

    return named_text(spec.preset).text_field is None


def row_seed(spec: Text) -> int | None:
    """The seed that draws the rows of a text, None where its first ones are taken: a run that a rule
    may stop draws windows by it. Raises UsageError."""
    assert isinstance(spec, Seed | Stopping)
    has_rule = isinstance(spec, Stopping)
    if spec.seed is None or (has_rule and spec.stop_when is not None):
        return None
    if spec.num_samples is None:
        raise UsageError(
            f"--seed {spec.seed}: draws what is asked for by --num-samples"
            f"{' or --stop-when' * has_rule}: give it, too"
        )
    _check_seed(spec.seed)
    return spec.seed


def _stopping(spec: Protocol) -> dict[str, Any]:
    """The fields of a protocol that a rule to stop by sets, where a command has one. Raises
    UsageError."""
    if not isinstance(spec, Stopping):
        return {}
    if spec.stop_when is None:
        row_seed(spec)
        return {}
    _check_seed(spec.seed)
    return {"stop_when": spec.stop_when, "seed": spec.seed or 0}


def _check_seed(seed: int | None) -> None:
    if seed is not None and seed < 0:
        raise UsageError(f"--seed {seed}: must be at least 0")


def has_kept_text(spec: Text) -> bool:
    """Tells whether the text is that of a reference, since no flag names one."""
    return _kept(spec) is not None and all(getattr(spec, name) is None for name in NAMING)


def text_and_protocol(
    spec: Protocol, session: Session
) -> "tuple[corpus.Corpus, protocol.Protocol]":
    """The flags' text and protocol; what they leave open is as in the reference, where there is one.

    Raises UsageError, CorpusError, ProtocolError, ReferenceUnusable, RunFolderError.
    """
    folder, is_kept = _kept(spec), has_kept_text(spec)
    # Before anything is looked up.
    source = KEPT if is_kept else named_source(spec)
    refuse_unused(spec, source, what=f"the text that {folder} keeps" if is_kept else None)
    if folder is None:
        return corpus_of(spec, session, row_seed(spec)), protocol_of(spec)
    session.screen.words["base"] = f"reading {folder}"
    session.clock.begin("import")
    from scoremode.startup.warmup import libraries

    libraries.modules("scoremode.reference.stored")
    libraries.wait()
    from scoremode.reference.address import pending
    from scoremode.reference.stored import StoredReference
    from scoremode.text.kept_text import kept_text

    session.clock.begin("base")
    stored = StoredReference(folder)
    plan = stored.plan()
    protocol = protocol_of(spec, plan.protocol)
    if size := pending(stored, plan.begun(protocol.whole()).scored):
        session.screen.line(f"{stored.source}: {size / 1e9:.3g} GB of states and head to fetch")
    if not is_kept:
        return corpus_of(spec, session, row_seed(spec)), protocol
    kept = kept_text(str(folder), stored.record.document, plan)
    asked = spec.num_samples, row_seed(spec)
    if spec.num_samples is not None and asked != (kept.row_limit, kept.row_seed):
        of = "all rows" if kept.row_limit is None else f"{kept.row_limit} rows"
        drawn = "" if kept.row_seed is None else f", drawn by seed {kept.row_seed},"
        raise UsageError(
            f"--num-samples {spec.num_samples}: {folder} was kept with {of}{drawn} of its text"
        )
    return kept, protocol


def base_of(base: str | None, session: Session | None = None) -> str | None:
    """--reference; of an address the folder that is fetched of it, which `session` shows. Raises
    UsageError, ReferenceUnusable."""
    if base is None or not is_address(base):
        return base
    if session is not None:
        session.screen.stage(f"fetching {base}")
    from scoremode.reference.address import located

    return str(located(base))


def _kept(spec: Text) -> Path | None:
    """The folder whose text is the run's: that of kept predictions as MODEL, else the reference's."""
    # Of several models one that is a finished run is none that is replayed.
    models = () if getattr(spec, "is_sweep", False) else ("model", "model_flag")
    for name in (*models, "reference"):
        place = getattr(spec, name, None)
        if place is not None and name == "reference":
            place = base_of(place)
        # Path.is_file raises for a name too long.
        if place is not None and os.path.isfile(Path(place) / "record.json"):  # noqa: PTH113
            return Path(place)
    return None


def calibration_of(spec: Calibration, session: Session) -> "calibration.Calibration | None":
    """The calibration text that the flags name, None where they name none.

    Raises UsageError for a flag that has no meaning without it, CorpusError.
    """
    name, source = spec.calibration, _calibration_source(spec.calibration)
    refuse_unused(spec, source, CALIBRATIONS, name and f"--calibration {name}")
    if name is None:
        return None
    from scoremode.runs.texts import read_calibration

    return read_calibration(spec, lambda what: session.screen.reads("text", what, from_hub=True))


def _calibration_source(name: str | None) -> str:
    """The source in CALIBRATIONS of what is named. Raises UsageError."""
    if name is None:
        return "no calibration text"
    if not name:
        raise UsageError("--calibration: the name is empty")
    if not names_file(name):
        return "--calibration of the hub"
    from scoremode.text.corpus import PACKED, ROWS

    has_rows = Path(name).name.lower().endswith((*ROWS, *PACKED))
    return "--calibration ROWS" if has_rows else "--calibration TEXT"

"""A finished run, read back: its numbers are made again from its Scores, and its record must agree.

A record is text that anybody can edit, and its Scores are what was measured. So no table, gate, ranking
or report takes a number from a record that the Scores give: `load_run` is the way to all of them.
"""

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from scoremode.errors import InvalidMeasurement, RunFolderError
from scoremode.results.folders.store import RECORD, SCORES, TOKEN_TEXT, Columns, read_columns
from scoremode.results.folders.tables import LABEL, check_answered
from scoremode.results.record.checks import (
    check_blocks,
    check_described,
    check_done,
    check_seal,
    check_stopped,
    checked_record,
)
from scoremode.results.record.definition import Done, read_document
from scoremode.results.record.section import differences
from scoremode.results.record.sections import remade
from scoremode.results.scores import Scores, check_values
from scoremode.results.statistics.blocks import Places
from scoremode.results.statistics.divergence import worst_tokens
from scoremode.results.statistics.means import Blocks, Mean

# Sections that are there only where the Scores give them.
_MADE = ("distribution", "breakdown", "thresholds", "survival", "llama_cpp", "stopping")
# How sure a number is: a matter of the release that resampled. The record's is never used.
_NOT_COMPARED = {"intervals", "ci95", "note", "error"}


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run that is done: its record, and of its Scores what a comparison needs.

    - `nll` float64 [N]; `base_nll` and `kld` float64 [N], `same_top1` bool [N]: None without a base,
      `kld` also where it has bounds alone.
    - `places`: of the N targets, which blocks are cut from.
    - `weights` float64 [N]: what each evaluation counts, None for one each.
    - `targets_sha256`: of windows, positions, places and ids of all targets, of their weights, and of
      the conversations that they are of.
    """

    folder: Path
    record: Done
    nll: NDArray[np.float64]
    kld: NDArray[np.float64] | None
    base_nll: NDArray[np.float64] | None
    same_top1: NDArray[np.bool_] | None
    places: Places
    weights: NDArray[np.float64] | None
    targets_sha256: str

    def means(self, blocks: Blocks) -> dict[str, Mean]:
        """The metrics whose intervals runs shown together have from the same blocks."""
        columns = {"nll": self.nll}
        if self.base_nll is not None and self.same_top1 is not None:
            columns |= {"nll_base": self.base_nll, "ppl_ratio": self.nll - self.base_nll}
            columns |= {"top1": self.same_top1}
        if self.kld is not None:
            columns["kld"] = self.kld
        everything = np.zeros(len(self.nll), np.int64)
        (found,) = blocks.means_by(everything, 1, columns)
        for ppl, of in (("ppl", "nll"), ("ppl_base", "nll_base"), ("ppl_ratio", "ppl_ratio")):
            if of in found:
                found[ppl] = found[of].through(np.exp)
        return found


def load_run(folder: Path) -> tuple[Done, Scores]:
    """Record and Scores of the finished run in `folder`, each held against the other.

    All sections that follow from the Scores are made again from them.

    Raises RunFolderError where there is no such run, where a file is not the one that was written, and
    where a number of the record is not what the Scores give, which is named with both values.
    """
    record, scores, _ = _load(folder)
    return record, scores


def open_run(folder: Path) -> FinishedRun:
    """The run that `load_run` reads, as a comparison needs it. Raises RunFolderError."""
    return open_whole(folder)[0]


def open_whole(folder: Path) -> tuple[FinishedRun, Scores, Columns]:
    """The same, with its Scores and the columns beside them. Raises RunFolderError."""
    record, scores, extras = _load(folder)
    weights = extras.get("weight")
    kld = base_nll = same_top1 = None
    if (base := scores.base) is not None:
        base_nll, same_top1 = -base.base_logprob, scores.top1 == base.base_top1
    if scores.against is not None:
        kld = scores.against.kld
    places = Places.of(scores, extras)
    digest = _digest(scores, weights, places)
    run = FinishedRun(folder, record, scores.nll, kld, base_nll, same_top1, places, weights, digest)
    return run, scores, extras


def _load(folder: Path) -> tuple[Done, Scores, Columns]:
    # Its seal comes last, since it only tells that something was changed, and not what.
    record = check_done(folder, checked_record(folder, sealed=False))
    scores, extras = read_verified(folder, record)
    made = check_numbers(folder, record, scores, extras)
    check_answered(folder, record, scores)
    check_seal(record, folder / RECORD)
    return check_done(folder, read_document(record.document | made)), scores, extras


def read_verified(folder: Path, record: Done) -> tuple[Scores, Columns]:
    """The Scores of a finished run and the columns beside them, if they are those that its checked
    `record` was made of. Raises RunFolderError."""
    path = folder / SCORES
    if not os.path.lexists(path):
        raise RunFolderError(
            f"{path}: is missing, and the record alone is not believed: put it back, or measure again"
        )
    planned = record.plan.scored
    scores, extras = read_columns(path, record.scores.sha256, planned)
    if (record.scores.token_text is True) != (TOKEN_TEXT in extras):
        raise RunFolderError(f"{path}: its column {TOKEN_TEXT} is not as the record has it")
    check_blocks(path, record, extras)
    if (record.corpus.group_by is not UNSET) != (LABEL in extras):
        raise RunFolderError(f"{path}: its column {LABEL} is not as the record has it")
    if (n := len(scores)) != planned:
        raise RunFolderError(f"{folder}: {n} scores, and its record has {planned}")
    try:
        check_values(scores)
    except InvalidMeasurement as error:
        raise RunFolderError(f"{path}: {error}") from None
    return scores, extras


def check_numbers(
    folder: Path,
    record: Done,
    scores: Scores,
    extras: Columns,
) -> dict[str, Any]:
    """The sections of a run's record that follow from its Scores, made of them.

    Raises RunFolderError for the first number of `record` that is another, and for a protocol or plan
    that is not the Scores'.
    """
    document = record.document
    try:
        made = remade(record, scores, extras)
    except InvalidMeasurement as error:
        raise RunFolderError(f"{folder / SCORES}: {error}") from None
    made |= check_stopped(folder, record, scores, extras)
    for name, section in made.items():
        if name in document and name not in _NOT_COMPARED:
            _compare(folder / RECORD, name, document[name], section)
    for name in _MADE:
        if document.get(name) is not None and name not in made:
            raise RunFolderError(f"{folder / RECORD}: has {name}, which its scores don't give")
    if scores.against is not None and "worst" in document:
        facts = worst_tokens(scores, scores.against)
        for i, (theirs, ours) in enumerate(zip(document["worst"], facts, strict=False)):
            _compare(folder / RECORD, f"worst.{i}", {k: theirs.get(k) for k in ours}, ours)
        if len(document["worst"]) != len(facts):
            raise RunFolderError(
                f"{folder / RECORD}: its number of worst targets is {len(document['worst'])}, and its "
                f"scores give {len(facts)}"
            )
    check_described(folder, record, scores, extras)
    return made


def _compare(file: Path, field: str, stored: Any, made: Any) -> None:
    """Raises RunFolderError unless all that `stored` says is in `made`, with the same values."""
    for found in differences(field, stored, made, _NOT_COMPARED):
        raise RunFolderError(f"{file}: {found.words}")


def _digest(scores: Scores, weights: NDArray[np.float64] | None, places: Places) -> str:
    digest = sha256()
    for column in (scores.window, scores.position, scores.index, scores.target):
        digest.update(column.astype("<i4").tobytes())
    if weights is not None:
        digest.update(weights.astype("<f8").tobytes())
    if places.conversation is not None:
        digest.update(places.conversation.astype("<i4").tobytes())
    return digest.hexdigest()

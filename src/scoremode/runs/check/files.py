"""The files that a run was made of: the checkpoint's and the base's, each by its sha256."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from msgspec import UNSET

from scoremode.errors import ScoremodeError
from scoremode.results.audit.findings import Findings, short
from scoremode.results.record.definition import Done
from scoremode.results.record.model import CheckpointFiles, Reference, Replay
from scoremode.results.record.outcome import IdentityEngine
from scoremode.results.record.section import differences, misfit
from scoremode.results.scores import Scores
from scoremode.results.statistics.agreement import logits_of
from scoremode.runs.check.inputs import Sources, Unreachable, protocol_of
from scoremode.runs.check.text import audited_tokenizer
from scoremode.runs.models import reopened
from scoremode.runs.request import TotalProgress

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference


_KINDS = ("model", "stored", "llama.cpp")
# Fields of a base's engine that may differ: the same states may come from another machine or build.
_MACHINE = ("device", "torch")
# Fields that follow from a checkpoint's headers alone.
_SUMMARY = ("formats", "bits_per_weight", "parameters", "quantized_parameters", "bytes", "gib",
            "kv_cache_declared", "not_decoded")  # fmt: skip


def audit_checkpoint(
    record: Done, sources: Sources, findings: Findings, progress: TotalProgress
) -> None:
    """Opens the checkpoint that was measured, and holds it against the record; `progress` counts the
    bytes that are hashed."""
    section = record.checkpoint
    if record.engine.device.type == "server":
        findings.unchecked("checkpoint", "files", "are the server's that it was served by")
        return
    if (section.files or {}).keys() == {"state_dict"}:
        words = "was a module in memory, which can't be read again"
        findings.unchecked("checkpoint", "state_dict", words)
        return
    _audit(section, "checkpoint", sources, sources.model, "--model", findings, progress)


def audit_kept(folder: Path, record: Done, findings: Findings) -> None:
    """Holds the states, the head and the token ids that a reference keeps against its record."""
    if not record.kept:
        return
    import torch

    from scoremode.reference.replay import replay
    from scoremode.reference.stored import StoredReference

    try:
        stored = StoredReference(folder)
        stored.check_files()
        findings.held("kept", "files", "as they were written")
        found = replay(stored, torch.device("cpu"))
        findings.held("kept", "replay", f"{found.rows:,} rows within {found.worst:.2g} nats")
    except ScoremodeError as error:
        findings.wrong("kept", "files", str(error))


def audit_reference(
    record: Done,
    sources: Sources,
    scores: Scores | None,
    findings: Findings,
    progress: TotalProgress,
) -> None:
    """Opens the base, and holds it against the record and, a kept one, the Scores; `progress` counts
    the bytes of a model that are hashed."""
    if not (section := record.reference):
        if scores is not None and scores.against is not None:
            findings.wrong("reference", "section", "the scores have a base, and the record none")
        return
    part, kind = "reference", section.kind or None
    if kind not in _KINDS:
        findings.wrong(part, "kind", f"the record says {short(kind)}, which no base is")
        return
    _audit_sha256(record, section, findings)
    if kind == "llama.cpp":
        _audit_logits_file(record, section, sources, findings)
        return
    given = sources.reference
    if kind == "stored":
        folder = sources.base(section)
        if (folder / "record.json").is_file():
            _audit_stored(folder, record, section, scores, findings)
            given = None
        else:
            words = f"there is no reference in {folder}: --reference PATH says where it lies"
            findings.unchecked(part, "states", words)
    if (checkpoint := section.checkpoint) is not None:
        _audit(checkpoint, part, sources, given, "--reference", findings, progress)
        if kind == "model" and (own := section.tokenizer):
            find = partial(sources.tokenizer_of, own, checkpoint, is_base=True)
            audited_tokenizer(own, part, find, findings)


def _audit(
    section: CheckpointFiles,
    part: str,
    sources: Sources,
    given: str | None,
    flag: str,
    findings: Findings,
    progress: TotalProgress,
) -> None:
    """Audits the files of a checkpoint and what follows from their headers."""
    try:
        place = sources.checkpoint(section, given, flag)
        checkpoint = reopened(section.mixture, place, sources.other, code=False)
    except (Unreachable, ScoremodeError) as error:
        findings.unchecked(part, "files", str(error))
        return
    where = f"{checkpoint.path} has"
    findings.same(part, "fingerprint", section.fingerprint, checkpoint.fingerprint, where)
    if (files := section.files) is UNSET:
        findings.unchecked(part, "files", "the record has no hashes of them")
    else:
        try:
            checkpoint.hashing().follow(progress)
            found = checkpoint.hash_files()
        except ScoremodeError as error:
            findings.unchecked(part, "files", str(error))
            return
        for name in sorted(files.keys() | found.keys()):
            findings.same(part, name, files.get(name, "no such file"),
                          found.get(name, "no such file"), where)  # fmt: skip
    from scoremode.schemes.summary import stored_summary

    said, made = msgspec.to_builtins(section), stored_summary(checkpoint)
    for name in _SUMMARY:
        # One that vLLM runs may say less of itself.
        if name in said and name in made:
            found = differences(name, said[name], made[name], of="its files")
            findings.judge(part, name, (d.words for d in found))


def _audit_sha256(record: Done, section: Reference, findings: Findings) -> None:
    """The sha256 by which two runs know that they have the same base, of one that ran beside."""
    base = (record.identity and record.identity.reference) or {}
    engine, files = base.get("engine"), (section.checkpoint or section).files
    if section.kind != "model" or engine is None or not files or not section.sha256:
        return
    if words := misfit(engine, IdentityEngine, "identity.reference.engine"):
        findings.wrong("reference", "sha256", words)
        return
    from scoremode.runs.baselines import base_sha256

    made = base_sha256(files, engine)
    findings.same("reference", "sha256", section.sha256, made, "its files and arithmetic give")
    said = {name: v for name, v in (section.engine or {}).items() if name in engine}
    found = differences("reference.engine", said, engine, ("device",), "its identity's fields")
    findings.judge("reference", "engine", (d.words for d in found))


def _audit_logits_file(
    record: Done, section: Reference, sources: Sources, findings: Findings
) -> None:
    from scoremode.llama_cpp.file import LogitsFile

    path = sources.base(section)
    if not path.exists():
        words = f"there is no {path} here: --reference PATH says where it lies"
        findings.unchecked("reference", "sha256", words)
        return
    try:
        file = LogitsFile(path)
        made = file.facts(file.read_all())
    except ScoremodeError as error:
        findings.wrong("reference", "sha256", str(error))
        return
    said = record.document["reference"]
    for name, value in made.items():
        if name in said:
            findings.same("reference", name, said[name], value, f"{path} has")
    if files := section.files:
        findings.same("reference", "files", list(files.values()), [made["sha256"]], f"{path} has")


def _as_scored(stored: "StoredReference", record: Done, rows: int) -> Scores:
    """The base's Scores in the order in which the run took its windows, as many rows as it has."""
    from scoremode.reference.stored import OrderedReference

    protocol, columns = protocol_of(record), stored.scores.columns()
    if protocol.seed is not None:
        plan = stored.plan().begun(protocol.whole()).drawn(protocol)
        taken = OrderedReference(stored, plan).rows(0, min(rows, plan.scored))
    elif protocol.max_windows is not None:
        taken = slice(rows)
    else:
        return stored.scores
    return Scores.from_columns({name: column[taken] for name, column in columns.items()})


def _audit_described(
    record: Done, section: Reference, stored: "StoredReference", findings: Findings
) -> None:
    """Holds what a section says of a kept base against the base's own record: what it is, and how it
    was computed. Where that was, doesn't matter: the same states may have been made elsewhere."""
    from scoremode.runs.baselines import base_sha256

    part, theirs, of = "reference", stored.record.document, f"those of {stored.path}"
    engine, said = theirs["identity"]["engine"], section.engine or {}
    stated = record.document["reference"]
    here = {name: said[name] for name in _MACHINE if name in said}
    if words := misfit(here, IdentityEngine, "reference.engine"):
        findings.wrong(part, "sha256", words)
        return
    made = base_sha256(theirs["checkpoint"]["files"], {**engine, **here})
    findings.same(part, "sha256", section.sha256 or None, made, f"the base in {stored.path} has")
    fields = {
        "engine": ({name: value for name, value in said.items() if name in engine}, _MACHINE),
        "checkpoint": (stated.get("checkpoint") or {}, ("path", "source")),
        "tokenizer": (stated.get("tokenizer") or {}, ("source", "auto_tokenizer")),
        "metrics": (stated.get("metrics") or {}, ()),
        "head": (stated.get("head") or {}, ("checkpoint",)),
    }
    for name, (value, skipped) in fields.items():
        made = theirs["kept"]["head"] if name == "head" else theirs[name]
        found = differences(f"reference.{name}", value, made, skipped, of)
        findings.judge(part, name, (d.words for d in found))


def _audit_stored(
    folder: Path, record: Done, section: Reference, scores: Scores | None, findings: Findings
) -> None:
    """A base that was kept: that it is the same, that it is whole, that its log-probabilities are the
    Scores'."""
    from scoremode.reference.address import complete
    from scoremode.reference.replay import most_apart
    from scoremode.reference.stored import StoredReference

    part = "reference"
    try:
        stored = StoredReference(folder)
    except ScoremodeError as error:
        findings.wrong(part, "states", str(error))
        return
    findings.same(part, "states", section.states_sha256 or None, stored.sha256, f"{folder} has")
    _audit_described(record, section, stored, findings)
    try:
        complete(stored, record.plan.scored)
        stored.check_files(record.plan.scored)
        findings.held(part, "kept files", f"all in {folder} are as they were written")
    except ScoremodeError as error:
        findings.wrong(part, "kept files", str(error))
        return
    if scores is None or scores.against is None:
        return
    own, name = _as_scored(stored, record, len(scores)), "log-probabilities"
    if not (len(own) == len(scores) and np.array_equal(own.target, scores.target)):
        findings.wrong(part, name, f"{folder} holds {len(own)} other targets than the scores have")
        return
    apart = own.logprob - scores.against.base_logprob
    worst, rms = float(np.abs(apart).max()), float(np.sqrt((apart**2).mean()))
    # What the run itself found when it replayed the base.
    most = 0.0
    if replayed := section.replay:
        most = replayed.worst
        _audit_replay(replayed, apart, scores.window, findings)
    words = []
    if worst > most:
        words = [
            f"differ from those in {folder} by up to {worst:.3g} nats, and the record's replay has "
            f"{short(most)}"
        ]
    # Whatever the record says that it found.
    coarsest, limit = most_apart(stored, logits_of(record.document["engine"]))
    if not rms <= limit:
        words.append(
            f"differ from those in {folder} by {rms:.3g} nats (rms), and {coarsest} logits "
            f"explain {limit:g}"
        )
    findings.judge(part, name, words, f"as {folder} has them, within {most:.2g} nats")


def _audit_replay(said: Replay, apart: np.ndarray, window: np.ndarray, findings: Findings) -> None:
    """Audits what the record says of the base's replay: of all rows, or of those since it was resumed.

    - `apart`: the scores' base less the base's own log-probabilities, float64 [N]; `window`: of each.
    """
    begin = len(apart) - said.rows
    if begin < 0 or (0 < begin < len(apart) and window[begin - 1] == window[begin]):
        words = f"the record says {said.rows} rows, which no whole windows of {len(apart)} have"
        findings.wrong("reference", "replay", words)
        return
    rest = apart[begin:]
    made = {
        "rows": len(rest),
        "bitwise": not rest.any(),
        "rms": float(np.sqrt((rest**2).mean())) if len(rest) else 0.0,
        "worst": float(np.abs(rest).max(initial=0.0)),
    }
    found = differences("reference.replay", msgspec.to_builtins(said), made)
    findings.judge("reference", "replay", (d.words for d in found), f"{len(rest):,} rows")

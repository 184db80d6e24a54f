"""The calibration text of a run, looked for in the scored one again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import ScoremodeError
from scoremode.results.audit.findings import Findings
from scoremode.runs.check.sources import Sources
from scoremode.text.calibration import Calibration, calibration_of_file, calibration_of_hub
from scoremode.text.plan import Plan
from scoremode.text.tokenizer import Tokenizer

__all__ = ["audit_calibration"]

_PART = "calibration"


def audit_calibration(
    record: Mapping[str, Any],
    made: tuple[Plan, Tokenizer] | None,
    sources: Sources,
    findings: Findings,
) -> None:
    """Holds a record's section `calibration` against its file, where that still lies there, or against
    the hub's, where that may be asked; `made`: the run's plan and tokenizer, where there are any."""
    if (section := record.get(_PART)) is None:
        return
    if made is None:
        findings.unchecked(_PART, "share", "the scored text is not there to look in")
        return
    try:
        found = _read(section, sources)
    except ScoremodeError as error:
        findings.unchecked(_PART, "share", str(error))
        return
    if found is None:
        words = f"{section['source']} is not here"
        if section["source"].startswith("hub:"):
            words = f"{section['source']}: --fetch gets it from the hub"
        findings.unchecked(_PART, "share", words)
        return
    plan, tokenizer = made
    if not findings.same(
        _PART, "source", section["source_sha256"], found.source_sha256, f"{found.source} has"
    ):
        return
    again = found.looked_for(plan, tokenizer).section(plan)
    for name in again:
        if name not in ("name", "source", "source_sha256"):
            findings.same(_PART, name, section.get(name), again[name], "its text gives")


def _read(section: Mapping[str, Any], sources: Sources) -> Calibration | None:
    source, field = str(section["source"]), str(section["text_field"])
    if source.startswith("hub:"):
        if not sources.fetch:
            return None
        repo, _, commit = source.removeprefix("hub:").partition("@")
        # As `calibration_of_hub` names it: the data set, its configuration if it has one, its split.
        _, *parts = str(section["name"]).split(" ")
        config, split = (parts[0] if len(parts) > 1 else None), (parts[-1] if parts else "train")
        return calibration_of_hub(repo, config, split=split, revision=commit, text_field=field)
    place = Path(sources.at(source))
    return calibration_of_file(place, field) if place.is_file() else None

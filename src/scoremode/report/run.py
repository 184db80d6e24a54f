"""The document of a finished run: of a perplexity, a comparison, tasks, a reference or a shard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.report.divergence import kld_document, worst_facts
from scoremode.report.document import Document, Facts, Table, counted, data, interval_text
from scoremode.report.facts import (
    caveats,
    headline_rows,
    measured_rows,
    page_rows,
    place_rows,
    protocol_words,
    ran_rows,
    text_words,
)
from scoremode.report.groups import group_parts
from scoremode.report.runs import run_data
from scoremode.report.tasks import tasks_document

__all__ = ["finished_document", "reference_document", "run_document", "shard_document"]


_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def finished_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False, worst: bool = False
) -> Document:
    """The table of the run or shard in `folder`; with `worst` its worst targets also without
    `verbose`."""
    if record["status"] == "shard":
        return shard_document(record, folder, verbose=verbose)
    if "tasks" in record:
        return tasks_document(record, folder, verbose=verbose)
    if "kld" in record["metrics"]:
        found = kld_document(record, folder, verbose=verbose)
        if worst and not verbose:
            return Document((*found.parts, worst_facts(record["worst"])), found.data)
        return found
    if "kept" in record:
        return reference_document(record, folder, verbose=verbose)
    return run_document(record, folder, verbose=verbose)


def shard_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The shard in `folder`; `verbose`: with where it ran, and how long."""
    shard = record["shard"]
    (first, behind), (begin, end) = shard["passes"], shard["windows"]
    number, of = shard["number"], shard["of"]
    whole = "it is all of the run" if of == 1 else "a part of the text"
    rows = [
        ("shard", f"{number} of {of}, done"),
        ("no metrics", f"{whole}: scoremode merge makes the run of {counted(of, 'shard')}"),
        ("model", record["checkpoint"]["source"]),
        *_shard_base(record),
        ("passes", f"{first + 1} to {behind} of {shard['of_passes']:,}"),
        ("windows", f"{begin + 1:,} to {end:,} of {record['plan']['windows']:,}"),
        ("targets", f"{shard['targets']:,} of {record['plan']['scored']:,}"),
        ("text", text_words(record["corpus"])),
        ("protocol", protocol_words(record["protocol"])),
        *caveats(record),
        *(ran_rows(record) if verbose else ()),
        ("record", str(folder / "record.json")),
    ]
    plain = {
        "folder": str(folder),
        "model": record["checkpoint"]["source"],
        "reference": (record.get("reference") or {}).get("source"),
        "shard": number,
        "of": of,
        "first_pass": first,
        "passes": behind - first,
        "of_passes": shard["of_passes"],
        "first_window": begin,
        "windows": end - begin,
        "targets": shard["targets"],
    }
    table = Table(tuple(map(data, plain)), (tuple(plain.values()),))
    return Document((Facts(tuple(rows), frozenset(("shard", "model"))),), table)


def _shard_base(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = record.get("reference")
    return [] if found is None else [("base", str(found["source"]))]


def run_document(record: Mapping[str, Any], folder: Path, *, verbose: bool = False) -> Document:
    """The result of one run; `verbose`: with all that made it, behind."""
    ppl = record["metrics"]["ppl"]
    first = [
        *page_rows(record),
        ("PPL", f"{ppl['value']:.6f}   {interval_text(ppl)}"),
        *headline_rows(record),
        *place_rows(folder, verbose=verbose),
    ]
    groups = [*group_parts(record, "label"), *group_parts(record, "depth")]
    shown = Facts(tuple(first), frozenset(("PPL", "model")))
    if not verbose:
        return Document((shown, *groups), run_data(record, folder))
    details = [*measured_rows(record), *ran_rows(record)]
    # Where the tokenizer tells how many bytes its tokens are.
    if found := record["metrics"].get("bits_per_byte"):
        # Of pages, whose own bytes are others, the protocol has one as well.
        name = "bits per detokenized byte" if "pages" in record else "bits per byte"
        details.insert(0, (name, f"{found['value']:.6f}   {interval_text(found)}"))
    groups += group_parts(record, "turn")
    return Document((shown, *groups, Facts(tuple(details))), run_data(record, folder))


def reference_document(
    record: Mapping[str, Any], folder: Path, *, verbose: bool = False
) -> Document:
    """The result of a run that was kept as a reference."""
    states, head = record["kept"]["states"], record["kept"]["head"]
    size = states["rows"] * states["width"] * _BYTES[states["dtype"]]
    where = "with them" if head["file"] else f"left in {head['checkpoint']['path']}"
    kept = (
        ("states", f"{states['rows']:,} of {states['width']:,} {states['dtype']}, "
                   f"{size / 1e9:.3f} GB"),
        ("head", f"{head['vocabulary']:,} × {head['width']:,} {head['dtype']}, {where}"),
        ("reference", str(folder)),
    )  # fmt: skip
    document = run_document(record, folder, verbose=verbose)
    return Document((*document.parts, Facts(kept)), document.data)

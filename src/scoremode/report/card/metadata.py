"""What the hub's own formats say of finished runs: `model-index`, and `.eval_results/*.yaml`.

Both are made and read back by huggingface_hub's classes, so that what is written is what they mean. A
perplexity or a divergence is no score of a benchmark: it stands with the data set that the text is of,
and its protocol, interval and base stand beside it. A text that is not on the hub has no id there.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scoremode.errors import escaped
from scoremode.report.card.block import Group
from scoremode.report.table import protocol_words
from scoremode.results.comparison.rows import short_name

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, EvalResultEntry

__all__ = ["TOOL", "entries_file", "entry_files", "model_index", "results_of"]

TOOL = "scoremode"
# WikiText-2, by the name that a corpus of its rows has, wherever they lay.
_WIKITEXT = "wikitext wikitext-2-raw-v1 test"
_METRICS = {
    "ppl": ("perplexity", "Perplexity"),
    "ppl_ratio": ("perplexity_ratio", "Perplexity / base's"),
    "kld": ("kl_divergence", "KL divergence from the base (nats)"),
    "top1": ("top1_agreement", "Same top-1 as the base (share)"),
}


@dataclass(frozen=True)
class _Dataset:
    """A data set as the hub has it; `id` None for a text that is not there."""

    id: str | None
    name: str
    config: str | None = None
    split: str | None = None
    revision: str | None = None


def results_of(groups: Sequence[Group], source_of: Mapping[str, str]) -> "list[EvalResult]":
    """An `EvalResult` a metric and run; `source_of`: a run's folder → the address of its record."""
    from huggingface_hub import EvalResult

    found = []
    for row, record in _runs(groups):
        data, url = _dataset(record["corpus"]), source_of.get(row["folder"])
        for name, (kind, words) in _METRICS.items():
            metric = row[name]
            if metric is None:
                continue
            label = f"{words}, {escaped(row['model'])}"
            found.append(
                EvalResult(
                    task_type="text-generation",
                    task_name="Text Generation",
                    dataset_type=data.id or "custom",
                    dataset_name=data.name,
                    dataset_config=data.config,
                    dataset_split=data.split,
                    dataset_revision=data.revision,
                    metric_type=kind,
                    metric_name=label,
                    metric_value=metric["value"],
                    metric_args=_arguments(record, metric, against=name != "ppl"),
                    verified=False,
                    source_name=None if url is None else _version(record),
                    source_url=url,
                )
            )
    return found


def model_index(name: str, results: "Sequence[EvalResult]") -> list[dict[str, Any]]:
    """The `model-index` of a README. Raises ValueError where the hub's classes read something else."""
    from huggingface_hub.repocard_data import (
        eval_results_to_model_index,
        model_index_to_eval_results,
    )

    index: list[dict[str, Any]] = [{"name": name, "results": []}]
    # One call would give all results of a data set the first one's source.
    for url in dict.fromkeys(result.source_url for result in results):
        (part,) = eval_results_to_model_index(name, [r for r in results if r.source_url == url])
        index[0]["results"] += part["results"]
    _, read = model_index_to_eval_results(index)
    if sorted(map(repr, read)) != sorted(map(repr, results)):
        raise ValueError("the hub's classes read another model-index than they wrote")
    return index


def entry_files(groups: Sequence[Group], source_of: Mapping[str, str]) -> dict[str, str]:
    """Path in the repository → YAML, a file a run whose text is a data set on the hub."""
    files = {}
    for row, record in _runs(groups):
        data = _dataset(record["corpus"])
        if data.id is None:
            continue
        entries = _entries(row, record, data, source_of.get(row["folder"]))
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", row["model"]).strip("-.") or "model"
        plan = str(record["plan"]["sha256"])[:8]
        files[f".eval_results/{TOOL}-{safe}-{plan}.yaml"] = entries_file(entries)
    return files


def entries_file(entries: "list[EvalResultEntry]") -> str:
    """The YAML of entries. Raises ValueError where the hub's classes read others."""
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml, parse_eval_result_entries
    from huggingface_hub.utils import yaml_dump

    text = yaml_dump(eval_result_entries_to_yaml(entries), sort_keys=False)
    if parse_eval_result_entries(yaml.safe_load(text)) != entries:
        raise ValueError("the hub's classes read other entries than they wrote")
    return text


def _entries(
    row: Mapping[str, Any],
    record: Mapping[str, Any],
    data: _Dataset,
    url: str | None,
) -> "list[EvalResultEntry]":
    from huggingface_hub import EvalResultEntry

    assert data.id is not None
    found = []
    for name in ("ppl", "kld"):
        if (metric := row[name]) is None:
            continue
        ends = metric["ci95"]
        notes = [f"{_METRICS[name][1]} of {escaped(row['model'])}"]
        notes += [] if ends is None else [f"95 % [{ends[0]:.6g}, {ends[1]:.6g}]"]
        notes += [f"protocol {escaped(protocol_words(record['protocol']))}", f"n = {metric['n']}"]
        if name == "kld":
            notes.append(f"base {escaped(_base(record))}")
        found.append(
            EvalResultEntry(
                dataset_id=data.id,
                task_id=_METRICS[name][0],
                value=metric["value"],
                dataset_revision=data.revision,
                date=record.get("finished"),
                source_url=url,
                source_name=None if url is None else _version(record),
                notes="; ".join(notes),
            )
        )
    return found


def _runs(groups: Sequence[Group]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each published run's line of the ranking, and its record."""
    return [pair for group in groups for pair in group.published]


def _dataset(corpus: Mapping[str, Any]) -> _Dataset:
    source, name = str(corpus.get("source") or ""), str(corpus["name"])
    parts = name.split(" ")
    config, split = (parts[1] if len(parts) > 2 else None), (parts[-1] if parts[1:] else None)
    if source.startswith("hub:"):
        repo, _, commit = source.removeprefix("hub:").partition("@")
        return _Dataset(repo, name, config, split, commit or None)
    if name == _WIKITEXT and corpus.get("rows") is not None:
        return _Dataset("Salesforce/wikitext", name, config, split)
    return _Dataset(None, escaped(name))


def _arguments(
    record: Mapping[str, Any], metric: Mapping[str, Any], *, against: bool
) -> dict[str, Any]:
    """What makes the number that number."""
    arguments = {
        "tool": _version(record),
        "protocol": escaped(protocol_words(record["protocol"])),
        "text_sha256": record["corpus"]["text"]["sha256"],
        "plan_sha256": record["plan"]["sha256"],
        "n": metric["n"],
    }
    if metric["ci95"] is not None:
        arguments["ci95"] = list(metric["ci95"])
    if against and record.get("reference"):
        arguments["base"] = escaped(_base(record))
    return arguments


def _base(record: Mapping[str, Any]) -> str:
    reference = record["reference"]
    checkpoint = reference.get("checkpoint") or {}
    return short_name(str(checkpoint.get("source") or reference["source"]))


def _version(record: Mapping[str, Any]) -> str:
    return f"{TOOL} {escaped(str(record['versions']['scoremode']))}"

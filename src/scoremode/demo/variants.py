"""A dense model and its quantized variants, all measured on one text, and the table of them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.measure import Request, measure
from scoremode.report.table import columns_table, interval
from scoremode.request import TotalProgress
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol

__all__ = ["measure_variants", "variants_table"]

_HEADER = (
    "model",
    "bits/weight",
    "perplexity",
    "to dense",
    "95 % of the ratio",
    "KLD (nats)",
    "99 % of KLD",
    "same top-1",
)


def measure_variants(
    model: Path,
    corpus: Corpus,
    protocol: Protocol,
    folder: Path,
    *,
    command: tuple[str, ...],
    progress: Callable[[], AbstractContextManager[TotalProgress | None]],
) -> Mapping[str, dict[str, Any]]:
    """Variant name → its record against the dense `model`, which is the first, named `dense`.

    Quantized models go to `folder`/models, what the dense one predicts to `folder`/reference, the
    others' runs to `folder`/runs.
    """
    models = folder / "models"
    if models.exists():
        raise UsageError(f"{models}: is there already; give a new --output-path")
    paths = {"dense": model}
    for variant in VARIANTS:
        paths[variant.name] = models / variant.name
        quantize_folder(model, paths[variant.name], variant)
    reference = folder / "reference"
    records = {}
    for name, path in [("reference", model), *paths.items()]:
        is_base = name == "reference"
        request = Request(
            model=str(path),
            corpus=corpus,
            protocol=protocol,
            options=TorchOptions(),
            output=reference if is_base else folder / "runs",
            keep="stored" if is_base else None,
            reference=None if is_base else str(reference),
            command=command,
        )
        with progress() as shown:
            records[name] = measure(request, progress=shown).record
    del records["reference"]
    return records


def variants_table(records: Mapping[str, Mapping[str, Any]]) -> str:
    """Size, perplexity and distance from the dense model, a line a variant."""
    rows = []
    for name, record in records.items():
        metrics, stored = record["metrics"], record["checkpoint"]["bits_per_weight"]
        rows.append(
            (
                name,
                f"{stored['body']:.3f}",
                f"{metrics['ppl']['value']:.4f}",
                f"{metrics['ppl_ratio']['value'] - 1:+.2%}",
                interval(metrics["ppl_ratio"], ".4f").removeprefix("95 % "),
                f"{metrics['kld']['value']:.5f}",
                f"{record['distribution']['kld']['99']:.4f}",
                f"{metrics['top1']['value']:.2%}",
            )
        )
    return columns_table(_HEADER, rows)

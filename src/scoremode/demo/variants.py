"""A dense model and its quantized variants, all measured on one text, and the table of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.report.layout import columns_table, ends
from scoremode.runs.measure import Request, measure
from scoremode.runs.request import TotalProgress
from scoremode.startup.clock import StageClock, Tell
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol

__all__ = ["measure_variants", "variants_table"]

_HEADER = (
    "model",
    "bits/weight",
    "PPL",
    "PPL / dense",
    "95 % of the ratio",
    "KLD (nats)",
    "KLD p99",
    "same top-1",
)


def measure_variants(
    model: Path,
    corpus: Corpus,
    protocol: Protocol,
    folder: Path,
    *,
    command: tuple[str, ...],
    progress: TotalProgress | None = None,
    tell: Tell = lambda *_: None,
) -> Mapping[str, dict[str, Any]]:
    """Variant name → its record against the dense `model`, which is the first, named `dense`.

    Quantized models go to `folder`/models, what the dense one predicts to `folder`/reference, the
    others' runs to `folder`/runs. `tell` is called with each stage that begins, and of which model.
    """
    models = folder / "models"
    if models.exists():
        raise UsageError(f"{models}: is there already; give a new --output-path")
    paths = {"dense": model}
    for variant in VARIANTS:
        tell(f"quantizing {variant.name}", "")
        paths[variant.name] = models / variant.name
        quantize_folder(model, paths[variant.name], variant)
    reference = folder / "reference"
    records = {}
    for number, (name, path) in enumerate([("reference", model), *paths.items()]):
        is_base = name == "reference"
        of = "the base" if is_base else f"{name} ({number} of {len(paths)})"
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
        clock = StageClock(tell=lambda stage, _, of=of: tell(stage, of))
        records[name] = measure(request, progress=progress, clock=clock).record
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
                ends(metrics["ppl_ratio"], ".4f"),
                f"{metrics['kld']['value']:.5f}",
                f"{record['distribution']['kld']['99']:.4f}",
                f"{metrics['top1']['value']:.2%}",
            )
        )
    return columns_table(_HEADER, rows)

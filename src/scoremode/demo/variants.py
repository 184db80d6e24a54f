"""A dense model and its quantized variants, all measured on one text, and the table of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.report.document import Table, interval, measured, number, words
from scoremode.results.record.definition import Done
from scoremode.runs.measure import measure
from scoremode.runs.request import Request, TotalProgress
from scoremode.startup.clock import StageClock, Tell
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol

_COLUMNS = (
    words("model", "model"),
    number("bits/weight", "bits_per_weight", ".3f"),
    measured("PPL", "ppl", ".4f"),
    replace(
        measured("PPL / dense", "ppl_ratio", ""),
        show=lambda metric: f"{metric.value - 1:+.2%}",
    ),
    interval(".4f", "95 % of the ratio"),
    measured("KLD (nats)", "kld_nats", ".5f"),
    number("KLD p99", "kld_p99_nats", ".4f"),
    measured("same top-1", "top1_share", ".2%"),
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
) -> dict[str, Done]:
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
    for count, (name, path) in enumerate([("reference", model), *paths.items()]):
        is_base = name == "reference"
        of = "the base" if is_base else f"{name} ({count} of {len(paths)})"
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


def variants_data(records: Mapping[str, Done]) -> Table:
    """Size, perplexity and distance from the dense model, a line a variant."""
    rows = []
    for name, record in records.items():
        assert record.distribution
        body, metrics = record.checkpoint.bits_per_weight.body, record.metrics
        ratio, p99 = metrics["ppl_ratio"], record.distribution["kld"]["99"]
        rows.append(
            (name, body, metrics["ppl"], ratio, ratio.ci95, metrics["kld"], p99, metrics["top1"])
        )
    return Table(_COLUMNS, tuple(rows))

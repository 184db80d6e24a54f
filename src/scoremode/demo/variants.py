"""A dense model and its quantized variants, all measured on one text, and the table of them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from scoremode.demo.quantize import VARIANTS, config_text, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import RunFolderError
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.report.document import LAYER_BITS, Said, Table, interval, measured, number, words
from scoremode.report.terminal import Terminal, table_parts
from scoremode.results.folders.store import drop_beginnings
from scoremode.results.record.definition import Done
from scoremode.results.record.section import Metric
from scoremode.runs.measure import measure
from scoremode.runs.request import Request, Result, TotalProgress, Watch
from scoremode.startup.clock import StageClock, Tell
from scoremode.text.corpus import Corpus
from scoremode.text.protocol import Protocol

# What the report and later commands call the dense model.
BASE = "dense tiny Llama"
_COLUMNS = (
    words("model", "model"),
    number(LAYER_BITS, "bits_per_weight", ".3f", 6),
    measured("PPL", "ppl", ".4f", importance=3),
    measured("PPL / dense", "ppl_ratio", ".4f", "×", importance=8),
    interval(".4f", importance=5),
    measured("KLD (nats)", "kld_nats", ".5f", importance=9),
    number("KLD p99", "kld_p99_nats", ".4f", 4),
    measured("same top-1", "top1_share", ".2%", importance=7),
    measured("acceptance", "acceptance_share", ".2%", importance=5),
    number("half-life", "half_life_tokens", "d", 2),
)


def measure_variants(
    model: Path,
    corpus: Corpus,
    protocol: Protocol,
    folder: Path,
    *,
    command: tuple[str, ...],
    progress: TotalProgress | None = None,
    watch: Watch | None = None,
    tell: Tell = lambda *_: None,
) -> Iterator[tuple[str, Result]]:
    """Yields each variant's name and its run against the dense `model`, which is the first, named
    `dense`, as soon as it is measured.

    Quantized models go to `folder`/models, what the dense one predicts to `folder`/reference, all
    others' runs to `folder`/runs. What an earlier call left there is gone on with. `tell` is called
    with each stage that begins, and of which model; `watch` with the estimates of the passes done.
    """
    reference, runs = folder / "reference", folder / "runs"
    drop_beginnings(runs)
    base = Request(
        model=str(model),
        corpus=corpus,
        protocol=protocol,
        options=TorchOptions(),
        output=reference,
        keep="stored",
        resume="if-there",
        label=BASE,
        command=command,
    )

    def measured(request: Request, of: str) -> Result:
        clock = StageClock(tell=lambda stage, _: tell(stage, of))
        return measure(request, progress=progress, clock=clock, watch=watch)

    try:
        measured(base, "the base")
    except RunFolderError as error:
        # Of another machine or other versions, say, or another process is at work on it.
        raise RunFolderError(f"{error}; to begin anew, name another folder with -o DIR") from None
    request = replace(base, output=runs, keep=None, reference=str(reference))
    for count, variant in enumerate((None, *VARIANTS), 1):
        name = variant.name if variant else "dense"
        of = f"{name} {count}/{1 + len(VARIANTS)}"
        if variant:
            tell("quantizing", of)
            quantized = folder / "models" / name
            if not _is_there(quantized, config_text(model, variant)):
                quantize_folder(model, quantized, variant)
            request = replace(request, model=str(quantized), label=None)
        yield name, measured(request, of)


def _is_there(folder: Path, config: str) -> bool:
    """Tells whether an earlier call wrote the model of this config. Raises RunFolderError where
    another one is there."""
    try:
        found = read_regular(folder / "config.json", MOST_JSON)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunFolderError(f"{folder / 'config.json'}: {error.strerror}") from None
    if found != config.encode():
        raise RunFolderError(
            f"{folder}: is no model of this demo's: remove it, or name another folder with -o DIR"
        )
    return True


def variants_data(records: Mapping[str, Done]) -> Table:
    """Size, perplexity and distance from the dense model, a line a variant."""
    rows = []
    for name, record in records.items():
        assert record.distribution and record.survival
        body, metrics = record.checkpoint.bits_per_weight.body, record.metrics
        ratio, p99 = metrics["ppl_ratio"], record.distribution["kld"]["99"]
        alike = record.survival.sampled
        rows.append(
            (
                name, body, metrics["ppl"], ratio, ratio.ci95, metrics["kld"], p99,
                metrics["top1"], metrics["acceptance"],
                alike.half_life or Said(f">{alike.longest}"),
            )
        )  # fmt: skip
    return Table(_COLUMNS, tuple(rows))


def growing_table(
    records: Mapping[str, Done], terminal: Terminal
) -> tuple[list[str], list[str], list[str]]:
    """The table's headings, its rows and what is below, as wide as all variants need it: what is there
    stays as it is when the next one comes."""
    ends = (1.0, 1.0)
    ppl, ratio, part = (Metric(value, ends, 1) for value in (99.9999, 1.9999, 1.0))
    longest = max((variant.name for variant in VARIANTS), key=len)
    table = variants_data(records)
    widest = (longest, 16.0, ppl, ratio, ends, part, 1.0, part, part, 1)
    head, rows, below = table_parts(replace(table, rows=(widest, *table.rows)), terminal)
    return head, rows[1:], below

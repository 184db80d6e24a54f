"""`scoremode demo`: measures a tiny model and its quantized variants, on this machine, now."""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

__all__ = ["add_parser"]

CONTEXT = 256


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="a tiny model and its quantized variants",
        description="Quantizes a tiny trained Llama in ten formats and measures the perplexity of all "
        "of them on text that it was not trained on. Needs no network and no GPU.",
    )
    parser.add_argument(
        "-o",
        "--output-path",
        type=Path,
        metavar="DIR",
        help="keep the models and the records here (default: nothing is kept)",
    )
    parser.add_argument("--json", action="store_true", help="the records on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.report.table import columns_table, interval

    if args.output_path is not None:
        records = _measure_all(args.output_path, command)
    else:
        with tempfile.TemporaryDirectory(prefix="scoremode-demo-") as folder:
            records = _measure_all(Path(folder), command)
    if args.json:
        json.dump(records, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return 0
    dense = records["dense"]["metrics"]["ppl"]["value"]
    rows = []
    for name, record in records.items():
        ppl, stored = record["metrics"]["ppl"], record["checkpoint"]["bits_per_weight"]
        rows.append(
            (
                name,
                f"{stored['body']:.3f}",
                f"{ppl['value']:.4f}",
                interval(ppl, digits=2).removeprefix("95 % "),
                f"{ppl['value'] / dense - 1:+.2%}",
            )
        )
    header = ("model", "bits/weight", "perplexity", "95 % interval", "against dense")
    first = records["dense"]
    print(columns_table(header, rows))
    print(
        f"\n{first['plan']['scored']:,} targets of held-out CPython documentation, protocol "
        f"{first['protocol']['name']}, computed in {first['engine']['dtype']}.\n"
        "Names without A16 quantize activations too, as their checkpoints declare.\n"
        "The intervals are of each perplexity by itself and mostly the text's; they overlap because "
        "all models\nread the same text. The model is tiny and made sensitive on purpose: the "
        "order is real, the sizes are its own."
    )
    return 0


def _measure_all(folder: Path, command: tuple[str, ...]) -> Mapping[str, dict[str, Any]]:
    """Variant name → record, the dense model first. Models go to `folder`/models."""
    from scoremode.cli.running import progress_bar
    from scoremode.demo.quantize import VARIANTS, quantize_folder
    from scoremode.engines.torch.engine import TorchOptions
    from scoremode.errors import UsageError
    from scoremode.measure import Request, measure
    from scoremode.text.corpus import from_file
    from scoremode.text.protocol import preset

    models = folder / "models"
    if models.exists():
        raise UsageError(f"{models}: is there already; give a new --output-path")
    records = {}
    with resources.as_file(resources.files("scoremode.demo")) as package:
        corpus = from_file(package / "heldout.txt")
        protocol = preset("disjoint").override(context_length=CONTEXT)
        paths = {"dense": package / "model"}
        for variant in VARIANTS:
            paths[variant.name] = models / variant.name
            quantize_folder(package / "model", paths[variant.name], variant)
        for name, path in paths.items():
            request = Request(
                model=str(path),
                corpus=corpus,
                protocol=protocol,
                options=TorchOptions(),
                output=folder / "runs",
                command=command,
            )
            with progress_bar(hidden=False) as progress:
                records[name] = measure(request, progress=progress).record
    return records

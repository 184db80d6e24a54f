"""`scoremode demo`: measures a tiny model and its quantized variants, on this machine, now."""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scoremode.cli.screen import Screen

__all__ = ["add_parser"]

CONTEXT = 256


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="a tiny model and its quantized variants",
        description="Quantizes a tiny trained Llama in ten formats and measures the perplexity of all "
        "of them, and how far their predictions are from the dense model's, on text that it was not "
        "trained on. Needs no network and no GPU.",
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
        records = _measure_all(args.output_path, command, args.screen)
    else:
        with tempfile.TemporaryDirectory(prefix="scoremode-demo-") as folder:
            records = _measure_all(Path(folder), command, args.screen)
    args.screen.clear()
    if args.json:
        json.dump(records, sys.stdout, indent=2, ensure_ascii=False)
        print()
        return 0
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
    header = ("model", "bits/weight", "PPL", "PPL / dense", "95 % of the ratio", "KLD (nats)",
              "KLD p99", "same top-1")  # fmt: skip
    first = records["dense"]
    print(columns_table(header, rows))
    print(
        f"\n{first['plan']['scored']:,} targets of held-out CPython documentation, protocol "
        f"{first['protocol']['name']}, computed in {first['engine']['dtype']};\nthe dense model's "
        f"perplexity is {interval(first['metrics']['ppl'], '.2f')}, most of which is the text's.\n"
        "Ratios and KL(dense‖model) are paired, token by token, so the text cancels.\n"
        "Names without A16 quantize activations too, as their checkpoints declare. The model is tiny "
        "and made\nsensitive on purpose: the order is real, the sizes are its own."
    )
    return 0


def _measure_all(
    folder: Path, command: tuple[str, ...], screen: "Screen"
) -> Mapping[str, dict[str, Any]]:
    """Variant name → record against the dense model, which is the first.

    Models go to `folder`/models, what the dense one predicts to `folder`/reference.
    """
    screen.stage("import")
    from scoremode.clock import Clock
    from scoremode.demo.quantize import VARIANTS, quantize_folder
    from scoremode.engines.torch.options import TorchOptions
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
            screen.stage(f"quantizing {variant.name}")
            paths[variant.name] = models / variant.name
            quantize_folder(package / "model", paths[variant.name], variant)
        reference = folder / "reference"
        for number, (name, path) in enumerate([("reference", paths["dense"]), *paths.items()]):
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
            clock = Clock(tell=lambda stage, _, of=of: screen.stage(stage, of))
            records[name] = measure(request, progress=screen.progress, clock=clock).record
    del records["reference"]
    return records

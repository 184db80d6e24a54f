"""Print the demo's table for a real model: what ten formats cost SmolLM2-135M-Instruct on WikiText-2.

The model is `tools/real_model.py`'s, rounded to bfloat16, in which its authors published it and which
the variants' scales and embeddings are stored in. Variants are the demo's: plain rounding to nearest,
no calibration of weights, NVFP4's input scales from random tokens. The model was a Q4_1 file, so the
grid of its dense weights is itself one of 4 bits; none of the formats here has the same.

    python tools/real_table.py FOLDER --text wiki.test.raw [--bytes 24000] [-o DIR] [--report FILE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from scoremode.cli.screen import Screen
from scoremode.demo.variants import measure_variants, variants_data
from scoremode.report.document import interval_text
from scoremode.report.page.document import write_report
from scoremode.report.terminal import table_text
from scoremode.results.record.definition import Done
from scoremode.text.corpus import from_file
from scoremode.text.protocol import preset

CONTEXT = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="what tools/real_model.py wrote")
    parser.add_argument("--text", type=Path, required=True, help="WikiText-2's wiki.test.raw")
    parser.add_argument(
        "--bytes", type=int, default=24_000, help="of its first lines (default: 24000)"
    )
    parser.add_argument("-o", "--output-path", type=Path, help="keep models and records here")
    parser.add_argument(
        "--report", type=Path, help="write the runs' report to this file, such as .real/report.html"
    )
    args = parser.parse_args()
    begun = time.monotonic()
    if args.output_path is not None:
        records = measured(args, args.output_path)
    else:
        with tempfile.TemporaryDirectory(prefix="scoremode-real-") as folder:
            records = measured(args, Path(folder))
    dense = records["dense"]
    print(table_text(variants_data(records)))
    print(
        f"\n{dense.plan.scored:,} targets of {dense.corpus.text.bytes:,} bytes, "
        f"protocol {dense.protocol.name}, computed in {dense.engine.dtype} on "
        f"{dense.engine.device.name} in {time.monotonic() - begun:.0f} s;\nthe dense model's "
        f"perplexity is {interval_text(dense.metrics['ppl'], '.2f')}."
    )


def measured(args: argparse.Namespace, folder: Path) -> dict[str, Done]:
    """Variant name → record, of the model in bfloat16; everything that is made goes to `folder`."""
    dense, text = folder / "dense", folder / "text.raw"
    dense.mkdir(parents=True)
    write_bfloat16(args.model, dense)
    text.write_bytes(whole_lines(args.text.read_bytes(), args.bytes))
    screen = Screen(sys.stderr)
    try:
        results = measure_variants(
            dense,
            from_file(text),
            preset("disjoint").override(context_length=CONTEXT),
            folder,
            command=tuple(sys.argv),
            progress=screen.progress,
            tell=screen.stage,
        )
        records = {name: result.whole for name, result in results}
        if args.report is not None:
            screen.stage("report")
            write_report([folder], args.report)
        return records
    finally:
        screen.close()


def write_bfloat16(source: Path, target: Path) -> None:
    """Writes a float32 model in bfloat16, rounded to nearest, as its `config.json` then says."""
    tensors = load_file(source / "model.safetensors")
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    save_file(rounded, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"torch_dtype": "bfloat16"}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    for file in source.glob("tokenizer*.json"):
        shutil.copyfile(file, target / file.name)


def whole_lines(text: bytes, most: int) -> bytes:
    """The first lines of `text` that fit into `most` bytes."""
    return text[: text.rfind(b"\n", 0, most) + 1]


if __name__ == "__main__":
    main()

"""`scoremode inspect`: what a checkpoint holds, from its headers."""

import argparse
import json
import sys
from typing import Any

from scoremode.cli.arguments import add_model, model_of

__all__ = ["add_parser"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "inspect",
        help="formats, bits per weight, what would run",
        description="Prints what a checkpoint holds, from its headers alone: no weights are read.",
    )
    add_model(parser, required=True)
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, command: tuple[str, ...]) -> int:
    from scoremode.report.table import inspect_table

    model = model_of(args)
    assert model is not None
    value = inspect(model, args.revision, args.tokenizer)
    if args.json:
        json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
        print()
    else:
        print(inspect_table(value))
    return 0


def inspect(model: str, revision: str | None, tokenizer: str | None) -> dict[str, Any]:
    """Everything the table shows, as plain values. Raises CheckpointError."""
    from scoremode.checkpoint.files import open_checkpoint, positions_of
    from scoremode.checkpoint.tokenizers import checkpoint_tokenizer
    from scoremode.errors import ScoremodeError
    from scoremode.schemes.summary import summarize

    checkpoint = open_checkpoint(model, revision)
    config = checkpoint.text_config
    refusals: list[str] = []
    summary: dict[str, Any] = {}
    try:
        found = summarize(checkpoint)
        summary = found.to_json()
        refusals = list(found.refusals.values())
    except ScoremodeError as error:
        refusals = [str(error)]
    if not checkpoint.config.get("model_type"):
        refusals.append(f"{checkpoint.path / 'config.json'}: no model_type")
    try:
        vocabulary = checkpoint_tokenizer(tokenizer or model, revision).size
        tokenizer_problem = None
    except ScoremodeError as error:
        vocabulary, tokenizer_problem = None, str(error)
    return {
        "source": checkpoint.source,
        "architectures": checkpoint.config.get("architectures") or [],
        "model_type": checkpoint.config.get("model_type"),
        "layers": config.get("num_hidden_layers") or config.get("n_layer"),
        "hidden_size": config.get("hidden_size") or config.get("n_embd"),
        "positions": positions_of(config),
        "dtype": config.get("dtype") or config.get("torch_dtype"),
        "vocabulary": {"config": config.get("vocab_size"), "tokenizer": vocabulary},
        "tokenizer_problem": tokenizer_problem,
        "shards": len(checkpoint.shards),
        **summary,
        "arithmetic": None if refusals else "weights",
        "refusals": refusals,
    }

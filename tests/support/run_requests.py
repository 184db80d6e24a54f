"""Requests that tests make."""

from dataclasses import replace
from pathlib import Path

from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.request import Request
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset


def request(model: Path, text: str, output: Path, **more) -> Request:
    plain = Request(
        model=str(model),
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=64),
        options=TorchOptions(device="cpu", dtype="bfloat16", batch_windows=4, max_memory=2_000_000),
        output=output,
    )
    return replace(plain, **more)

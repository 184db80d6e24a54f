"""Sweeps of the demo's model, for several tests."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.request import Request
from scoremode.runs.sweep.manifest import SweepRequest
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset


@dataclass(frozen=True)
class Apart(TorchOptions):
    """An engine whose models want a process each, as vLLM's."""

    runs_beside: ClassVar[bool] = False


OPTIONS = TorchOptions(device="cpu", dtype="float32", batch_windows=2)


def pair(base: Path, text: str, context_length: int = 64, options=OPTIONS) -> Request:
    return Request(
        model="",
        corpus=from_string(text),
        protocol=preset("disjoint").override(context_length=context_length),
        options=options,
        output=Path(),
        reference=str(base),
    )


def sweep_request(output: Path, models, *pairs: Request) -> SweepRequest:
    return SweepRequest(tuple(map(str, models)), pairs, output, ("scoremode", "kld"))


def scores_of(folder: Path) -> bytes:
    return (folder / "scores.parquet").read_bytes()


def single(request: Request, model: Path, output: Path, **changes) -> Request:
    return replace(request, model=str(model), output=output, **changes)

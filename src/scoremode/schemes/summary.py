"""A checkpoint in numbers: formats by module group, parameters, bits per weight; headers only."""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.header import DTYPE_BITS, FLOATS
from scoremode.errors import ScoremodeError, UnsupportedFormat
from scoremode.schemes.resolve import resolve

__all__ = ["FormatSummary", "Summary", "stored_summary", "summarize"]

# Not part of the body: embeddings, heads and routers, which most recipes leave alone.
_NOT_BODY = re.compile(
    r"(^|\.)(embed\w*|wte|wpe|word_embeddings\w*|lm_head|embed_out|gate|router)(\.|$)"
)


@dataclass
class FormatSummary:
    """All modules of one format: how many, their logical parameters, their stored bytes."""

    modules: int = 0
    parameters: int = 0
    bytes: int = 0
    example: str = ""
    kinds: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Summary:
    """What a checkpoint holds.

    - `body_bits`: stored bits per logical weight of the matrices outside embeddings, head and
      routers, scales and zero points included (W4A16 g128: 4.125). None without such matrices.
    - `file_bits`: all bytes of the weight files over all logical parameters.
    - `refusals`: module → why it can't be decoded.
    """

    parameters: int
    bytes: int
    body_bits: float | None
    file_bits: float
    formats: dict[str, FormatSummary]
    refusals: dict[str, str]
    kv_cache: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "bytes": self.bytes,
            "gib": round(self.bytes / 2**30, 4),
            "bits_per_weight": {"body": self.body_bits, "file": self.file_bits},
            "formats": {
                label: {
                    "modules": f.modules,
                    "parameters": f.parameters,
                    "bytes": f.bytes,
                    "kinds": dict(f.kinds),
                }
                for label, f in self.formats.items()
            },
            "kv_cache_declared": self.kv_cache,
        }


def summarize(checkpoint: Checkpoint) -> Summary:
    """Raises CheckpointError where `quantization_config` itself can't be read; modules that can't
    be decoded are listed as refusals."""
    refused: dict[str, ScoremodeError] = {}
    schemes = resolve(checkpoint, refused)
    formats: dict[str, FormatSummary] = defaultdict(FormatSummary)
    parameters = body_stored = body_logical = 0
    seen: set[str] = set()
    for module, scheme in schemes.quantized.items():
        names = [f"{module}.{suffix}" for suffix in scheme.tensors]
        stored = sum(checkpoint.tensors[n].bytes for n in names)
        logical = math.prod(scheme.shape)
        # Scales of the input are stored too; they are no part of the weight.
        inputs = scheme.inputs.tensors if scheme.inputs else ()
        seen |= {*names, *(f"{module}.{s}" for s in (*inputs, "weight_shape", "input_zero_point"))}
        _add(formats[scheme.label], module, logical, stored)
        parameters += logical
        if not _NOT_BODY.search(module):
            body_stored, body_logical = body_stored + 8 * stored, body_logical + logical
    for name, info in checkpoint.tensors.items():
        module = name.rpartition(".")[0]
        if name in seen or module in refused:
            continue
        parameters += info.elements
        if len(info.shape) < 2 or info.dtype not in FLOATS:
            continue
        _add(formats[info.dtype.lower()], module, info.elements, info.bytes)
        if not _NOT_BODY.search(module):
            body_stored += info.elements * DTYPE_BITS[info.dtype]
            body_logical += info.elements
    return Summary(
        parameters=parameters,
        bytes=checkpoint.bytes,
        body_bits=body_stored / body_logical if body_logical else None,
        file_bits=8 * checkpoint.bytes / parameters if parameters else 0.0,
        formats=dict(formats),
        refusals={module: str(error) for module, error in refused.items()},
        kv_cache=str(schemes.config.kv_cache)
        if schemes.config and schemes.config.kv_cache
        else None,
    )


def stored_summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """`Summary.to_json` for an engine that decodes for itself.

    Where a format is not one of ours, its logical weights can't be counted: parameters and bits per
    weight are None, and the format has its config's name and the bytes it takes.
    """
    try:
        summary = summarize(checkpoint)
        if not summary.refusals:
            return summary.to_json()
        why = next(iter(summary.refusals.values()))
    except UnsupportedFormat as error:
        why = str(error)
    config = checkpoint.quantization or {}
    words = [config.get("quant_method"), config.get("format") or config.get("quant_algo")]
    label = " ".join(str(word) for word in words if word) or "unknown format"
    return {
        "parameters": None,
        "bytes": checkpoint.bytes,
        "gib": round(checkpoint.bytes / 2**30, 4),
        "bits_per_weight": {"body": None, "file": None},
        "formats": {label: {"bytes": checkpoint.bytes}},
        "not_decoded": why,
        "kv_cache_declared": str(config["kv_cache_scheme"])
        if config.get("kv_cache_scheme")
        else None,
    }


def _add(summary: FormatSummary, module: str, parameters: int, stored: int) -> None:
    summary.modules += 1
    summary.parameters += parameters
    summary.bytes += stored
    summary.example = summary.example or module
    summary.kinds[module.rpartition(".")[2]] += 1

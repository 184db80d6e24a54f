"""A checkpoint in numbers: formats by module group, parameters, bits per weight; headers only."""

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import DTYPE_BITS, FLOATS
from scoremode.checkpoint.virtual import Unread
from scoremode.errors import ScoremodeError, UnsupportedFormat
from scoremode.schemes.base import Scheme, Scratch
from scoremode.schemes.fused_experts import input_tensors
from scoremode.schemes.resolve import Schemes, resolve

# Not part of the body: embeddings, heads and routers, which most recipes leave alone.
_NOT_BODY = re.compile(
    r"(^|\.)(embed\w*|wte|wpe|word_embeddings\w*|lm_head|embed_out|gate|router)(\.|$)"
)
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out)$")


# An expert's part of a module's name: `experts.17.up_proj`.
_EXPERT = re.compile(r"(?:^|\.)([^.]*experts?[^.]*(?:\..+)?)$")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass
class FormatSummary:
    """All modules of one format: how many, their logical parameters, their stored bytes.

    - `kinds`: modules by their last name, experts under one; `groups`: by the config's group.
    - `schemes`: the distinct Schemes, with the number of modules of each; none of dense ones.
    """

    modules: int = 0
    parameters: int = 0
    bytes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)
    schemes: Counter[Scheme] = field(default_factory=Counter)

    @property
    def bits(self) -> float:
        """Stored bits of a weight, scales and zero points included."""
        return 8 * self.bytes / self.parameters if self.parameters else 0.0


@dataclass(frozen=True)
class Summary:
    """A summary of what a checkpoint holds.

    - `body_bits`: stored bits per logical weight of the matrices outside embeddings, head and
      routers, scales and zero points included (W4A16 g128: 4.125). None without such matrices.
    - `file_bits`: all bytes of the weight files over all logical parameters, those of a head that is
      tied to the embedding once.
    - `refusals`: module → why it can't be decoded.
    - `quantized`: parameters that are quantized.
    """

    parameters: int
    quantized: int
    bytes: int
    body_bits: float | None
    file_bits: float
    formats: dict[str, FormatSummary]
    refusals: dict[str, str]
    kv_cache: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "parameters": self.parameters,
            "quantized_parameters": self.quantized,
            "bytes": self.bytes,
            "gib": round(self.bytes / 2**30, 4),
            "bits_per_weight": {"body": self.body_bits, "file": self.file_bits},
            "formats": {
                label: {
                    "modules": f.modules,
                    "parameters": f.parameters,
                    "bytes": f.bytes,
                    "bits_per_weight": f.bits,
                    "kinds": dict(f.kinds),
                    "groups": dict(f.groups),
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
    is_tied = tied_embeddings(checkpoint)

    def is_twin(module: str) -> bool:
        # A tied head that is stored apart all the same, as EXL3 does, adds bytes and no parameters.
        return is_tied is True and _HEAD.search(module) is not None

    # One for each scheme that modules share: hashing one takes longer than all that is counted.
    counts: Counter[int] = Counter()
    tensors_of = weight_tensors(checkpoint, schemes)
    shared: dict[int, FormatSummary] = {}
    for module, scheme in schemes.quantized.items():
        if id(scheme) not in shared:
            shared[id(scheme)] = formats[scheme.label]
        found, logical = shared[id(scheme)], math.prod(scheme.shape)
        stored = sum(checkpoint.tensors[name].bytes for name in tensors_of[module])
        _add(found, module, logical, stored)
        found.groups[schemes.groups[module]] += 1
        counts[id(scheme)] += 1
        if not is_twin(module):
            parameters += logical
        if not _NOT_BODY.search(module):
            body_stored, body_logical = body_stored + 8 * stored, body_logical + logical
    for scheme in {id(s): s for s in schemes.quantized.values()}.values():
        formats[scheme.label].schemes[scheme] += counts[id(scheme)]
    quantized = parameters
    for name, info in checkpoint.tensors.items():
        module, suffix = schemes.split(name)
        # A quantized module's own is counted above.
        if module in refused or (module in schemes.quantized and suffix != "bias"):
            continue
        if not is_twin(module):
            parameters += info.elements
        # Biases of experts that are stored as one have two dimensions, and are no matrix.
        if len(info.shape) < 2 or info.dtype not in FLOATS or name.endswith("bias"):
            continue
        _add(formats[info.dtype.lower()], module, info.elements, info.bytes)
        if not _NOT_BODY.search(module):
            body_stored += info.elements * DTYPE_BITS[info.dtype]
            body_logical += info.elements
    return Summary(
        parameters=parameters,
        quantized=quantized,
        bytes=checkpoint.bytes,
        body_bits=body_stored / body_logical if body_logical else None,
        file_bits=8 * checkpoint.bytes / parameters if parameters else 0.0,
        formats=dict(formats),
        refusals={module: str(error) for module, error in refused.items()},
        kv_cache=schemes.config.kv_cache.described
        if schemes.config and schemes.config.kv_cache
        else None,
    )


def tied_embeddings(checkpoint: Checkpoint) -> bool | None:
    """Tells whether the config ties the embedding to the head; None where it doesn't say."""
    parts = (checkpoint.text_config, checkpoint.config)
    found = (part.get("tie_word_embeddings") for part in parts)
    return next((tied for tied in found if isinstance(tied, bool)), None)


def weight_tensors(checkpoint: Checkpoint, schemes: Schemes) -> dict[str, list[str]]:
    """The names of the tensors that each quantized module's weight is stored in, by module.

    Whatever counts a weight's bytes sums up these. They include what no decoder reads, such as GPTQ's
    `g_idx` of groups in a plain order and its constant zero points, and leave out biases and what
    belongs to inputs.
    """
    known = {"bias", "weight_shape", "input_zero_point", *schemes.records}
    others = {
        id(scheme): {*input_tensors(scheme).values(), *known}
        for scheme in schemes.quantized.values()
    }
    found: dict[str, list[str]] = {module: [] for module in schemes.quantized}
    for name in checkpoint.tensors:
        module, suffix = schemes.split(name)
        scheme = schemes.quantized.get(module)
        if scheme is not None and suffix not in others[id(scheme)]:
            found[module].append(name)
    return found


def not_finite(checkpoint: Checkpoint) -> str | None:
    """The first stored tensor with a value that is not finite, or the first module whose weight decodes
    to one; None where there is none. Reads all weights, one at a time. Raises CheckpointError."""
    import torch

    schemes, scratch = resolve(checkpoint), Scratch()
    for name, info in checkpoint.tensors.items():
        if info.dtype in FLOATS and not checkpoint.read(name).isfinite().all():
            return f"{info.file}: tensor {name} has values that are not finite"
    for module, scheme in schemes.quantized.items():
        home = schemes.home_of(module)
        names = {suffix: f"{home}.{suffix}" for suffix in scheme.tensors}
        out = torch.empty(tuple(scheme.shape), dtype=torch.float32)
        scheme.decode({s: checkpoint.read(n) for s, n in names.items()}, out, scratch)
        if not out.isfinite().all():
            listed = ", ".join(names.values())
            return (
                f"{checkpoint.path}: the weight of {listed} decodes to values that are not finite"
            )
    return None


def stored_summary(checkpoint: Checkpoint) -> dict[str, Any]:
    """`Summary.to_json` for an engine that decodes for itself.

    Where a format is not one of ours, its logical weights can't be counted: parameters and bits per
    weight are None, and the format has its config's name and the bytes it takes.
    """
    if isinstance(checkpoint, Unread):
        return checkpoint.summary()
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
    # A module of MLX's experts is named after their parameter.
    module = module.removesuffix(".weight")
    summary.modules += 1
    summary.parameters += parameters
    summary.bytes += stored
    expert = _EXPERT.search(module) if "expert" in module else None
    summary.kinds[_NUMBER.sub(".*", expert[1]) if expert else module.rpartition(".")[2]] += 1

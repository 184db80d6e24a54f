"""`scoremode inspect`: what a checkpoint holds, from its headers, and what would run here."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scoremode.cli.command import Command, Found, model_of, named_model, reads_model
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.spec.flag import Flag, Name
from scoremode.spec.run import Form, Model

if TYPE_CHECKING:
    from scoremode.checkpoint.files import Checkpoint
    from scoremode.checkpoint.model_files import ModelFiles
    from scoremode.engines.torch.device import Device
    from scoremode.schemes.summary import FormatSummary, Summary

__all__ = ["Inspect", "inspect", "inspect_config"]

_NOT_COUNTED = {
    "parameters": None,
    "quantized_parameters": None,
    "bits_per_weight": {"body": None, "file": None},
}


class Inspect(Model, Command):
    called = "inspect"
    summary = "show formats, bits per weight and what would run"
    about = (
        "Prints a checkpoint's formats and sizes, and whether it would run here, from its "
        "headers alone: no weights are read."
    )
    examples = (
        "scoremode inspect QUANT.gguf",
        "scoremode inspect org/model --format json",
        "scoremode inspect --config config.json",
    )
    config: Name = Flag(
        "inspect a config.json alone, or ModelOpt's hf_quant_config.json, instead of MODEL", "FILE"
    )
    device: Name = Flag("inspect for cpu, cuda or cuda:1 (default: cuda if there is one)")
    form = Form("all that is known")

    def found(self, session: Session) -> Found:
        from scoremode.report.inspection import inspect_document

        if self.config is not None:
            if named := named_model(self):
                raise UsageError(f"MODEL {named} and --config {self.config}: give one of them")
            model = self.config
        else:
            model = model_of(self)
        reads_model(session, model)
        session.clock.begin("import")
        # Seconds, for which the model's files are not to blame.
        import scoremode.schemes.summary  # noqa: F401

        session.clock.begin("open")
        if self.config is not None:
            value = inspect_config(self.config, self.tokenizer, self.device)
        else:
            value = inspect(model, self.revision, self.tokenizer, self.device)
        return Found(value, inspect_document, 0 if value["runs"]["possible"] else 1)


def inspect_config(
    file: str, tokenizer: str | None = None, device_name: str | None = None
) -> dict[str, Any]:
    """`inspect` of a checkpoint that has nothing but the config in `file`, with `by_config`: what is
    taken for it that only tensors tell.

    Raises CheckpointError, UsageError.
    """
    from scoremode.checkpoint.files import opened_config
    from scoremode.engines.torch.device import choose_device
    from scoremode.engines.torch.model.from_config import checkpoint_by_config
    from scoremode.errors import ScoremodeError
    from scoremode.schemes.resolve import library_of

    device = choose_device(device_name, None, None)
    with opened_config(file) as (checkpoint, shown):
        untold, problem = None, None
        try:
            library = library_of(checkpoint)
            checkpoint = checkpoint_by_config(checkpoint)
            if library is not None:
                untold = library.untold_by(checkpoint.quantization or {})
        except ScoremodeError as error:
            problem = str(error)
        value = _inspected(checkpoint, tokenizer, device, builds=True, problem=problem)
        if value["parameters"] is None:
            untold = None
        elif value["dtype"] is None:
            dtype = "the dtype (taken for it: bfloat16)"
            untold = f"{dtype}, {untold}" if untold else dtype
        return shown(value | {"weight_files": 0, "by_config": {"untold": untold}})


def inspect(
    model: str,
    revision: str | None = None,
    tokenizer: str | None = None,
    device_name: str | None = None,
    *,
    builds: bool = True,
) -> dict[str, Any]:
    """Everything the table shows, as plain values; without `builds` by headers and config alone, and
    then nothing is known to run.

    Raises CheckpointError, UsageError.
    """
    from scoremode.checkpoint.files import open_checkpoint
    from scoremode.checkpoint.model_files import resolve_model
    from scoremode.engines.torch.device import choose_device

    files = resolve_model(model, revision)
    checkpoint = open_checkpoint(files)
    device = choose_device(device_name, None, None)
    return _inspected(checkpoint, tokenizer or files, device, builds=builds)


def _inspected(
    checkpoint: "Checkpoint",
    tokenizer: "str | ModelFiles | None",
    device: "Device",
    *,
    builds: bool,
    problem: str | None = None,
) -> dict[str, Any]:
    """`inspect` of a checkpoint; `problem`: why it has no tensors."""
    from scoremode.checkpoint.config import positions_of
    from scoremode.checkpoint.tokenizer import checkpoint_tokenizer
    from scoremode.engines.torch.builder import refusal_of
    from scoremode.engines.torch.device import choose_dtype
    from scoremode.engines.torch.model.architecture import find_architecture, no_model_type
    from scoremode.errors import ScoremodeError, UnsupportedModel
    from scoremode.schemes.summary import summarize, tied_embeddings

    config = checkpoint.text_config
    refusals: list[dict[str, Any]] = []
    summary: Summary | None = None
    computed_by: dict[str, str | None] | None = None
    try:
        if problem is None:
            summary = summarize(checkpoint)
            refusals = _grouped(summary.refusals)
        else:
            refusals.append(_refusal(problem))
    except ScoremodeError as error:
        refusals.append(_refusal(str(error)))
    if not isinstance(checkpoint.config.get("model_type"), str):
        if str(error := no_model_type(checkpoint)) != problem:
            refusals.append(_refusal(str(error)))
    else:
        try:
            found = find_architecture(checkpoint, trust_remote_code=False)
            computed_by = {"class": found.class_name, "text_alone": found.text_alone}
        except UnsupportedModel as error:
            if str(error) != problem:
                refusals.append(_refusal(str(error)))
    compute_dtype = None
    try:
        compute_dtype = str(choose_dtype("auto", checkpoint, device)).removeprefix("torch.")
    except ScoremodeError as error:
        refusals.append(_refusal(str(error)))
    vocabulary, tokenizer_problem = None, None
    try:
        if tokenizer is not None:
            vocabulary = checkpoint_tokenizer(tokenizer).size
    except ScoremodeError as error:
        tokenizer_problem = str(error)
    reason = "; ".join(r["reason"] for r in refusals[:1])
    if builds and not reason:
        reason = refusal_of(checkpoint, device)
    architectures = checkpoint.config.get("architectures")
    return {
        "source": checkpoint.source,
        "architectures": [a for a in architectures if isinstance(a, str)]
        if isinstance(architectures, list)
        else [],
        "model_type": _first(str, checkpoint.config, "model_type"),
        "computed_by": computed_by,
        "layers": _first(int, config, "num_hidden_layers", "n_layer"),
        "hidden_size": _first(int, config, "hidden_size", "n_embd"),
        "positions": positions_of(config),
        "dtype": _first(str, config, "dtype", "torch_dtype")
        or _first(str, checkpoint.config, "dtype", "torch_dtype"),
        "tied_embeddings": tied_embeddings(checkpoint),
        "vocabulary": _vocabulary(checkpoint, summary, vocabulary),
        "tokenizer_problem": tokenizer_problem,
        "weight_files": len(checkpoint.weight_files),
        **(_sizes(checkpoint) if summary is None else _summary(summary, device)),
        "device": device.name,
        "compute_dtype": compute_dtype,
        "arithmetic": None if refusals or summary is None else _arithmetic(summary),
        "refusals": refusals,
        "runs": {"possible": builds and not reason, "reason": reason or None},
        "by_config": None,
    }


def _sizes(checkpoint: "Checkpoint") -> dict[str, Any]:
    """A summary's keys where the config can't be read."""
    size = checkpoint.bytes
    files = {"bytes": size, "gib": round(size / 2**30, 4)}
    return {**_NOT_COUNTED, **files, "formats": {}, "kv_cache_declared": None}


def _summary(summary: "Summary", device: "Device") -> dict[str, Any]:
    value = summary.to_json()
    if summary.refusals:
        # What can't be decoded can't be counted, and the rest alone would pass for the whole.
        value |= _NOT_COUNTED
    for label, found in summary.formats.items():
        inputs = sorted({s.inputs.label for s in found.schemes if s.inputs and s.inputs.declared})
        value["formats"][label] |= {
            "inputs": ", ".join(inputs) or None,
            "runs": _runs(found, device),
        }
    return value


def _runs(found: "FormatSummary", device: "Device") -> list[dict[str, Any]]:
    """The modules of a format by what would multiply them, as the checkpoint declares it."""
    from scoremode.engines.torch.matmul.products import choose_product
    from scoremode.schemes.base import FactoredScheme
    from scoremode.schemes.fused_experts import Stacked

    counts: Counter[tuple[str, str | None, bool | None]] = Counter()
    for scheme, modules in found.schemes.items():
        if scheme.inputs is None or not scheme.inputs.declared:
            counts["weights", None, None] += modules
            continue
        linear = scheme.one if isinstance(scheme, Stacked) else scheme
        assert isinstance(linear, FactoredScheme)
        rows, columns = linear.shape
        product = choose_product(scheme.inputs.codes, linear.codes, (rows, columns), device)
        counts["weights+activations", product.name, product.native] += modules
    names = ("arithmetic", "product", "native", "modules")
    return [dict(zip(names, (*key, modules), strict=True)) for key, modules in counts.items()]


def _arithmetic(summary: "Summary") -> str:
    """Returns what `--arithmetic auto` is: activations are quantized where the checkpoint says so."""
    inputs = [s.inputs for found in summary.formats.values() for s in found.schemes]
    return "weights+activations" if any(i and i.declared for i in inputs) else "weights"


def _vocabulary(
    checkpoint: "Checkpoint", summary: "Summary | None", tokenizer: int | None
) -> dict[str, Any]:
    """Sizes of the vocabulary by the config, the tokenizer and the head, and how they differ."""
    from scoremode.checkpoint.safetensors_files import FLOATS

    config = _first(int, checkpoint.text_config, "vocab_size")
    ends = ("lm_head.weight", "embed_out.weight", "embed_tokens.weight", "wte.weight")
    head = None
    for end in ends:
        # Codes may lie transposed, or be a run of bytes.
        rows = {
            t.shape[0]
            for n, t in checkpoint.tensors.items()
            if n.endswith(end) and t.shape and t.dtype in FLOATS
        }
        if len(rows) == 1:
            (head,) = rows
            break
    size = config or head
    note = None
    if tokenizer is not None and size is not None and tokenizer != size:
        if tokenizer < size:
            note = f"the head has {size - tokenizer:,} entries that no token has (padding)"
        else:
            note = f"{tokenizer - size:,} tokens lie beyond the head and can't be scored"
    return {"config": config, "tokenizer": tokenizer, "head": head, "note": note}


def _grouped(refused: Mapping[str, str]) -> list[dict[str, Any]]:
    """Refusals that differ in nothing but the module's name, as one: the first, and how many."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for module, reason in refused.items():
        alike = re.sub(r"\S*\.safetensors: ", "", reason.replace(module, "*"))
        first.setdefault(alike, reason)
        counts[alike] += 1
    return [{"reason": first[a], "modules": n} for a, n in counts.most_common()]


def _refusal(reason: str) -> dict[str, Any]:
    return {"reason": reason, "modules": None}


def _first(kind: type, config: Mapping[str, Any], *names: str) -> Any:
    """The first of these fields that has a value of that type."""
    return next((config[n] for n in names if type(config.get(n)) is kind), None)

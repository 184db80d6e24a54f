"""A sweep's dry run: which runs it would make, from where, how many bytes, how long; nothing is run.

Headers are read and texts are planned for models that lie here, in a folder or the hub's cache; of the
others the hub is asked for their sizes. Weights are not hashed, so a run counts as done by its headers,
and by the options that are given.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import UNSET

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.gguf.header import parts_of
from scoremode.checkpoint.gguf.names import choose, named_gguf
from scoremode.checkpoint.model_files import ModelFiles, resolve_model
from scoremode.errors import CheckpointError, RunFolderError, ScoremodeError, line_of, words_of
from scoremode.reference.address import pending
from scoremode.reference.stored import StoredReference, is_run
from scoremode.results.folders.store import find_runs
from scoremode.results.labels import Named
from scoremode.results.record.checks import check_record
from scoremode.results.record.definition import Done, Record
from scoremode.results.record.sections import versions
from scoremode.runs.baselines import is_logits_file
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request
from scoremode.runs.sweep.manifest import SweepRequest, labels_in, titles
from scoremode.runs.sweep.sweep import all_models
from scoremode.schemes.summary import summarize


def foresee(request: SweepRequest) -> dict[str, Any]:
    """The sweep's `rows`, a model under a text and protocol each, and sums of what is to be done.

    - `pairs`: the text and protocol that a row's `pair` is an index of.
    - `state`: `done`, `to resume`, `to run`, or `failed` where it can't be opened, with an `error`.
    - `source`: `here`, `hub cache`, `hub`, `run`; `bytes`: to read; `download`: those from the hub.
    - `seconds`: by what earlier runs in the folder took for as many tokens; None where there is none.

    Raises ScoremodeError for names that mean nothing.
    """
    first = request.pairs[0]
    base = str(first.reference)
    models = all_models(request.models, first.revision)
    records = _readable(request.output) if request.output.is_dir() else []
    rows = []
    of_base = 0
    if is_run(Path(base)):
        of_base = max(_pending(pair) for pair in request.pairs)
    elif not is_logits_file(Path(base)):
        rows += _rows(base, first.reference_revision, request, records, is_base=True)
    for model in models:
        rows += _rows(model, first.revision, request, records, is_base=False)
    labels = dict(zip(models, labels_in(request, models), strict=True))
    rows = [
        {"label": Named.typed(base).name if row["is_base"] else labels[row["model"]], **row}
        for row in rows
    ]
    left = [row for row in rows if row["state"] in ("to run", "to resume")]
    seconds = [row["seconds"] for row in left]
    # A model's weights are read once for all that is left of it.
    read = {(row["model"], row["is_base"]): row for row in left}.values()
    return {
        "output": str(request.output),
        "rows": rows,
        "pairs": titles(request.pairs),
        "to_run": len(left),
        "bytes": sum(row["bytes"] or 0 for row in read),
        "download": sum(row["download"] or 0 for row in read) + of_base,
        "seconds": None if None in seconds else sum(seconds),
    }


def _pending(pair: Request) -> int:
    """Bytes that are fetched of a pair's kept base."""
    stored = StoredReference(Path(str(pair.reference)))
    if stored.address is None:
        return 0
    return pending(stored, stored.plan().begun(pair.protocol.whole()).scored)


def _rows(
    model: str,
    revision: str | None,
    request: SweepRequest,
    records: list[Record],
    *,
    is_base: bool,
) -> list[dict[str, Any]]:
    """A model's rows, one for each pair."""
    row: dict[str, Any] = {"model": model, "is_base": is_base, "source": "here", "bytes": None}
    row |= {"state": "to run", "download": None, "seconds": None, "error": None}
    pairs = range(len(request.pairs))
    if not is_base and is_run(Path(model)):
        return [row | {"pair": pair, "state": "done", "source": "run"} for pair in pairs]
    is_here = Path(model).exists()
    try:
        if not is_here:
            row["source"] = "hub cache"
        with cached_only(not is_here):
            files = resolve_model(model, revision)
            code = request.pairs[0].options.trust_remote_code
            checkpoint = open_checkpoint(files, code=code)
    # Not hidden: it may be on the hub, and else the row has the line.
    except Exception as error:  # noqa: BLE001
        if not is_here and (model.count("/") == 1 or named_gguf(model)):
            row |= _on_hub(model, revision)
        else:
            row |= {"state": "failed", "error": line_of(error)}
        return [row | {"pair": pair} for pair in pairs]
    row["bytes"] = checkpoint.bytes
    # An engine that takes no mixture doesn't decode by our Schemes: vLLM says itself what it can't.
    if request.pairs[0].options.mixes and (why := _undecodable(checkpoint)):
        return [row | {"pair": pair, "state": "failed", "error": why} for pair in pairs]
    return [
        row | {"pair": n} | _foreseen(files, checkpoint, pair, records, is_base=is_base)
        for n, pair in enumerate(request.pairs)
    ]


def _undecodable(checkpoint: Checkpoint) -> str | None:
    """The reason why weights with these headers can't be decoded; None where they can."""
    try:
        refusals = summarize(checkpoint).refusals
    except ScoremodeError as error:
        return str(error)
    return next(iter(refusals.values()), None)


def _on_hub(model: str, revision: str | None) -> dict[str, Any]:
    try:
        size = hub_bytes(model, revision)
    except ScoremodeError as error:
        return {"state": "failed", "error": line_of(error), "source": "hub"}
    return {"source": "hub", "bytes": size, "download": size}


def _foreseen(
    files: ModelFiles,
    checkpoint: Checkpoint,
    pair: Request,
    records: list[Record],
    *,
    is_base: bool,
) -> dict[str, Any]:
    """The state of one run, and its seconds by the rate of earlier ones."""
    try:
        planned = plan_request(replace(pair, model=files), checkpoint)
    # Not hidden: the row has the line.
    except Exception as error:  # noqa: BLE001
        return {"state": "failed", "error": line_of(error)}
    tokens = int(planned.plan.lengths.sum())
    seconds = _seconds(tokens, records, is_base=is_base)
    for status, state in (("done", "done"), ("running", "to resume")):
        for record in records:
            if (
                record.status == status
                and _is_of(record, checkpoint, planned.plan.sha256, is_base=is_base)
                and _is_as_asked(record.document["identity"], pair, is_base=is_base)
            ):
                return {"state": state, "seconds": 0.0 if state == "done" else seconds}
    return {"seconds": seconds}


def _readable(output: Path) -> list[Record]:
    """The records of the runs in `output` that can be read."""
    found = []
    for folder, document in find_runs(output):
        with suppress(RunFolderError):
            found.append(check_record(document, folder))
    return found


def _is_of(record: Record, checkpoint: Checkpoint, plan: str, *, is_base: bool) -> bool:
    identity = record.identity
    return (
        identity is not UNSET
        and bool(identity.keep) == is_base
        and bool(identity.reference) != is_base
        and identity.checkpoint == checkpoint.fingerprint
        and identity.plan == plan
        and record.checkpoint.path == checkpoint.place
    )


def _is_as_asked(identity: Mapping[str, Any], request: Request, *, is_base: bool) -> bool:
    """Tells whether a run was made with what the request says, as far as that needs no engine: what it
    leaves to the engine may turn out otherwise."""
    made, options = identity.get("engine") or {}, request.options
    if identity.get("versions") != versions():
        return False
    for name in ("dtype", "arithmetic", "attention", "batch_windows"):
        wanted = getattr(options, name, None)
        # A base is of the arithmetic that it has, whatever is asked of its quants.
        if name == "arithmetic" and is_base:
            continue
        if wanted not in (None, "auto") and made.get(name) != wanted:
            return False
    if is_base:
        return True
    asked = {"full": request.full, "draft": request.draft, "noise_floor": request.noise_floor}
    is_told = identity.get("token_text", False) == request.token_text
    return is_told and {name: identity.get(name) for name in asked} == asked


def _seconds(tokens: int, records: list[Record], *, is_base: bool) -> float | None:
    """Seconds for so many window tokens, by finished runs of the same kind; None without any."""
    rates = []
    for record in records:
        is_kind = record.kept if is_base else record.reference
        if isinstance(record, Done) and is_kind and record.engine.tokens:
            rates.append(record.seconds["total"] / record.engine.tokens)
    return tokens * sum(rates) / len(rates) if rates else None


@contextmanager
def cached_only(wanted: bool = True) -> Iterator[None]:
    """Has the hub's client fetch nothing in the block, if that is wanted: its cache alone answers."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def hub_bytes(model: str, revision: str | None) -> int:
    """Bytes of the weight files that a run would fetch. Raises CheckpointError."""
    from huggingface_hub import HfApi, constants

    from scoremode.lib.hub import hub_call

    repo, wanted = named_gguf(model) or (model, None)
    try:
        ask = partial(HfApi().model_info, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        info = hub_call(partial(ask, repo, revision=revision, files_metadata=True))
    except OSError as error:
        raise CheckpointError(
            f"{repo}: not to be had from the hub ({words_of(error, named=False)})"
        ) from None
    sizes = {s.rfilename: s.size or 0 for s in info.siblings or ()}
    tensors = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    if wanted is None and tensors:
        return sum(sizes[name] for name in tensors)
    first = choose(repo, sizes, wanted)
    folder, slash, name = first.rpartition("/")
    return sum(sizes.get(f"{folder}{slash}{part}", 0) for part in parts_of(name))

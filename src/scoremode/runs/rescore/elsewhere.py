"""A second run in another environment's Python: the job goes there, and the Scores come back, as files.

The plan's windows are handed over as arrays, not as a text to be cut again, so both installations score
the same token ids whatever their tokenizers' versions. The folder of both is a temporary one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from scoremode.checkpoint.model_files import ModelFiles
from scoremode.engines.base import Options
from scoremode.engines.kv_formats import KvCache
from scoremode.engines.torch.options import TorchOptions
from scoremode.engines.vllm.options import VllmOptions
from scoremode.lib.interpreters import Interpreter, run_elsewhere
from scoremode.results.folders.store import SCORES, read_columns
from scoremode.results.folders.tables import write_table
from scoremode.results.scores import check
from scoremode.runs.rescore.rescore import Job, Rescored, run_job
from scoremode.text.plan import Plan
from scoremode.text.protocol import Protocol

_JOB, _PLAN = "job.json", "plan.npz"
_OPTIONS: dict[str, type[TorchOptions | VllmOptions]] = {
    "torch": TorchOptions,
    "vllm": VllmOptions,
}
# Of a plan the arrays that there are, and its other fields; labels, and what it is a part of, score
# nothing.
_ARRAYS = ("tokens", "start", "stop", "first", "drawn_weights", "counted", "conversation")
_NUMBERS = ("window_bos", "stream_bos")


def rescore_elsewhere(
    label: str,
    job: Job,
    interpreter: Interpreter,
    environment: Mapping[str, str] | None = None,
    *,
    receive: Callable[[Sequence[Any]], None] = lambda _: None,
) -> Rescored:
    """Runs the job in a process of another interpreter, as `rescore_apart` does in one of this.

    `environment`: variables that it has beside this process's. Raises ScoremodeError with `label` in
    front, and InvalidMeasurement for Scores that contradict the plan or themselves.
    """
    with TemporaryDirectory(prefix="scoremode-") as name:
        folder, work = Path(name), f"{__name__}:answer_job"
        write_job(folder, job)
        told = run_elsewhere(
            label, interpreter, work, name, environment=environment, receive=receive
        )
        scores, _ = read_columns(folder / SCORES, told["sha256"], job.plan.scored)
    check(scores, job.plan, range(len(job.plan)))
    return Rescored(scores, told["engine"])


def answer_job(send: Callable[[Any], None], name: str) -> dict[str, Any]:
    """Does, in the other interpreter, the job in the folder `name`, and leaves its Scores there.

    Returns the description of the `engine`, and the Scores' `sha256`.
    """
    import pyarrow as pa

    found = run_job(send, read_job(Path(name)))
    made = write_table(Path(name, SCORES), pa.table(found.scores.columns()))
    return {"engine": found.engine, "sha256": made["sha256"]}


def write_job(folder: Path, job: Job) -> None:
    """Writes a job into a folder, for `read_job`."""
    plan, options = job.plan, job.options
    (engine,) = (name for name, kind in _OPTIONS.items() if isinstance(options, kind))
    model = asdict(job.model) | {"path": str(job.model.path)}
    said = {
        "model": model,
        "fingerprint": job.fingerprint,
        "engine": engine,
        "options": msgspec.to_builtins(options),
        "protocol": asdict(plan.protocol),
        "plan": {name: getattr(plan, name) for name in _NUMBERS},
        "vocabulary": job.vocabulary,
        "reference": None if job.reference is None else str(job.reference),
    }
    (folder / _JOB).write_text(json.dumps(said), encoding="utf-8")
    arrays = {name: a for name in _ARRAYS if (a := getattr(plan, name)) is not None}
    np.savez(folder / _PLAN, allow_pickle=False, **arrays)


def read_job(folder: Path) -> Job:
    """The job that `write_job` wrote."""
    said = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    with np.load(folder / _PLAN, allow_pickle=False) as arrays:
        columns = {name: arrays[name] for name in arrays.files}
    fields = dict(said["options"])
    if isinstance(fields.get("kv_cache"), dict):
        fields["kv_cache"] = msgspec.convert(fields["kv_cache"], KvCache)
    options: Options = _OPTIONS[said["engine"]](**fields)
    return Job(
        ModelFiles(**said["model"] | {"path": Path(said["model"]["path"])}),
        said["fingerprint"],
        options,
        Plan(Protocol(**said["protocol"]), **columns, **said["plan"]),
        said["vocabulary"],
        None if said["reference"] is None else Path(said["reference"]),
    )

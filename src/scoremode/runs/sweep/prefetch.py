"""A model made ready while the one before it computes: opened, planned, hashed.

It touches no GPU. Its files are read once to be hashed, and then lie in the system's cache of files,
where the engine finds them; a model that has no room there beside what is in use waits for its turn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.model_files import resolve_model
from scoremode.errors import line_of
from scoremode.lib.tasks import Task
from scoremode.runs.finalize import check_texts
from scoremode.runs.models import check_engine, check_quantization
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request
from scoremode.text.corpus_plan import PlannedText


@dataclass(frozen=True, eq=False)
class Opened:
    """A model's checkpoint, and for each of its requests the plan, or the line that says why not."""

    checkpoint: Checkpoint
    planned: list[PlannedText | str] = field(default_factory=list)


class Prepared:
    """A model's preparation in a thread; `requests`: one for each text and protocol."""

    def __init__(self, requests: Sequence[Request], free: Callable[[], int] | None = None):
        self._requests, self._free = requests, free or free_memory
        self._checkpoint: Checkpoint | None = None
        self._opening = Task(self._open)

    def opened(self) -> Opened:
        """The model, when it is ready. Raises what opening it raised."""
        return self._opening.result()

    def close(self) -> None:
        """Ends it, done or not."""
        self._opening.wait()
        if self._checkpoint is not None:
            self._checkpoint.stop_hashing()

    def _open(self) -> Opened:
        first = self._requests[0]
        files = resolve_model(first.model, first.revision)
        checkpoint = open_checkpoint(files, code=first.options.trust_remote_code)
        check_engine(first.options, checkpoint)
        check_quantization(first.quantization, checkpoint)
        self._checkpoint = checkpoint
        if checkpoint.bytes <= self._free():
            checkpoint.hashing()
        requests = [replace(request, model=files) for request in self._requests]
        return Opened(checkpoint, [_planned(request, checkpoint) for request in requests])


def _planned(request: Request, checkpoint: Checkpoint) -> PlannedText | str:
    try:
        planned = plan_request(request, checkpoint)
        if request.token_text:
            check_texts(planned.tokenizer)
    # Not hidden: it is this model's result under this text, and the others go on.
    except Exception as error:  # noqa: BLE001
        return line_of(error)
    return planned


def free_memory() -> int:
    """The bytes that files may take of the memory without driving out what is in use; where the system
    doesn't say, none."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        return 0
    return 0

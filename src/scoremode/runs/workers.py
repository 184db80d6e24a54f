"""The ranks but the first: the same preparation, then their share of every pass.

They open the same files and cut the same plan beside the first rank, prove that to it, and from then on
do what it tells them. They write nothing and show nothing.

Every machine reads its own files, under the paths of its own command line. One rank of each hashes
them while it scores, and the first one compares: a part on disk never comes from weights that the
record does not name.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoremode import errors
from scoremode.checkpoint.files import Checkpoint
from scoremode.engines.base import Engine, Extras
from scoremode.engines.torch.ranks.messages import End, LookFor, ScoreVariant
from scoremode.errors import EngineError, RunFolderError, ScoremodeError
from scoremode.lib.files import read_regular
from scoremode.lib.tasks import Task
from scoremode.runs.context import RunContext, identity_of
from scoremode.runs.request import Request
from scoremode.text.corpus_plan import PlannedText

if TYPE_CHECKING:
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.runs.baselines import Baseline


def follow_plan(
    request: Request,
    checkpoint: Checkpoint,
    planned: PlannedText,
    make_engine: Callable[[], Engine],
    baseline: "Baseline | None",
) -> None:
    """`run_plan` on another rank than the first: returns when that one needs nothing more."""
    ranks, engine = request.ranks, make_engine()
    assert ranks is not None
    ranks.agree(identity_of(RunContext(request, checkpoint, planned, engine, baseline)))

    def check() -> None:
        checkpoint.check_unchanged()
        if baseline is not None and baseline.checkpoint is not None:
            baseline.checkpoint.check_unchanged()

    ranks.check = check
    tell_files(ranks, checkpoint, baseline)
    floor = None
    if request.noise_floor is not None and baseline is not None:
        from scoremode.runs.rescore.noise import NoiseFloor

        floor = NoiseFloor(request.noise_floor, baseline, planned, request.options, ranks)
    plan = planned.plan
    while not isinstance(command := ranks.command(), End):
        if isinstance(command, ScoreVariant):
            assert floor is not None
            floor.follow(command.index)
            continue
        if isinstance(command, LookFor):
            look_for(ranks, command)
            continue
        schedule, part = command.schedule, plan
        if command.windows < len(plan):
            part = plan.first_windows(command.windows)
        reference = None if baseline is None else baseline.reference(part, schedule, None)
        extras = Extras(reference, request.full, request.draft)
        list(engine.score(part, schedule, command.first_pass, extras=extras))


# Seconds until a file that one machine has made is seen by another: what systems keep of a folder.
_SEEN = 10.0
_LOOK = 0.1


def tell_files(ranks: "Ranks", checkpoint: Checkpoint, baseline: "Baseline | None") -> None:
    """Begins to hash, on the one rank of a machine that does, the files that are read there."""

    def work() -> None:
        try:
            told: dict[str, Any] = {"checkpoint": checkpoint.hash_files()}
            told["reference"] = None if baseline is None else baseline.settle()
        except ScoremodeError as error:
            told = {"error": [type(error).__name__, str(error)]}
        ranks.leave(f"files/{ranks.place.rank}", told)

    if ranks.place.leads_node:
        Task(work)


def check_nodes(
    ranks: "Ranks", path: Path, files: Mapping[str, str], base: Mapping[str, str] | None
) -> None:
    """Compares, on the first rank, the files of all machines with its own, when those are hashed.

    `path`: the model's; `files`, `base`: name → sha256 of its files and of the base's, as `settle` has
    them. Raises EngineError, and what a machine's own files raise there.
    """
    for rank in ranks.leaders:
        told = ranks.files_of(rank)
        where = ranks.title(rank)
        if "error" in told:
            name, text = told["error"]
            raise getattr(errors, name)(f"{where}: {text}")
        for what, ours in (("checkpoint", files), ("reference", base)):
            theirs: dict[str, str] = told[what] or {}
            for name in sorted({**(ours or {}), **theirs}):
                here, there = (ours or {}).get(name), theirs.get(name)
                if here != there:
                    of = f"{path}" if what == "checkpoint" else "the base"
                    raise EngineError(
                        f"{of}: {where} has another {name} (sha256 {_short(there)} there, "
                        f"{_short(here)} here): all machines need the same files"
                    )


def check_shared(ranks: "Ranks", folder: Path) -> None:
    """Makes sure, on the first rank, that all machines see `folder`. Raises RunFolderError."""
    seen, content = folder / f".seen-{secrets.token_hex(8)}", secrets.token_hex(16)
    try:
        with seen.open("x", encoding="ascii") as file:
            file.write(content)
        number = ranks.tell(LookFor(str(seen.resolve()), content))
        for rank in range(1, ranks.size):
            told, _ = ranks.take(f"seen/{number}/{rank}")
            if not told["seen"]:
                raise RunFolderError(
                    f"{folder}: {ranks.title(rank)} does not see it: all machines write states there, "
                    "so it must be on a file system that they share, under the same path"
                )
    except OSError as error:
        raise RunFolderError(f"{seen}: {error.strerror}") from None
    finally:
        seen.unlink(missing_ok=True)


def look_for(ranks: "Ranks", command: LookFor) -> None:
    """Answers, on another rank, whether the file is there."""
    path, deadline = Path(command.path), time.monotonic() + _SEEN
    while not (seen := _holds(path, command.content)) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    ranks.leave(f"seen/{ranks.number}/{ranks.place.rank}", {"seen": seen})


def _holds(path: Path, content: str) -> bool:
    try:
        return read_regular(path, len(content), links=False) == content.encode()
    except OSError:
        return False


def _short(digest: str | None) -> str:
    return "none" if digest is None else f"{digest[:12]}…"

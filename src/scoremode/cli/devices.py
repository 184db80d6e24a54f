"""Several devices: a command that runs on all of them, by `--devices N` or under torchrun or srun.

Every rank runs the same command line. The first one writes and shows what one process alone would; the
others show nothing, and what fails there becomes the first one's error.
"""

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from scoremode.cli.command import Command
from scoremode.cli.process import forget, received
from scoremode.cli.screen import Session
from scoremode.errors import EngineError, ScoremodeError, UsageError, is_debugging, line_of
from scoremode.spec.engine import Devices
from scoremode.spec.flag import check_least

if TYPE_CHECKING:
    import socket

    from scoremode.engines.torch.ranks.lifeline import Lifelines
    from scoremode.engines.torch.ranks.messages import Ranks
    from scoremode.engines.torch.ranks.places import Others, Place

__all__ = ["parsed", "run_on_devices"]

# What a process that may be one of several has in its environment.
_LAUNCHED = {"SCOREMODE_RANK", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS"}
# Seconds in which the first rank refuses the same command line under torchrun, which ends all then.
_ALIKE = 10.0


def parsed(parse: Callable[[], Command]) -> "tuple[Command, Place | None]":
    """Returns what `parse` does, and this process's place among several. Under torchrun the first rank
    alone says what is wrong or asked for.

    Tasks of srun may have command lines of their own, so each says that. They are several of one run
    where the command measures, and is no shard, which knows nothing of the others.

    Raises UsageError for a command that is of one process.
    """
    place = _place()
    if place is None or place.is_first or place.launcher == "srun":
        spec = parse()
    else:
        try:
            nothing = io.StringIO()
            with redirect_stdout(nothing), redirect_stderr(nothing):
                spec = parse()
        except UsageError as error:
            time.sleep(_ALIKE)
            sys.exit(error.exit_code)
    alone = not spec.is_shared or getattr(spec, "shard", None) is not None
    if place is not None and place.launcher == "srun" and alone:
        place = None
    if place is not None and not spec.is_shared:
        if not place.is_first:
            time.sleep(_ALIKE)
            sys.exit(UsageError.exit_code)
        raise UsageError("torchrun: this command runs in one process")
    return spec, place


def run_on_devices(spec: Command, session: Session) -> int:
    """Runs a command, one that measures on all devices that its flags or torchrun ask for."""
    place = session.place
    if not spec.is_shared:
        return spec.run(session)
    assert isinstance(spec, Devices)
    if place is not None and not place.is_first:
        return _follow(spec, session, place)
    # Before anything can fail: the others are told then.
    line, served = (None, None) if place is None else _lifelines(place)
    others = None
    at_once = True
    try:
        count = _count(spec, place)
        if place is None and count == 1:
            return spec.run(session)
        # Of a lost connection the error says enough, in one line.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        if place is None:
            from scoremode.engines.torch.ranks.places import Others

            others = Others(session.command[1:], count)
            place = others.place
        from scoremode.engines.torch.ranks.messages import Ranks

        session.ranks = Ranks(place, others, line, served)
        code = spec.run(session)
        at_once = False
        return code
    except BaseException as error:
        # By a signal, which a library may have made something else of, a rank that ends stops the work
        # here.
        if received() is not None or isinstance(error, KeyboardInterrupt):
            failure = _failure(session.ranks, others, line)
            if failure is not None:
                forget()
                raise failure from None
        raise
    finally:
        if others is not None:
            others.end(at_once=at_once)
        if line is not None:
            line.end(at_once=at_once)


def _lifelines(place: "Place") -> "tuple[Lifelines, socket.socket | None]":
    """The first rank's lifelines, and the socket of its store where no launcher has one."""
    from scoremode.engines.torch.ranks.lifeline import Lifelines, listener

    if place.launcher == "torchrun":
        return Lifelines(place), None
    served = listener(place)
    return Lifelines(place, key=place.key, store=served.getsockname()[1]), served


def _failure(
    ranks: "Ranks | None", others: "Others | None", line: "Lifelines | None"
) -> ScoremodeError | None:
    """The reason why another rank has ended; None where none has by itself."""
    if ranks is not None:
        return ranks.failure()
    # It was quicker than what the first one has to import.
    if others is not None and others.ended is not None:
        rank, what = others.ended
        return EngineError(f"rank {rank}: {what}")
    return None if line is None else line.failure()


def _follow(spec: Command, session: Session, place: "Place") -> int:
    """Runs a command on another rank than the first: `measured` ends it."""
    from scoremode.engines.torch.ranks.lifeline import Lifeline
    from scoremode.engines.torch.ranks.places import end_with_first

    end_with_first(place)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    assert isinstance(spec, Devices)
    line = None if place.starts_others else Lifeline(place)
    try:
        if line is not None and place.launcher == "srun":
            line.join(place.host, place.port, place.key)
        from scoremode.engines.torch.ranks.messages import Ranks

        ranks = session.ranks = Ranks(place, line=line)
        try:
            _count(spec, place)
            return spec.but(quiet=True, form="table").run(session)
        except KeyboardInterrupt:
            ranks.depart(excused=True)
            raise
        # Not hidden: the first rank raises it, or this one says it.
        except Exception as error:  # noqa: BLE001
            if is_debugging():
                import traceback

                traceback.print_exception(error)
            is_told = ranks.fail(error)
            if not is_told and line is not None:
                line.settle()
                if line.is_over:
                    return 0
            if not is_told or place.launcher == "torchrun":
                print(f"scoremode: rank {place.rank}: error: {line_of(error)}", file=sys.stderr)
            return error.exit_code if isinstance(error, ScoremodeError) else 1
    except KeyboardInterrupt:
        # Whoever ended this process ends the others as well, and the first one says so.
        return 143


def _place() -> "Place | None":
    """This process's among several; a process alone imports nothing to know that it is."""
    if not _LAUNCHED & os.environ.keys():
        return None
    from scoremode.engines.torch.ranks.places import place_of

    return place_of(os.environ)


def _count(spec: Devices, place: "Place | None") -> int:
    """The number of devices that are asked for. Raises UsageError."""
    check_least(1, spec, "devices")
    count = spec.devices
    asked = f"--devices {count}" if place is None else f"{place.launcher}: {place.size} ranks"
    # One that it has started has the same command line.
    if place is not None and count not in (None, place.size):
        raise UsageError(f"--devices {count}: {place.launcher} has started {place.size} ranks")
    count = count or 1
    if place is None and count == 1:
        return 1
    if spec.engine != "torch":
        size = count if place is None else place.size
        raise UsageError(f"{asked}: is for --engine torch; vLLM takes -tp {size}")
    device = getattr(spec, "device", None) or ""
    if ":" in device:
        raise UsageError(
            f"{asked}: --device {device} names one; --device cuda takes the first ones, and "
            "CUDA_VISIBLE_DEVICES says which those are"
        )
    if place is None:
        _check_count(asked, count, device)
    return count


def _check_count(asked: str, count: int, device: str) -> None:
    """Raises UsageError for more processes than the machine has devices for, before one starts."""
    from scoremode.startup.warmup import count_gpus

    if device != "cpu":
        gpus = count_gpus()
        if gpus == 0:
            raise UsageError(
                f"{asked}: this machine has no CUDA device; --device cpu shares out its cores"
            )
        if gpus is not None and count > gpus:
            raise UsageError(f"{asked}: this machine has {gpus} CUDA devices")
        if gpus is not None:
            return
    # torch will say how many devices there are, where the system doesn't: when it has started.
    cores = os.cpu_count() or 1
    if count > cores:
        raise UsageError(f"{asked}: this machine has {cores} cores to share out")

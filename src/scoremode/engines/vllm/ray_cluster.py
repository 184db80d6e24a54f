"""Ray, where vLLM's workers are its actors: joined or started, and left as it was found.

vLLM would connect to it by itself, and would then hold its GPUs until the process ends, wait half an
hour in silence for those that no node has, and print what the workers log on stdout.
"""

# vLLM and Ray live in an environment of their own.
# pyright: reportMissingImports=false

import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from scoremode.engines.vllm.settings import surroundings
from scoremode.errors import EngineError

_ADDRESS = "RAY_ADDRESS"
# Seconds for a process to start on a node and say what it has.
_PATIENCE = 120


def uses_ray(given: Mapping[str, Any]) -> bool:
    """Tells whether keywords of `vllm.LLM` ask for Ray."""
    return given.get("distributed_executor_backend") == "ray"


class RayCluster:
    """A connection to Ray. `is_ours`: made here, and ended by `leave`; `is_new`: so was the cluster."""

    def __init__(self, *, is_ours: bool, is_new: bool):
        self.is_ours, self.is_new = is_ours, is_new

    def abandon(self, error: BaseException) -> None:
        """Leaves when vLLM has not started, by `error`.

        Its executor, which is nowhere but in the frames that `error` has come through, would kill its
        actors when the process ends, and start a Ray of its own for that.
        """
        for executor in _executors(error):
            executor.shutdown()
        self.leave(None)

    def leave(self, parallel: Any) -> None:
        """Gives back the GPUs of `parallel`, vLLM's configuration or None, and ends the connection.

        A cluster that was there before stays; one that was started here ends with all its processes.
        """
        import ray

        # Ray's own end, at that of the process, may have come first.
        if not ray.is_initialized():
            return
        if self.is_ours:
            ray.shutdown()
            return
        group = getattr(parallel, "placement_group", None)
        if group is not None and group != ray.util.get_current_placement_group():
            ray.util.remove_placement_group(group)


def check_nodes(executor: Any) -> None:
    """Raises EngineError unless the nodes of vLLM's `executor` have this process's versions, and no
    variable of vLLM's with another value: a worker keeps what Ray was started with."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look, mine = ray.remote(num_cpus=0, max_retries=0)(surroundings), surroundings()
    nodes = dict.fromkeys(handle.node_id for handle in getattr(executor, "ray_worker_handles", ()))
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        asked[node] = look.options(scheduling_strategy=there).remote()
    for node, answer in asked.items():
        theirs = ray.get(answer, timeout=_PATIENCE)
        for name in sorted(theirs):
            if theirs[name] != mine.get(name):
                raise EngineError(
                    f"Ray's node {_address(node)} has {name} {theirs[name]}, and here it is "
                    f"{mine.get(name, 'not there')}: both must be alike"
                )


def _address(node: str) -> str:
    import ray

    known = {found["NodeID"]: found["NodeManagerAddress"] for found in ray.nodes()}
    return known.get(node, node)


def _executors(error: BaseException | None) -> list[Any]:
    """The objects with Ray's workers whose methods `error`, or what caused it, was raised in."""
    found: dict[int, Any] = {}
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            owner = frame.f_locals.get("self")
            if hasattr(owner, "ray_worker_handles"):
                found[id(owner)] = owner
        error = error.__cause__
    return list(found.values())


def join_ray(
    given: Mapping[str, Any], device: str, notify: Callable[[str], None] = lambda _: None
) -> RayCluster:
    """Connects to the cluster that RAY_ADDRESS names or that this machine is a node of, or starts one.

    - `given`: the user's keywords of `vllm.LLM`.
    - `device`: what Ray calls the platform's devices; "" where vLLM has no name for them.

    Raises EngineError, also where a cluster of this machine alone has too few devices; where another
    has, nodes may join or jobs end, and `notify` says what is waited for.
    """
    if find_spec("ray") is None:
        raise EngineError("distributed_executor_backend=ray: Ray is not installed: pip install ray")
    if not device:
        raise EngineError(
            "distributed_executor_backend=ray: vLLM does not run on Ray on this platform"
        )
    import ray

    cluster = RayCluster(is_ours=False, is_new=False)
    if not ray.is_initialized():
        cluster = _connect(given.get("ray_runtime_env"))
    needed = 1
    for kind in ("tensor", "pipeline", "prefill_context"):
        needed *= int(given.get(f"{kind}_parallel_size", 1))
    there, free = (
        int(found.get(device, 0)) for found in (ray.cluster_resources(), ray.available_resources())
    )
    if needed > there and cluster.is_new:
        cluster.leave(None)
        raise EngineError(
            f"{needed} ranks need as many {device}s, and Ray finds {there} on this machine: "
            "start Ray on more nodes first (docs/vllm.md)"
        )
    if needed > free and ray.util.get_current_placement_group() is None:
        notify(
            f"waiting for Ray: {needed} ranks need as many {device}s; it has {there}, {free} free"
        )
    return cluster


def _connect(runtime_env: Any) -> RayCluster:
    import ray
    from ray._private import worker

    address = os.environ.get(_ADDRESS)
    if address and "://" in address:
        raise EngineError(f"{_ADDRESS}={address}: run the command on a node of the cluster instead")
    # What is sent home is for a user to switch on.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _own_signals():
        try:
            ray.init(
                runtime_env=runtime_env,
                include_dashboard=False,
                logging_level=logging.ERROR,
                # It would go to stdout, which is for results.
                log_to_driver=False,
            )
        except ConnectionError as error:
            reason = reason_of(error.__cause__ or error)
            raise EngineError(f"Ray's cluster can't be joined: {error}: {reason}") from error
    _keep_stdout()
    # The process that started a cluster is its head.
    return RayCluster(is_ours=True, is_new=worker._global_node.is_head())


def _keep_stdout() -> None:
    """Sends what Ray tells of dead workers and missing nodes to stderr. A thread of its prints that on
    stdout, and no setting changes it."""
    from ray._private import worker

    printed = getattr(worker, "print_to_stdstream", None)
    if printed is None or isinstance(printed, _ToStderr):
        return
    worker.print_to_stdstream = _ToStderr(printed)


@dataclass(frozen=True)
class _ToStderr:
    printed: Callable[..., None]

    def __call__(self, data: dict[str, Any], *more: Any, **named: Any) -> None:
        self.printed(data | {"is_err": True}, *more, **named)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def reason_of(error: BaseException) -> str:
    """The words of an error of vLLM's, torch's or Ray's: the first three lines of its message; of what
    was raised in an actor, those of the cause, without the actor's traceback."""
    cause = getattr(error, "cause", None)
    if type(error).__module__.startswith("ray.") and isinstance(cause, BaseException):
        return reason_of(cause)
    # pydantic and torch put their telling line into the middle.
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400] or type(error).__name__


def dead_worker(executor: Any) -> str | None:
    """The actor of vLLM's `executor` that has died, and its node, in words; None if all live."""
    import ray

    for handle in getattr(executor, "ray_worker_handles", ()):
        done = [] if handle.run_ref is None else ray.wait([handle.run_ref], timeout=0)[0]
        if not done:
            continue
        try:
            ray.get(done[0], timeout=0)
        except ray.exceptions.RayActorError:
            where = _address(handle.node_id)
            return f"the worker of rank {handle.rank}, a Ray actor on {where}, has died"
        except ray.exceptions.RayTaskError as error:
            return f"the worker of rank {handle.rank} has failed: {reason_of(error)}"
    return None

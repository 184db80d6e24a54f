"""Ray joined, started and left, with a Ray that is none; its errors in words. Needs no vLLM."""

import os
import signal
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scoremode.engines.vllm import ray_cluster
from scoremode.engines.vllm.ray_cluster import (
    check_nodes,
    dead_worker,
    join_ray,
    reason_of,
    uses_ray,
)
from scoremode.errors import EngineError

GIVEN = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2}


class FakeRay(ModuleType):
    """As much of Ray as is asked for."""

    def __init__(self, there: int, free: int, *, is_head: bool):
        super().__init__("ray")
        self.up, self.did, self.given = False, [], {}
        self.group: Any = None
        self._sizes, self._is_head = (there, free), is_head
        self.failure: Exception | None = None
        self.util = SimpleNamespace(
            get_current_placement_group=lambda: self.group,
            remove_placement_group=lambda group: self.did.append(("remove", group)),
        )

    def is_initialized(self):
        return self.up

    def init(self, **given):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.failure:
            raise self.failure
        self.up, self.given = True, given

    def shutdown(self):
        self.up = False
        self.did.append("shutdown")

    def cluster_resources(self):
        return {"GPU": float(self._sizes[0])}

    def available_resources(self):
        return {"GPU": float(self._sizes[1])} if self._sizes[1] else {}


@pytest.fixture
def fake(monkeypatch):
    def make(there=2, free=2, *, is_head=True):
        ray, worker = FakeRay(there, free, is_head=is_head), ModuleType("ray._private.worker")
        worker._global_node = SimpleNamespace(is_head=lambda: is_head)
        private = ModuleType("ray._private")
        private.worker = worker
        for module in (ray, private, worker):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(ray_cluster, "find_spec", lambda _: True)
        return ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "")
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED")
    return make


def test_ray_is_asked_for_by_name():
    assert uses_ray(GIVEN) and not uses_ray({})
    assert not uses_ray({"distributed_executor_backend": "mp"})


def test_without_ray_or_a_name_for_its_devices_the_line_says_so(monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="Ray is not installed: pip install ray"):
        join_ray(GIVEN, "GPU")
    monkeypatch.setattr(ray_cluster, "find_spec", lambda _: True)
    with pytest.raises(EngineError, match="does not run on Ray on this platform"):
        join_ray(GIVEN, "")


def test_a_cluster_that_was_started_here_ends_with_us(fake):
    ray = fake()
    before = signal.getsignal(signal.SIGTERM)
    cluster = join_ray({**GIVEN, "ray_runtime_env": {"env_vars": {}}}, "GPU")
    assert cluster.is_new and cluster.is_ours
    assert ray.given["log_to_driver"] is False and ray.given["runtime_env"] == {"env_vars": {}}
    assert signal.getsignal(signal.SIGTERM) is before
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    cluster.leave(None)
    assert ray.did == ["shutdown"]
    # Ray's own end came first.
    cluster.leave(None)
    assert ray.did == ["shutdown"]


def test_a_connection_of_the_callers_stays_and_gets_its_devices_back(fake):
    ray = fake()
    ray.up = True
    cluster = join_ray(GIVEN, "GPU")
    assert not cluster.is_ours and ray.given == {}
    cluster.leave(SimpleNamespace(placement_group="vllm's"))
    assert ray.did == [("remove", "vllm's")]
    ray.group = "the caller's"
    cluster.leave(SimpleNamespace(placement_group="the caller's"))
    assert ray.did == [("remove", "vllm's")] and ray.up


def test_too_few_devices_are_refused_or_waited_for(fake):
    said: list[str] = []
    ray = fake(1, 1)
    with pytest.raises(EngineError, match=r"^4 ranks need as many GPUs, and Ray finds 1 on this"):
        join_ray({**GIVEN, "pipeline_parallel_size": 2}, "GPU", said.append)
    assert not ray.up and said == []
    fake(8, 0, is_head=False)
    assert not join_ray(GIVEN, "GPU", said.append).is_new
    assert said == ["waiting for Ray: 2 ranks need as many GPUs; it has 8, 0 free"]


def test_a_cluster_that_cannot_be_joined_is_one_line(fake, monkeypatch):
    ray = fake()
    ray.failure = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    ray.failure.__cause__ = RuntimeError("InvalidAuthToken: missing\nmore")
    with pytest.raises(EngineError) as found:
        join_ray(GIVEN, "GPU")
    words = "Failed to connect to Ray cluster at 10.0.0.1:6379: InvalidAuthToken: missing more"
    assert str(found.value) == f"Ray's cluster can't be joined: {words}"
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(EngineError, match="run the command on a node of the cluster"):
        join_ray(GIVEN, "GPU")


def test_what_ray_prints_goes_to_stderr(fake):
    fake()
    printed: list[Any] = []
    worker = sys.modules["ray._private.worker"]
    worker.print_to_stdstream = lambda data, ignore_prefix: printed.append((data, ignore_prefix))
    for _ in range(2):
        join_ray(GIVEN, "GPU").leave(None)
    worker.print_to_stdstream({"lines": ["dead"], "is_err": False}, ignore_prefix=False)
    assert printed == [({"lines": ["dead"], "is_err": True}, False)]


class Executor:
    """A vLLM executor that fails while it starts."""

    ray_worker_handles = ()
    ended = 0

    def start(self) -> None:
        raise ValueError("no room")

    def shutdown(self) -> None:
        self.ended += 1


def test_an_executor_that_never_came_to_be_is_ended_before_ray(fake):
    ray, executor = fake(), Executor()
    cluster = join_ray(GIVEN, "GPU")
    executor.shutdown = lambda: ray.did.append("executor")  # type: ignore[method-assign]
    try:
        try:
            executor.start()
        except ValueError as error:
            raise EngineError("does not start") from error
    except EngineError as error:
        cluster.abandon(error)
    assert ray.did == ["executor", "shutdown"]


class RayTaskError(Exception):
    """As Ray's: a traceback as text, and the error that it was."""

    def __init__(self, cause: Exception | None = None):
        super().__init__("\x1b[36mray::Worker.load()\x1b[39m (pid=1)\n  File ...\nValueError")
        self.cause = cause


RayTaskError.__module__ = "ray.exceptions"


def test_an_actors_error_is_its_cause():
    assert reason_of(RayTaskError(ValueError("no room\n\nfor it"))) == "no room for it"
    assert reason_of(RayTaskError(RayTaskError(KeyError("k")))) == "'k'"
    assert reason_of(ValueError()) == "ValueError" and reason_of(OSError("x" * 500)) == "x" * 400


class RayActorError(Exception): ...


def executor_of(ray: Any, *ends: Exception | None) -> Any:
    """One whose workers of rank 0, 1 … have ended so; None of one that lives."""

    def get(ref: int, timeout: float) -> None:
        raise ends[ref] or AssertionError("it lives")

    ray.exceptions = SimpleNamespace(RayActorError=RayActorError, RayTaskError=RayTaskError)
    ray.wait = lambda refs, timeout: ([r for r in refs if ends[r]], [])
    ray.get = get
    ray.nodes = lambda: [{"NodeID": "n1", "NodeManagerAddress": "10.0.0.2"}]
    handles = [
        SimpleNamespace(rank=rank, node_id=f"n{rank}", run_ref=rank) for rank in range(len(ends))
    ]
    return SimpleNamespace(ray_worker_handles=handles)


def test_a_dead_worker_is_named(fake):
    assert dead_worker(executor_of(fake(), None, None)) is None
    died = dead_worker(executor_of(fake(), None, RayActorError("pages")))
    assert died == "the worker of rank 1, a Ray actor on 10.0.0.2, has died"
    failed = dead_worker(executor_of(fake(), RayTaskError(ValueError("no room"))))
    assert failed == "the worker of rank 0 has failed: no room"
    assert dead_worker(SimpleNamespace()) is None


def test_a_node_with_another_version_or_variable_is_named(fake, monkeypatch):
    ray = fake()
    executor = executor_of(ray, None, None)
    theirs = {"n0": {"torch": "2.13.0"}, "n1": {"torch": "2.13.0", "VLLM_X": "1"}}
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node
    for name, module in {
        "ray.util": ModuleType("ray.util"),
        strategies.__name__: strategies,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    options = lambda scheduling_strategy: SimpleNamespace(remote=lambda: scheduling_strategy)  # noqa: E731
    ray.remote = lambda **_: lambda _: SimpleNamespace(options=options)
    ray.get = lambda node, timeout: theirs[node]
    monkeypatch.setattr(
        ray_cluster, "surroundings", lambda: {"torch": "2.13.0", "VLLM_X": "1", "VLLM_Y": "2"}
    )
    check_nodes(executor)
    theirs["n1"]["VLLM_X"] = "0"
    with pytest.raises(
        EngineError, match=r"^Ray's node 10\.0\.0\.2 has VLLM_X 0, and here it is 1"
    ):
        check_nodes(executor)
    theirs["n1"] = {"VLLM_Z": "1"}
    with pytest.raises(EngineError, match="has VLLM_Z 1, and here it is not there"):
        check_nodes(executor)

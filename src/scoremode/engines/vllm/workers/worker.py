"""Requests to a vLLM worker: vLLM mixes this class into its own (`worker_extension_cls`).

Its methods run in every worker process by name, so nothing is pickled but their plain results.

A release's kernels for a device without the wanted instructions may take the weights alone (Marlin for
NVFP4 before Blackwell), or quantize activations that nobody declared (vLLM's CPU kernel for 4-bit
weights on a CPU with AMX). Either way the result is another model's, so it has to be said. What vLLM's
classes do is told by their names and fields; read in 0.24 and 0.32.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import gc
import platform
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from scoremode.engines.vllm.copies import CopyHashes, View, view_of
from scoremode.engines.vllm.workers.comparison import StateFile
from scoremode.lib.machine import cpu_name

# Kernels that leave activations alone under schemes that would quantize them.
_WEIGHT_ONLY = (
    "Marlin",
    "MARLIN",
    "WeightOnly",
    "CPUFp8BlockScaledMMKernel",
    "CPUFp8PerTensorScaledMMLinearKernel",
    "EmulationMxfp8LinearKernel",
    "HummingFP8ScaledMM",
    "_BF16",
)
# Schemes and methods by what their names say of activations.
_QUANTIZING = ("A8", "A4", "Fp8Linear", "FBGEMMFp8", "NvFp4", "Fp8MoE", "Mxfp8", "MxFp8", "Int8")
_PLAIN = ("A16", "WNA16", "AWQ", "GPTQ", "BitsAndBytes", "GGUF")


class WorkerExtension:
    """Methods whose names all start with `scoremode_`, since the class is shared."""

    model_runner: Any
    rank: int
    scoremode_hashes: CopyHashes | None = None
    scoremode_steps: Any = None

    def scoremode_handshake(self) -> bool:
        """Tells whether this worker's model has the scoring pooler."""
        from scoremode.engines.vllm.workers.pooler import ScoringPooler

        pooler = getattr(self.model_runner.get_model(), "pooler", None)
        return isinstance(pooler, ScoringPooler)

    def scoremode_score_steps(self, head_dtype: str) -> None:
        """Scores the decode steps of this worker's runner from now on."""
        from vllm.distributed import get_pp_group

        from scoremode.engines.vllm.workers.steps import StepScorer

        if get_pp_group().is_last_rank:
            self.scoremode_steps = StepScorer(self.model_runner, head_dtype)

    def scoremode_take_steps(self) -> tuple[bytes, bytes, int] | None:
        """What `StepScorer.take` gives, from the first tensor-parallel rank of the last stage; None
        from the others, which have the same."""
        from vllm.distributed import get_tensor_model_parallel_rank

        found = None if self.scoremode_steps is None else self.scoremode_steps.take()
        return found if get_tensor_model_parallel_rank() == 0 else None

    def scoremode_describe(self) -> dict[str, Any]:
        """Choices made at load: class, runner, dtype, kernels, attention, device."""
        runner = self.model_runner
        model = runner.get_model()
        config = runner.vllm_config
        layers = list(config.compilation_config.static_forward_context.values())
        linear, activations = _linear_kernels(model)
        scorer = _scorer(self)
        device = torch.device(runner.device)
        return {
            "model_class": f"{type(model).__module__}.{type(model).__qualname__}",
            "runner": _runner(type(runner)),
            "runner_class": f"{type(runner).__module__}.{type(runner).__qualname__}",
            "dtype": str(runner.model_config.dtype).removeprefix("torch."),
            "quantization": runner.model_config.quantization,
            "linear": linear,
            "quantized_inputs": activations,
            "attention": sorted({name for name in map(_attention, layers) if name}),
            "kv_cache_dtype": ", ".join(
                sorted({str(d) for x in layers if (d := getattr(x, "kv_cache_dtype", None))})
            ),
            "unfit_caches": sorted({said for said in map(_unfit_cache, layers) if said}),
            "head": None if scorer is None else scorer.head.describe(),
            "device": {
                "type": device.type,
                "name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
                "threads": torch.get_num_threads() if device.type == "cpu" else None,
            },
        }

    def scoremode_compare_with(self, opener: str, path: str, sha256: str) -> None:
        """Names the reference that later requests are compared with, and loads what that needs.

        `opener`: its class, as `module:class`.
        """
        if (scorer := _scorer(self)) is not None:
            scorer.compare_with(opener, Path(path), sha256)

    def scoremode_keep(self, path: str, rows: int, width: int, dtype: str) -> None:
        """Names the file that states of later requests are kept in."""
        from vllm.distributed import get_tensor_model_parallel_rank

        # Every rank has the same states; the first one writes them.
        if (scorer := _scorer(self)) is not None and get_tensor_model_parallel_rank() == 0:
            holds = self.scoremode_steps is not None
            scorer.states = StateFile(Path(path), rows, width, dtype, holds=holds)

    def scoremode_kept(self) -> int:
        """The number of that file's rows that this worker has written. No more will be."""
        scorer = _scorer(self)
        if scorer is None or scorer.states is None:
            return 0
        rows, scorer.states = scorer.states.rows, None
        return rows

    def scoremode_head_seconds(self) -> float:
        """Seconds that this worker's head took so far, with all that is asked of the logits."""
        scorer = _scorer(self)
        clock = None if scorer is None else scorer.clock
        return 0.0 if clock is None else sum(clock.seconds().values())

    def scoremode_view_files(self, paths: list[str]) -> View:
        """The checkpoint's files as this worker's node sees them: see `copy_files.py`."""
        return view_of(paths)

    def scoremode_hash_files(self, paths: list[str], ranks: list[int]) -> None:
        """Begins to hash the files, on the workers of these ranks."""
        self.scoremode_hashes = CopyHashes(paths) if self.rank in ranks else None

    def scoremode_file_hashes(self) -> tuple[str, list[str]] | None:
        """This node's name and what `scoremode_hash_files` found, None until that is done."""
        found = None if self.scoremode_hashes is None else self.scoremode_hashes.result()
        return None if found is None else (platform.node(), found)

    def scoremode_release(self) -> None:
        """Gives back what loading and repacking weights left in the allocator's cache.

        vLLM does so itself only where it measures how large a KV cache may be.
        """
        gc.collect()
        if torch.device(self.model_runner.device).type == "cuda":
            torch.cuda.empty_cache()

    def scoremode_memory(self) -> dict[str, int]:
        """Peak bytes of this worker: reserved on its GPU, or resident on a CPU."""
        if torch.device(self.model_runner.device).type == "cuda":
            free, total = torch.cuda.mem_get_info()
            return {"peak": torch.cuda.max_memory_reserved(), "device_used": total - free}
        return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def _scorer(worker: WorkerExtension) -> Any:
    """The `RowScorer`, None on a worker without the last pipeline stage, or that does not score."""
    from vllm.distributed import get_pp_group

    if not get_pp_group().is_last_rank:
        return None
    model = worker.model_runner.get_model()
    holder = worker.scoremode_steps or getattr(model, "pooler", None)
    return getattr(holder, "scorer", None)


def _runner(own: type) -> str:
    """V1 or V2: both of vLLM's runners are GPUModelRunners, and other devices' derive from one."""
    homes = [c.__module__ for c in own.__mro__ if c.__name__ == "GPUModelRunner"]
    return "V2" if any(".worker.gpu." in home for home in homes) else "V1"


def _linear_kernels(model: Any) -> tuple[dict[str, int], dict[str, int]]:
    """`scheme: kernel` → how many layers it was chosen for; and what they do with their inputs."""
    from vllm.model_executor.layers.linear import LinearBase

    kernels: Counter[str] = Counter()
    inputs: Counter[str] = Counter()
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None or not (isinstance(module, LinearBase) or _is_experts(module)):
            continue
        scheme = getattr(module, "scheme", None) or method
        kernel, name = _kernel(scheme), type(scheme).__name__
        is_w4a8 = bool(getattr(module, "use_w4a8", False))
        kernels[name + (f": {kernel}" if kernel else "") + (", int8 inputs" * is_w4a8)] += 1
        kind = layer_activations(name, kernel, act_bits=_act_bits(scheme), is_w4a8=is_w4a8)
        if kind is not None:
            inputs[kind] += 1
    return dict(sorted(kernels.items())), dict(sorted(inputs.items()))


def _kernel(scheme: Any) -> str | None:
    """The class of the kernel a scheme holds, by the names that vLLM's schemes give it."""
    names = ("kernel", "fp8_linear", "linear_kernel", "moe_kernel")
    kernels = [getattr(scheme, name, None) for name in names]
    found = [type(k).__name__ for k in kernels if k is not None]
    found += [str(v) for n, v in vars(scheme).items() if n.endswith("_backend") and v is not None]
    return ", ".join(found) or None


def _act_bits(scheme: Any) -> int | None:
    """Bits of the activations that a mixed-precision kernel was configured for."""
    config = getattr(getattr(scheme, "kernel", None), "config", None)
    dtype = getattr(config, "act_type", None)
    return None if dtype is None else 8 * dtype.itemsize


def _is_experts(module: Any) -> bool:
    return any(c.__name__ in ("FusedMoE", "RoutedExperts") for c in type(module).__mro__)


def _unfit_cache(layer: Any) -> str | None:
    """The fault of a layer's cache: a dtype that its attention does not say it has. The CPU build
    of 0.32 takes any, and computes something else."""
    supports = getattr(getattr(layer, "attn_backend", None), "supports_kv_cache_dtype", None)
    dtype = getattr(layer, "kv_cache_dtype", None)
    # One in 16 bits is the model's, by whatever name.
    if supports is None or dtype in (None, "float16", "bfloat16") or supports(dtype):
        return None
    return f"{_attention(layer)} has no cache in {dtype}"


def _attention(layer: Any) -> str | None:
    backend = getattr(layer, "attn_backend", None)
    return backend.get_name() if backend is not None and hasattr(backend, "get_name") else None


def layer_activations(
    scheme: str, kernel: str | None, *, act_bits: int | None = None, is_w4a8: bool = False
) -> str | None:
    """Returns what one layer does with its input: "quantized", "not quantized", "unknown", or None for
    a layer that is not quantized at all.

    - `scheme`, `kernel`: class names.
    - `act_bits`: of the activation type the kernel was configured for, where it says.
    - `is_w4a8`: the layer was packed for 8-bit activations, whatever its scheme says.
    """
    if scheme.startswith("Unquantized"):
        return None
    if is_w4a8 or act_bits == 8:
        return "quantized"
    # Rounds its activations itself, before a kernel for 16-bit ones.
    if "O8" in scheme or "WNA8" in scheme or "WNA4" in scheme:
        return "quantized"
    if any(word in (kernel or "") for word in _WEIGHT_ONLY):
        return "not quantized"
    if act_bits is not None or any(word in scheme for word in _PLAIN):
        return "not quantized"
    return "quantized" if any(word in scheme for word in _QUANTIZING) else "unknown"

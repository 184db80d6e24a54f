"""Flags of the engines, in the order of the help texts.

A flag that an engine can't obey is refused with the reason; one that changes nothing for it is
accepted, so that a command line written for the other one runs.
"""

from collections.abc import Sequence
from typing import Any, Literal

from scoremode.spec.flag import MOST_USED, Flag, Flags, Group, Name, Number, Place, Quantity, Switch
from scoremode.spec.values import bytes_of, cache_of, finite, whole

__all__ = ["Devices", "Engine"]

BOTH_ENGINES = Group(
    "both engines", "a flag that changes nothing for the engine that runs is accepted"
)
TORCH, VLLM = Group("torch engine"), Group("vllm engine")
_OF_VLLM: dict[str, Any] = {
    "group": VLLM,
    "engine": "vllm",
    "moves_score": True,
    "in_memory": False,
}
_KEYWORD: dict[str, Any] = {**_OF_VLLM, "keyword": True}
_SPLITS_NOTHING = (
    "the torch engine splits no model and needs not, since it holds one dense layer at a time; "
    "--devices shares windows out, --engine vllm splits a model"
)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Devices(Flags, part="engine", group=MOST_USED):
    engine: Flag[Literal["torch", "vllm"], str] = Flag(
        "torch: scoremode's own (default); vllm: stock vLLM with scoremode's plugin",
        choices=("torch", "vllm"),
        default="torch",
        moves_score=True,
    )
    devices = Number(
        "share the windows out among N GPUs, or N parts of a CPU's cores, for the same scores (torch "
        "engine; torchrun … -m scoremode … and srun scoremode … do so on several machines, too)",
        "N",
        read=whole,
        in_sweep=False,
    )


class Engine(Flags, part="engine", group=BOTH_ENGINES):
    dtype: Flag[Dtype, Any] = Flag(
        "dtype to compute in; auto (default): the checkpoint's where the device has instructions for "
        "it, else float32; a base computes in its model's",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        moves_score=True,
        in_memory=False,
    )
    trust_remote_code: Switch = Flag(
        "run the code that the model brings along",
        switch=True,
        moves_score=True,
        in_memory=False,
        consent=True,
    )
    kv_cache: Name = Flag(
        "keys and values as they are (none, the default), rounded to the checkpoint's kv_cache_scheme "
        "(as-declared, which vllm always does), or to a format: fp8_e4m3, fp8_e5m2, int8, int4-g32, "
        "q8_0, q4_0, nvfp4 … or k=int8,v=int4-g32, against a base without (see docs/kv-cache.md)",
        "FORMAT",
        read=cache_of,
        moves_score=True,
        in_memory=False,
    )
    device: Name = Flag(
        "cpu, cuda or cuda:1 (default: cuda if there is one)",
        "D",
        group=TORCH,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM is built for one kind of device; CUDA_VISIBLE_DEVICES "
        "chooses",
    )
    max_memory: Quantity = Flag(
        "memory to stay within, such as 10GiB: all of a run's on a GPU, its hidden states' on a CPU",
        "SIZE",
        read=bytes_of,
        group=TORCH,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; use --gpu-memory-utilization",
    )
    batch_size: Number = Flag(
        "windows computed at once (default: as many as memory allows)",
        "W",
        read=whole,
        group=TORCH,
        moves_score=True,
        engine="torch",
        refusal="is for --engine torch; use --max-num-batched-tokens",
    )
    placement: Flag[Literal["auto", "device", "host", "disk"], Any] = Flag(
        "where a GPU's packed weights lie: its own memory, pinned host memory, or the files, read in "
        "every pass; auto (default): the first with room",
        choices=("auto", "device", "host", "disk"),
        default="auto",
        group=TORCH,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM keeps its weights on the device; --engine-arg "
        "cpu_offload_gb=N moves some",
    )
    arithmetic: Flag[Literal["auto", "weights", "weights+activations", "llama.cpp"], Any] = Flag(
        "what is quantized: the weights alone, or activations too; auto (default): as the checkpoint "
        "declares; llama.cpp: a GGUF file's as its CPU build does, inputs by the weight's type and "
        "keys and values in float16",
        choices=("auto", "weights", "weights+activations", "llama.cpp"),
        default="auto",
        group=TORCH,
        moves_score=True,
        in_memory=False,
        engine="torch",
        refusal="vLLM's kernels decide for themselves",
    )
    kv_scales: Place = Flag(
        "safetensors file with each layer's k_scale and v_scale, for formats with one a tensor or a "
        "head (default: measured on the text's first windows)",
        "FILE",
        group=TORCH,
        moves_score=True,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM takes the checkpoint's scales, or 1",
    )
    tensor_parallel_size: Flag[int, int] = Flag(
        "GPUs that share every layer",
        "N",
        read=whole,
        default=1,
        also=("-tp",),
        refusal=_SPLITS_NOTHING,
        **_KEYWORD,
    )
    pipeline_parallel_size: Flag[int, int] = Flag(
        "GPUs that take layers in turn",
        "N",
        read=whole,
        default=1,
        also=("-pp",),
        refusal=_SPLITS_NOTHING,
        **_KEYWORD,
    )
    gpu_memory_utilization: Flag[float | None, float | None] = Flag(
        "share of a GPU's memory to use (default: what the run needs)",
        "SHARE",
        read=finite,
        **_KEYWORD,
    )
    max_num_batched_tokens: Number = Flag(
        "most tokens of a step",
        "N",
        read=whole,
        refusal="is for --engine vllm; the torch engine takes --batch-size in windows",
        **_KEYWORD,
    )
    head_dtype: Flag[Literal["model", "float32"] | None, str | None] = Flag(
        "dtype of the logits: the model's, as deployed (default), or float32",
        choices=("model", "float32"),
        refusal="rounds logits as vLLM does, which is for --engine vllm; the torch engine's are "
        "float32",
        harmless=("float32",),
        **_OF_VLLM,
    )
    quantization: Name = Flag(
        "quantization method (default: what the model's config says)", "METHOD", **_KEYWORD
    )
    enforce_eager: Flag[bool | None, bool | None] = Flag(
        "compile nothing (default: compiling takes longer than most runs)", pair=True, **_KEYWORD
    )
    disable_custom_all_reduce: Switch = Flag(
        "use NCCL's all-reduce instead of vLLM's own", switch=True, **_KEYWORD
    )
    engine_arg: Flag[Sequence[str] | None, list[str]] = Flag(
        "any other keyword of vllm.LLM, VALUE as JSON or as it is",
        "KEY=VALUE",
        repeats=True,
        default=[],
        refusal="is for --engine vllm",
        consent=True,
        **_OF_VLLM,
    )
    strict: Switch = Flag("fail where the plugin does not fit this vLLM", switch=True, **_OF_VLLM)

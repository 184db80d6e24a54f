"""Flags of the engines, in the order of the help texts.

A flag that an engine can't obey is refused with the reason; one that changes nothing for it is
accepted, so that a command line written for the other one runs.
"""

from collections.abc import Sequence
from typing import Any, Literal

from scoremode.spec.flag import Flag, Flags, Group, Name, Number, Place, Quantity, Switch
from scoremode.spec.values import bytes_of, cache_of, finite, whole

__all__ = ["Devices", "Dtype", "Engine", "Http"]

BOTH_ENGINES = Group(
    "both engines",
    "flags that don't apply to the chosen engine are ignored if harmless and refused otherwise",
)
TORCH, VLLM = Group("torch engine"), Group("vllm engine")
_OF_VLLM: dict[str, Any] = {
    "group": VLLM,
    "engine": "vllm",
    "moves_score": True,
    "in_memory": False,
}
_KEYWORD: dict[str, Any] = {**_OF_VLLM, "keyword": True}
_OF_HTTP: dict[str, Any] = {
    "engine": "http",
    "refusal": "is for --engine http",
    "moves_score": True,
    "in_sweep": False,
    "in_memory": False,
}
_SPLITS_NOTHING = (
    "the torch engine splits no model and needs not, since it holds one dense layer at a time; "
    "--devices shares windows out, --engine vllm splits a model"
)

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


class Devices(Flags, part="engine", group=BOTH_ENGINES):
    engine: Flag[Literal["torch", "vllm", "http"], str] = Flag(
        "run this engine; torch: scoremode's own (default); vllm: stock vLLM; http: a server",
        choices=("torch", "vllm", "http"),
        default="torch",
        moves_score=True,
        common=True,
    )
    devices = Number(
        "spread the windows over N GPUs, or over N groups of CPU cores, without changing a "
        "score (torch engine; on several machines: torchrun … -m scoremode … or srun "
        "scoremode …)",
        "N",
        read=whole,
        group=TORCH,
        common=True,
        in_sweep=False,
    )


class Engine(Flags, part="engine", group=BOTH_ENGINES):
    dtype: Flag[Dtype, Any] = Flag(
        "compute in this dtype; auto (default): the checkpoint's where the device has "
        "instructions for it, else float32; a base uses its model's dtype, a model that of a kept "
        "reference",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        moves_score=True,
        in_memory=False,
    )
    trust_remote_code: Switch = Flag(
        "run code that comes with the model",
        switch=True,
        moves_score=True,
        in_memory=False,
        consent=True,
    )
    kv_cache: Name = Flag(
        "keep keys and values as computed (none, the default), round them to the checkpoint's "
        "kv_cache_scheme (as-declared, which vllm always does), or to a format: fp8_e4m3, "
        "fp8_e5m2, int8, int4-g32, q8_0, q4_0, nvfp4 … or k=int8,v=int4-g32; a base's are "
        "never rounded (see docs/long-contexts.md)",
        "FORMAT",
        read=cache_of,
        moves_score=True,
        in_memory=False,
    )
    device: Name = Flag(
        "run on cpu, cuda or cuda:1 (default: cuda if there is one)",
        "D",
        group=TORCH,
        common=True,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM is built for one kind of device; CUDA_VISIBLE_DEVICES "
        "chooses",
    )
    max_memory: Quantity = Flag(
        "use at most this much memory, such as 10GiB: on a GPU for the whole run, on a CPU "
        "for its hidden states",
        "SIZE",
        read=bytes_of,
        group=TORCH,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; use --gpu-memory-utilization",
    )
    batch_size: Number = Flag(
        "compute W windows at a time (default: as many as memory allows)",
        "W",
        read=whole,
        group=TORCH,
        moves_score=True,
        engine="torch",
        refusal="is for --engine torch; use --max-num-batched-tokens",
    )
    placement: Flag[Literal["auto", "device", "host", "disk"], Any] = Flag(
        "keep packed weights in the GPU's memory (device), in pinned host memory (host), or "
        "in their files, which each pass reads again (disk); auto (default): the first with "
        "room",
        choices=("auto", "device", "host", "disk"),
        default="auto",
        group=TORCH,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM keeps its weights on the device; --engine-arg "
        "cpu_offload_gb=N moves some",
    )
    arithmetic: Flag[Literal["auto", "weights", "weights+activations", "llama.cpp"], Any] = Flag(
        "compute with quantized weights alone, or with quantized activations too; auto (default): "
        "as the checkpoint declares; llama.cpp: as its CPU build computes a GGUF file, with "
        "inputs by the weight's type and keys and values in float16",
        choices=("auto", "weights", "weights+activations", "llama.cpp"),
        default="auto",
        group=TORCH,
        moves_score=True,
        in_memory=False,
        engine="torch",
        refusal="vLLM's kernels decide for themselves",
    )
    attention: Flag[Literal["sdpa", "eager"] | None, Any] = Flag(
        "compute attention by this backend of transformers (default: the first that the model has)",
        choices=("sdpa", "eager"),
        group=TORCH,
        moves_score=True,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM takes --engine-arg attention_backend=",
    )
    kv_scales: Place = Flag(
        "take each layer's k_scale and v_scale from this safetensors file, for formats with one "
        "scale per tensor or head (default: measure them on the text's first windows)",
        "FILE",
        path="file",
        group=TORCH,
        moves_score=True,
        in_memory=False,
        engine="torch",
        refusal="is for --engine torch; vLLM takes the checkpoint's scales, or 1",
    )
    tensor_parallel_size: Flag[int, int] = Flag(
        "split every layer across N GPUs",
        "N",
        read=whole,
        default=1,
        also=("-tp",),
        refusal=_SPLITS_NOTHING,
        **_KEYWORD,
    )
    pipeline_parallel_size: Flag[int, int] = Flag(
        "split the layers into stages on N GPUs",
        "N",
        read=whole,
        default=1,
        also=("-pp",),
        refusal=_SPLITS_NOTHING,
        **_KEYWORD,
    )
    gpu_memory_utilization: Flag[float | None, float | None] = Flag(
        "use this share of a GPU's memory (default: what the run needs)",
        "SHARE",
        read=finite,
        **_KEYWORD,
    )
    max_num_batched_tokens: Number = Flag(
        "process at most N tokens per step",
        "N",
        read=whole,
        refusal="is for --engine vllm; the torch engine takes --batch-size in windows",
        **_KEYWORD,
    )
    head_dtype: Flag[Literal["model", "float32"] | None, str | None] = Flag(
        "compute logits in the model's dtype, as deployed (default), or in float32",
        choices=("model", "float32"),
        refusal="rounds logits as vLLM does, which is for --engine vllm; the torch engine's are "
        "float32",
        harmless=("float32",),
        **_OF_VLLM,
    )
    decode: Switch = Flag(
        "predict each target by a decode step, as vLLM serves it, instead of by prefill (slower: see "
        "docs/vllm.md)",
        switch=True,
        refusal="replays windows in vLLM's decode steps, which is for --engine vllm",
        **_OF_VLLM,
    )
    quantization: Name = Flag(
        "use this quantization method (default: the one in the model's config)",
        "METHOD",
        **_KEYWORD,
    )
    enforce_eager: Flag[bool | None, bool | None] = Flag(
        "disable torch.compile and CUDA graphs (the default but for --decode on a GPU, since "
        "compiling takes longer than most runs)",
        pair=True,
        **_KEYWORD,
    )
    disable_custom_all_reduce: Switch = Flag(
        "use NCCL's all-reduce instead of vLLM's own", switch=True, **_KEYWORD
    )
    engine_arg: Flag[Sequence[str] | None, list[str]] = Flag(
        "pass any other keyword to vllm.LLM, VALUE as JSON or plain text; repeatable",
        "KEY=VALUE",
        repeats=True,
        default=[],
        refusal="is for --engine vllm",
        consent=True,
        **_OF_VLLM,
    )
    strict: Switch = Flag("fail if the plugin does not fit this vLLM", switch=True, **_OF_VLLM)


class Http(
    Flags,
    part="engine",
    group=Group(
        "http engine",
        "for a vLLM or SGLang server that runs already; MODEL may be left out, --tokenizer not "
        "(docs/servers.md)",
    ),
):
    base_url: Name = Flag("score the model that this server serves", "URL", **_OF_HTTP)
    model_name: Name = Flag(
        "take the model that it serves under this name (default: the only one)", "NAME", **_OF_HTTP
    )
    api_key_env: Name = Flag(
        "send the key that is in this environment variable (default: none)", "VARIABLE", **_OF_HTTP
    )
    concurrency: Flag[int, int] = Flag(
        "have N requests under way (default: 8)", "N", read=whole, default=8, **_OF_HTTP
    )
    top_logprobs: Number = Flag(
        "ask for the K likeliest tokens at each place, which bounds on KLD and total variation "
        "are made of (default: 20 with --reference, which is as many as vLLM gives by default, else 1)",
        "K",
        read=whole,
        **_OF_HTTP,
    )
    request_timeout: Flag[float, float] = Flag(
        "wait SECONDS for a reply (default: 600)", "SECONDS", read=finite, default=600.0, **_OF_HTTP
    )

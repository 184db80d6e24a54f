"""The flags that choose and tune an engine, and what each engine makes of them.

A flag that an engine can't obey is refused with the reason; one that changes nothing for it is
accepted, so that a command line written for the other one runs.
"""

import argparse
import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scoremode.cli.flags.kv_cache import add_kv_cache, add_kv_scales, torch_cache, vllm_cache
from scoremode.cli.flags.parser import bytes_of, check_least, flag_of
from scoremode.errors import UsageError

if TYPE_CHECKING:
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.engines.vllm.options import VllmOptions

__all__ = [
    "ENGINES",
    "add_tuning",
    "engine_arguments",
    "options_of",
    "reference_options",
    "torch_options",
    "vllm_options",
]

ENGINES = ("torch", "vllm")

# Keywords of vllm.LLM that scoring itself must choose.
_OURS = {
    "additional_config", "convert", "enable_prefix_caching", "max_model_len", "model", "runner",
    "notify", "skip_tokenizer_init", "worker_extension_cls",
}  # fmt: skip
# Those that have a flag: it is given to vLLM as it is, or goes another way.
_GIVEN = (
    "quantization", "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization",
    "disable_custom_all_reduce", "enforce_eager", "max_num_batched_tokens",
)  # fmt: skip
_FLAGS = {*_GIVEN, "dtype", "trust_remote_code", "head_dtype", "strict", "revision"}
# Flags that only one engine can obey: the values that the other one takes, its default first, and why
# it takes no more.
_Only = dict[str, tuple[tuple[Any, ...], str]]
_SPLITS_NOTHING = (
    "the torch engine splits no model and needs not, since it holds one dense layer at a time; "
    "--devices shares windows out, --engine vllm splits a model"
)
_ONLY_TORCH: _Only = {
    "device": (
        (None,),
        "is for --engine torch; vLLM is built for one kind of device; CUDA_VISIBLE_DEVICES chooses",
    ),
    "max_memory": ((None,), "is for --engine torch; use --gpu-memory-utilization"),
    "batch_size": ((None,), "is for --engine torch; use --max-num-batched-tokens"),
    "placement": (
        ("auto",),
        "is for --engine torch; vLLM keeps its weights on the device; --engine-arg "
        "cpu_offload_gb=N moves some",
    ),
    "arithmetic": (("auto",), "vLLM's kernels decide for themselves"),
    "kv_scales": ((None,), "is for --engine torch; vLLM takes the checkpoint's scales, or 1"),
}
_ONLY_VLLM: _Only = {
    "tensor_parallel_size": ((1,), _SPLITS_NOTHING),
    "pipeline_parallel_size": ((1,), _SPLITS_NOTHING),
    "max_num_batched_tokens": (
        (None,),
        "is for --engine vllm; the torch engine takes --batch-size in windows",
    ),
    "engine_arg": (([],), "is for --engine vllm"),
    "head_dtype": (
        (None, "float32"),
        "rounds logits as vLLM does, which is for --engine vllm; the torch engine's are float32",
    ),
}


def add_tuning(parser: argparse.ArgumentParser) -> None:
    """Flags of the engines: a group for both, and one each for what only that one can do."""
    group = parser.add_argument_group(
        "both engines", "a flag that changes nothing for the engine that runs is accepted"
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="dtype to compute in; auto (default): the checkpoint's where the device has instructions "
        "for it, else float32; a base computes in its model's",
    )
    group.add_argument(
        "--trust-remote-code", action="store_true", help="run the code that the model brings along"
    )
    add_kv_cache(group)
    torch = parser.add_argument_group("torch engine")
    torch.add_argument(
        "--device", metavar="D", help="cpu, cuda or cuda:1 (default: cuda if there is one)"
    )
    torch.add_argument(
        "--max-memory",
        type=bytes_of,
        metavar="SIZE",
        help="memory to stay within, such as 10GiB: all of a run's on a GPU, its hidden states' on a "
        "CPU",
    )
    torch.add_argument(
        "--batch-size",
        type=int,
        metavar="W",
        help="windows computed at once (default: as many as memory allows)",
    )
    torch.add_argument(
        "--placement",
        choices=("auto", "device", "host", "disk"),
        default="auto",
        help="where a GPU's packed weights lie: its own memory, pinned host memory, or the files, read "
        "in every pass; auto (default): the first with room",
    )
    torch.add_argument(
        "--arithmetic",
        choices=("auto", "weights", "weights+activations", "llama.cpp"),
        default="auto",
        help="what is quantized: the weights alone, or activations too; auto (default): as the "
        "checkpoint declares; llama.cpp: a GGUF file's as its CPU build does, inputs by the weight's "
        "type and keys and values in float16",
    )
    add_kv_scales(torch)
    _add_vllm(parser)


def _add_vllm(parser: argparse.ArgumentParser) -> None:
    vllm = parser.add_argument_group("vllm engine")
    vllm.add_argument(
        "-tp",
        "--tensor-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="GPUs that share every layer",
    )
    vllm.add_argument(
        "-pp",
        "--pipeline-parallel-size",
        type=int,
        default=1,
        metavar="N",
        help="GPUs that take layers in turn",
    )
    vllm.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="share of a GPU's memory to use (default: what the run needs)",
    )
    vllm.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="most tokens of a step"
    )
    vllm.add_argument(
        "--head-dtype",
        choices=("model", "float32"),
        help="dtype of the logits: the model's, as deployed (default), or float32",
    )
    vllm.add_argument(
        "--quantization",
        metavar="METHOD",
        help="quantization method (default: what the model's config says)",
    )
    vllm.add_argument(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        help="compile nothing (default: compiling takes longer than most runs)",
    )
    vllm.add_argument(
        "--disable-custom-all-reduce",
        action="store_true",
        default=None,
        help="use NCCL's all-reduce instead of vLLM's own",
    )
    vllm.add_argument(
        "--engine-arg",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other keyword of vllm.LLM, VALUE as JSON or as it is",
    )
    vllm.add_argument(
        "--strict", action="store_true", help="fail where the plugin does not fit this vLLM"
    )


def options_of(
    args: argparse.Namespace, names: Sequence[str]
) -> "dict[str, TorchOptions | VllmOptions]":
    """Options of each engine in `names`, run by one command beside a torch reference.

    A flag goes to those that can obey it. Raises UsageError for one that none of them can.
    """
    result: dict[str, TorchOptions | VllmOptions] = {}
    for name in names:
        if name == "vllm":
            own = _without(args, _ONLY_TORCH)
            if own.kv_cache == "none" and len(names) > 1:
                own.kv_cache = None
            result[name] = vllm_options(own)
        else:
            result[name] = torch_options(_without(args, _ONLY_VLLM if "vllm" in names else {}))
    return result


def reference_options(args: argparse.Namespace) -> "TorchOptions":
    """The torch engine's in float32, with all that the flags say of its device and memory."""
    return replace(torch_options(_without(args, _ONLY_VLLM)), dtype="float32")


def torch_options(args: argparse.Namespace) -> "TorchOptions":
    """The torch engine's. Raises UsageError for what only vLLM could do."""
    _refuse(args, _ONLY_VLLM)
    check_least(1, args, "batch_size")
    _check_share(args)
    from scoremode.engines.torch.options import TorchOptions

    return TorchOptions(
        dtype=args.dtype,
        arithmetic=args.arithmetic,
        kv_cache=torch_cache(args.kv_cache, args.kv_scales),
        device=args.device,
        max_memory=args.max_memory,
        memory_share=args.gpu_memory_utilization,
        batch_windows=args.batch_size,
        place=None if args.placement == "auto" else args.placement,
        trust_remote_code=args.trust_remote_code,
    )


def vllm_options(args: argparse.Namespace) -> "VllmOptions":
    """The vLLM engine's. Raises UsageError for what only the torch engine can do."""
    _refuse(args, _ONLY_TORCH)
    check_least(1, args, "tensor_parallel_size", "pipeline_parallel_size", "max_num_batched_tokens")
    _check_share(args)
    from scoremode.engines.vllm.options import VllmOptions

    arguments = engine_arguments(args.engine_arg)
    return VllmOptions(
        dtype=args.dtype,
        head_dtype=args.head_dtype or "model",
        strict=args.strict,
        trust_remote_code=args.trust_remote_code,
        arguments=vllm_cache(args.kv_cache, arguments)
        | {name: v for name in _GIVEN if (v := getattr(args, name)) is not None}
        | arguments,
    )


def _without(args: argparse.Namespace, only: _Only) -> argparse.Namespace:
    defaults = {name: accepted[0] for name, (accepted, _) in only.items()}
    return argparse.Namespace(**vars(args) | defaults)


def _refuse(args: argparse.Namespace, only: _Only) -> None:
    for name, (accepted, why) in only.items():
        if (value := getattr(args, name)) not in accepted:
            shown = value[0] if isinstance(value, list) else value
            raise UsageError(f"{flag_of(name)} {shown}: {why}")


def _check_share(args: argparse.Namespace) -> None:
    share = args.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--gpu-memory-utilization {share}: must be above 0 and at most 1")


def engine_arguments(
    pairs: list[str], flags: Collection[str] = _FLAGS, ours: Collection[str] = _OURS
) -> dict[str, Any]:
    """`k=v` → keyword and value, JSON where it is JSON.

    Raises UsageError for what has a flag of its own, and for what is set by us alone.
    """
    result = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        if not equals or not key.isidentifier():
            raise UsageError(f"--engine-arg {pair}: is not KEY=VALUE")
        if key in flags:
            raise UsageError(f"--engine-arg {pair}: use {flag_of(key)}")
        if key in ours:
            raise UsageError(f"--engine-arg {pair}: scoring sets {key} itself")
        if key in result:
            raise UsageError(f"--engine-arg {pair}: {key} is given twice")
        try:
            result[key] = json.loads(text)
        except ValueError:
            result[key] = text
    return result

"""The options of each engine that the flags ask for.

A flag that an engine can't obey is refused with the reason; one that changes nothing for it is
accepted, so that a command line written for the other one runs.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from scoremode.errors import UsageError
from scoremode.spec.engine import Engine, Http
from scoremode.spec.flag import Flags, check_least

if TYPE_CHECKING:
    from scoremode.engines.http.options import HttpOptions
    from scoremode.engines.kv_formats import KvCache
    from scoremode.engines.torch.options import TorchOptions
    from scoremode.engines.vllm.options import VllmOptions

__all__ = ["engine_arguments", "engine_options", "options_among", "reference_options"]

# Keywords of vllm.LLM that can't be given, since each purpose needs a value of its own.
_RESERVED = {
    "scoring": {
        "additional_config", "convert", "enable_prefix_caching", "max_model_len", "model", "runner",
        "notify", "skip_tokenizer_init", "worker_extension_cls",
    },
    "generation": {
        "generation_config", "max_model_len", "model", "runner", "skip_tokenizer_init",
        "worker_extension_cls",
    },
}  # fmt: skip
# vLLM's names of the caches that both engines have.
_VLLM_CACHES = {
    "f16": "float16", "bf16": "bfloat16", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
    "fp8_e4m3-token": "fp8_per_token_head", "int8-token": "int8_per_token_head", "nvfp4": "nvfp4",
}  # fmt: skip


def engine_options(spec: Engine, engine: str) -> "TorchOptions | VllmOptions | HttpOptions":
    """The options of an engine. Raises UsageError for what only another one can do."""
    if engine == "http":
        return http_options(spec)
    return torch_options(spec) if engine == "torch" else vllm_options(spec)


def options_among(
    spec: Engine, name: str, names: Sequence[str], changes: Mapping[str, Any]
) -> "TorchOptions | VllmOptions":
    """Options of the engine `name`, one of the `names` that a command runs beside a torch reference.

    A flag goes to those that can obey it; `changes` are values for this one alone. Raises UsageError
    for a flag that none of them can obey, and for a change that this one can't.
    """
    if name == "vllm":
        without = _without(spec, "torch")
        if without.kv_cache == "none" and len(names) > 1:
            without = without.but(kv_cache=None)
        return vllm_options(without.but(**changes))
    without = _without(spec, "vllm") if "vllm" in names else spec
    return torch_options(without.but(**changes))


def reference_options(spec: Engine) -> "TorchOptions":
    """The torch engine's in float32, with all that the flags say of its device and memory."""
    return torch_options(_without(spec, "vllm").but(dtype="float32"))


def torch_options(spec: Engine) -> "TorchOptions":
    """The torch engine's. Raises UsageError for what only vLLM could do."""
    _refuse(spec, "vllm", "http")
    check_least(1, spec, "batch_size")
    _check_share(spec)
    from scoremode.engines.torch.options import TorchOptions

    return TorchOptions(
        dtype=spec.dtype,
        arithmetic=spec.arithmetic,
        kv_cache=torch_cache(spec.kv_cache, spec.kv_scales),
        device=spec.device,
        max_memory=spec.max_memory,
        memory_share=spec.gpu_memory_utilization,
        batch_windows=spec.batch_size,
        place=None if spec.placement == "auto" else spec.placement,
        attention=spec.attention,
        trust_remote_code=spec.trust_remote_code,
    )


def vllm_options(spec: Engine) -> "VllmOptions":
    """The vLLM engine's. Raises UsageError for what only the torch engine can do."""
    _refuse(spec, "torch", "http")
    check_least(1, spec, "tensor_parallel_size", "pipeline_parallel_size", "max_num_batched_tokens")
    _check_share(spec)
    from scoremode.engines.vllm.options import VllmOptions

    arguments = engine_arguments(spec, spec.engine_arg, "scoring")
    keywords = {n: getattr(spec, n) for n, flag in Engine.flags.items() if flag.keyword}
    # A switch that is off leaves vLLM its own choice.
    if not spec.disable_custom_all_reduce:
        del keywords["disable_custom_all_reduce"]
    return VllmOptions(
        dtype=spec.dtype,
        head_dtype=spec.head_dtype or "model",
        decode=spec.decode,
        strict=spec.strict,
        trust_remote_code=spec.trust_remote_code,
        arguments=vllm_cache(spec.kv_cache, arguments)
        | {name: value for name, value in keywords.items() if value is not None}
        | arguments,
    )


# What needs all of a model's distribution, or the model itself, by the flags that ask for it.
_NOT_SERVED = {
    "full": "needs the model's whole distribution, of which a server gives the likeliest ids",
    "draft": "needs the model's whole distribution, of which a server gives the likeliest ids",
    "llama_cpp_block": "is made of exact divergences, of which a server allows bounds",
    "noise_floor": "runs the base again beside an exact divergence, of which a server allows a bound",
    "keep": "keeps final states, which stay in the server",
    "keep_dense": "changes a model's weights, which are the server's",
    "swap": "changes a model's weights, which are the server's",
    "kv_cache": "is the server's own choice",
    "quantization": "is the server's own choice",
    "trust_remote_code": "runs a model's code, and the model is the server's",
    "devices": "shares windows out over devices: --concurrency N has N requests under way",
    "max_kld": "needs an exact divergence, of which a server allows a bound",
    "max_kld_p99": "needs an exact divergence, of which a server allows a bound",
    "max_tv": "needs an exact total variation, of which a server allows bounds",
    "min_acceptance": "needs an exact total variation, of which a server allows bounds",
    "min_half_life": "needs an exact total variation, of which a server allows bounds",
}


def http_options(spec: Engine) -> "HttpOptions":
    """A server's, whose base computes by the torch engine's flags. Raises UsageError."""
    if not isinstance(spec, Http):
        raise UsageError("--engine http: is for scoremode ppl and scoremode kld")
    if spec.base_url is None:
        raise UsageError("--engine http: which server? --base-url http://HOST:PORT/v1")
    for name, why in _NOT_SERVED.items():
        _refuse_flag(spec, name, why)
    for name in _only(spec, "vllm"):
        _refuse_flag(spec, name, "is for --engine vllm; a server has its own settings")
    check_least(1, spec, "concurrency", "top_logprobs")
    if spec.request_timeout <= 0:
        raise UsageError(f"--request-timeout {spec.request_timeout:g}: must be above 0")
    from scoremode.engines.http.options import HttpOptions

    has_base = getattr(spec, "reference", None) is not None
    return HttpOptions(
        base_url=spec.base_url,
        model=spec.model_name,
        key=spec.api_key_env,
        concurrency=spec.concurrency,
        top=spec.top_logprobs or (20 if has_base else 1),
        timeout=spec.request_timeout,
        base=torch_options(_without(spec, "http")),
    )


def _only(spec: Flags, *engines: str) -> list[str]:
    """The flags of these engines that others refuse."""
    return [n for n, flag in spec.flags.items() if flag.engine in engines and flag.refusal]


def _without(spec: Engine, engine: str) -> Engine:
    return spec.but(**{name: spec.flags[name].default for name in _only(spec, engine)})


def _refuse(spec: Engine, *engines: str) -> None:
    for name in _only(spec, *engines):
        _refuse_flag(spec, name, str(spec.flags[name].refusal))


def _refuse_flag(spec: Flags, name: str, why: str) -> None:
    """Raises UsageError where a flag that there is was given a value that asks for anything."""
    if (flag := spec.flags.get(name)) is None:
        return
    value = getattr(spec, name)
    if value != flag.default and value not in flag.harmless:
        shown = value[0] if isinstance(value, list | tuple) else value
        words = flag.spelled if value is True else f"{flag.spelled} {shown}"
        raise UsageError(f"{words}: {why}")


def _check_share(spec: Engine) -> None:
    share = spec.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        raise UsageError(f"--gpu-memory-utilization {share}: must be above 0 and at most 1")


def engine_arguments(
    spec: Flags, pairs: Sequence[str], purpose: Literal["scoring", "generation"]
) -> dict[str, Any]:
    """The keywords of `KEY=VALUE` pairs, whose values are read as JSON where they are JSON.

    Raises UsageError for a keyword that has a flag of its own, and for a reserved one.
    """
    import json

    flags = {n for n, f in spec.flags.items() if f.part == "engine" and f.engine != "torch"}
    result = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        key = name.strip().lstrip("-").replace("-", "_")
        if not equals or not key.isidentifier():
            raise UsageError(f"--engine-arg {pair}: is not KEY=VALUE")
        if key in flags or key == "revision":
            raise UsageError(f"--engine-arg {pair}: use {spec.flags[key].spelled}")
        if key in _RESERVED[purpose]:
            raise UsageError(f"--engine-arg {pair}: {purpose} sets {key} itself")
        if key in result:
            raise UsageError(f"--engine-arg {pair}: {key} is given twice")
        try:
            result[key] = json.loads(text)
        except ValueError:
            result[key] = text
    return result


def torch_cache(name: str | None, scales: str | None) -> "Literal['none', 'as-declared'] | KvCache":
    """The torch engine's option for both flags' values. Raises UsageError."""
    from dataclasses import replace

    from scoremode.engines.kv_formats import AS_DECLARED, AS_IT_IS, parse_kv_cache

    name = name or AS_IT_IS
    if name not in (AS_DECLARED, AS_IT_IS):
        return replace(parse_kv_cache(name), scales=scales)
    if scales is not None:
        raise UsageError(f"--kv-scales {scales}: goes with --kv-cache FORMAT")
    return cast(Literal["none", "as-declared"], name)


def vllm_cache(name: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's keyword for a cache of that name. Raises UsageError for what it has not."""
    from scoremode.engines.kv_formats import AS_DECLARED, AS_IT_IS

    if name in (None, AS_DECLARED):
        return {}
    if name == AS_IT_IS:
        raise UsageError(
            "--kv-cache none: vLLM applies what the checkpoint declares; --kv-cache bf16 stores keys "
            "and values as they are"
        )
    if "kv_cache_dtype" in arguments:
        raise UsageError(
            f"--kv-cache {name}: --engine-arg kv_cache_dtype={arguments['kv_cache_dtype']} says another"
        )
    if name not in _VLLM_CACHES:
        raise UsageError(f"--kv-cache {name}: vLLM has {', '.join(_VLLM_CACHES)} for keys and values; "
                         "its others go by --engine-arg kv_cache_dtype=")  # fmt: skip
    return {"kv_cache_dtype": _VLLM_CACHES[name]}

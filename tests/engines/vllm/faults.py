"""Faults planted in vLLM's CPU build, while it runs: each as an engine might have it.

What is planted in a model that lies in this process ends with the block; `plugin` plants one for the
life of a process, where vLLM loads it by the entry point beside (`fault_plugin/`), in whatever process
that is.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

# The fault that `plugin` plants.
SWITCH = "SCOREMODE_TEST_FAULT"
_SCALE = 1.05


@contextmanager
def planted(model: Any, fault: str) -> Iterator[None]:
    """Has vLLM's `model` compute with the fault, one of `OF_MODELS` or `OF_ATTENTION`."""
    with ExitStack() as stack:
        if fault in OF_ATTENTION:
            stack.enter_context(_attention(fault))
        else:
            for owner, name, value in OF_MODELS[fault](model):
                stack.enter_context(patch.object(owner, name, value))
        yield


def plugin() -> None:
    """vLLM's call in every process that it starts."""
    fault = os.environ.get(SWITCH)
    if fault in OF_ATTENTION:
        _attention(fault).__enter__()
    elif fault is not None:
        _plant_when_loaded(fault)


def _plant_when_loaded(fault: str) -> None:
    """Plants the fault in the model that this process loads, which has no weights yet."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    load = BaseModelLoader.load_model

    def changed(self: Any, *args: Any, **named: Any) -> Any:
        model = load(self, *args, **named)
        for owner, name, value in OF_MODELS[fault](model):
            setattr(owner, name, value)
        return model

    patch.object(BaseModelLoader, "load_model", changed).__enter__()


Change = tuple[Any, str, Any]


def _attentions(model: Any) -> list[Any]:
    found = [m.impl for m in model.modules() if hasattr(getattr(m, "impl", None), "sinks")]
    assert found, "no attention of the CPU's"
    return found


def _no_softcap(model: Any) -> list[Change]:
    found = _attentions(model)
    assert all(impl.logits_soft_cap > 0 for impl in found)
    return [(impl, "logits_soft_cap", 0) for impl in found]


def _no_final_softcap(model: Any) -> list[Change]:
    return _of_all(model, "soft_cap", lambda cap: None)


def _no_sinks(model: Any) -> list[Change]:
    found = _attentions(model)
    assert all(impl.sinks is not None for impl in found)
    return [(impl, "sinks", None) for impl in found]


def _without_normalization(model: Any) -> list[Change]:
    routers = [getattr(m, "router", None) for m in model.modules()]
    found = [r for r in routers if getattr(r, "renormalize", False)]
    assert found, "no router that normalizes"
    return [(router, "renormalize", False) for router in found]


def _another_rope(model: Any) -> list[Change]:
    """Its base is 1 % larger."""
    changes: list[Change] = []
    for rope in {id(m): m for m in model.modules() if hasattr(m, "cos_sin_cache")}.values():
        with patch.object(rope, "base", 1.01 * rope.base):
            table = rope._compute_cos_sin_cache()
        for name in ("cos_sin_cache", "cos_sin_cache_bf16"):
            if (old := getattr(rope, name, None)) is not None:
                changes.append((rope, name, table.to(old.dtype)))
    assert changes, "no rotary embedding"
    return changes


def _of_all(model: Any, name: str, change: Callable[[Any], Any]) -> list[Change]:
    found = [m for m in model.modules() if getattr(m, name, None)]
    assert found, f"nothing has {name}"
    return [(m, name, change(getattr(m, name))) for m in found]


OF_MODELS: dict[str, Callable[[Any], list[Change]]] = {
    "softcap": _no_softcap,
    "final softcap": _no_final_softcap,
    "sinks": _no_sinks,
    "router": _without_normalization,
    "rope": _another_rope,
}
# A KV cache that is read with scales 1.05 times those that it is written with; one sequence of each
# batch that sees what the token before it saw, or has yet to be written. In decode steps alone or not.
OF_ATTENTION = ("kv scale", "kv scale in decode", "row", "row in decode")


def _attention(fault: str) -> Any:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as Attention

    forward, what = Attention.forward, fault.removesuffix(" in decode")
    assert fault in OF_ATTENTION, fault

    def changed(
        self: Any, layer: Any, query: Any, key: Any, value: Any, cache: Any, step: Any, output: Any,
        *more: Any, **named: Any,
    ) -> Any:  # fmt: skip
        def right() -> Any:
            return forward(self, layer, query, key, value, cache, step, output, *more, **named)

        is_decode = step is not None and step.max_query_len == 1
        if step is None or is_decode != fault.endswith("in decode"):
            return right()
        if what == "kv scale":
            return _scaled(self, layer, output, right)
        if is_decode:
            # The last token that it sees is the one before.
            seen = step.seq_lens.clone()
            seen[1:2] = (seen[1:2] - 1).clamp(min=1)
            with patch.object(step, "seq_lens", seen):
                return right()
        right()
        begin, end = step.query_start_loc[1:3].tolist() if len(step.query_start_loc) > 2 else (0, 0)
        output[begin:end] = output[begin:end].roll(1, 0)
        return output

    return patch.object(Attention, "forward", changed)


def _scaled(attention: Any, layer: Any, output: torch.Tensor, right: Callable[[], Any]) -> Any:
    if attention.is_fp8_kv_cache:
        with ExitStack() as stack:
            for name in ("_k_scale_float", "_v_scale_float"):
                stack.enter_context(patch.object(layer, name, _SCALE * getattr(layer, name)))
            return right()
    # Keys that are read larger make larger logits, and values larger outputs.
    with patch.object(attention, "scale", _SCALE * attention.scale):
        right()
    return output.mul_(_SCALE)

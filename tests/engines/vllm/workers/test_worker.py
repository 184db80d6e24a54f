"""What a worker says of itself. Needs no vLLM."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scoremode.engines.vllm.start import EXTENSION
from scoremode.engines.vllm.workers import worker
from scoremode.engines.vllm.workers.worker import WorkerExtension


def extension(pooler: Any = None) -> WorkerExtension:
    made = WorkerExtension()
    made.model_runner = SimpleNamespace(
        device="cpu", get_model=lambda: SimpleNamespace(pooler=pooler)
    )
    return made


def test_vllm_finds_the_class_by_its_name():
    module, _, name = EXTENSION.rpartition(".")
    assert module == WorkerExtension.__module__ and name == WorkerExtension.__name__
    own = {n for n in vars(WorkerExtension) if not n.startswith("__")}
    assert all(n.startswith("scoremode_") for n in own)


def test_a_runner_is_told_by_the_module_of_its_class_and_not_by_its_bases():
    mixin = type("Mixin", (), {"__module__": "vllm.v1.worker.lora_model_runner_mixin"})
    for home, wanted in (("gpu_model_runner", "V1"), ("gpu.model_runner", "V2")):
        runner = type("GPUModelRunner", (mixin,), {"__module__": f"vllm.v1.worker.{home}"})
        other = type("CPUModelRunner", (runner,), {"__module__": "vllm.v1.worker.cpu_model_runner"})
        assert worker._runner(runner) == worker._runner(other) == wanted


def test_a_cache_that_attention_does_not_have_is_named():
    class Attention:
        @staticmethod
        def get_name() -> str:
            return "CPU_ATTN"

        @staticmethod
        def supports_kv_cache_dtype(dtype: str) -> bool:
            return dtype in ("auto", "fp8_e5m2")

    def said(dtype: str | None, backend: Any = Attention) -> str | None:
        return worker._unfit_cache(SimpleNamespace(attn_backend=backend, kv_cache_dtype=dtype))

    for dtype in (None, "auto", "bfloat16", "fp8_e5m2"):
        assert said(dtype) is None
    assert said("int8_per_token_head") == "CPU_ATTN has no cache in int8_per_token_head"
    assert said("int8_per_token_head", None) is None
    assert worker._unfit_cache(SimpleNamespace()) is None


def test_kernels_and_backends_are_named_by_their_classes():
    class Marlin: ...

    class Other: ...

    scheme = SimpleNamespace(kernel=Marlin(), fp8_linear=None, moe_kernel=Other())
    assert worker._kernel(scheme) == "Marlin, Other"
    scheme = SimpleNamespace(fp8_backend="TRITON", nvfp4_backend=None)
    assert worker._kernel(scheme) == "TRITON"
    assert worker._kernel(SimpleNamespace()) is None


def test_bits_of_activations_are_those_that_a_kernel_was_configured_for():
    config = SimpleNamespace(act_type=torch.int8)
    assert worker._act_bits(SimpleNamespace(kernel=SimpleNamespace(config=config))) == 8
    config.act_type = torch.bfloat16
    assert worker._act_bits(SimpleNamespace(kernel=SimpleNamespace(config=config))) == 16
    assert worker._act_bits(SimpleNamespace()) is None


def test_memory_on_a_cpu_is_what_was_resident():
    extension().scoremode_release()
    assert 50 << 20 < extension().scoremode_memory()["peak"] < 1 << 40


@pytest.mark.parametrize("clock", [None, SimpleNamespace(seconds=lambda: {"head": 1.5})])
def test_seconds_of_a_head_that_has_not_run_are_none(clock, monkeypatch):
    monkeypatch.setattr(worker, "_scorer", lambda w: w.model_runner.get_model().pooler)
    assert extension().scoremode_head_seconds() == 0.0
    found = extension(SimpleNamespace(clock=clock)).scoremode_head_seconds()
    assert found == (0.0 if clock is None else 1.5)


def test_rows_kept_are_counted_once(monkeypatch):
    monkeypatch.setattr(worker, "_scorer", lambda w: w.model_runner.get_model().pooler)
    made = extension(SimpleNamespace(states=SimpleNamespace(rows=7)))
    assert [made.scoremode_kept(), made.scoremode_kept()] == [7, 0]
    assert extension().scoremode_kept() == 0

"""vLLM's settings, its environment, and the flags that set them. Needs no vLLM."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import specs
from support.programs import error_of

from scoremode.checkpoint.files import open_checkpoint
from scoremode.cli.engines import vllm_options
from scoremode.cli.main import main
from scoremode.cli.measure import Ppl
from scoremode.engines.vllm.settings import (
    Settings,
    engine_environment,
    kv_cache_bytes,
    stdout_to_stderr,
)
from scoremode.errors import UsageError

LLAMA = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}


def needed(config, tokens=1, tensor_ranks=1, stages=1, width=2):
    return kv_cache_bytes(config, tokens, tensor_ranks=tensor_ranks, stages=stages, width=width)


def test_keys_and_values_of_a_llama():
    # 32 layers, keys and values, 8 heads of 128, 2 bytes: the well-known 128 KiB a token.
    assert needed(LLAMA) == 128 << 10
    assert needed(LLAMA, tokens=10) == 10 * (128 << 10)
    assert needed(LLAMA, width=4) == 256 << 10
    assert needed(LLAMA, tensor_ranks=2) == 64 << 10
    # A head is never split: 16 ranks hold one each.
    assert needed(LLAMA, tensor_ranks=16) == 16 << 10
    assert needed(LLAMA, stages=3) == 11 * (4 << 10)


def test_keys_and_values_of_other_shapes():
    assert needed({**LLAMA, "head_dim": 64}) == 64 << 10
    assert needed({"text_config": LLAMA}) == 128 << 10
    # The widest heads of any layer, and one head for each where the config names no fewer.
    assert needed({**LLAMA, "head_dim": 64, "global_head_dim": 256}) == 256 << 10
    assert needed({**LLAMA, "num_key_value_heads": None}) == 512 << 10
    # One compressed vector a token, on every rank.
    latent = {**LLAMA, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert needed(latent, tensor_ranks=8) == needed(latent) == 32 * 576 * 2


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": 2}, {**LLAMA, "mamba_d_state": 16}])
def test_what_a_config_does_not_tell_is_left_to_vllm(config):
    assert needed(config) is None
    assert "kv_cache_memory_bytes" not in arguments(config=config)


def arguments(config=LLAMA, longest=512, room=1, device="cpu", **given):
    return Settings(Path("model"), config, longest, "model", given).arguments(device, room=room)


@pytest.mark.parametrize("length", [1, 100, 511, 2048, 5000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whole_prompts_fill_a_step(length, device):
    got = arguments(longest=length, device=device)
    assert got["max_model_len"] == length + 1
    batched = got["max_num_batched_tokens"]
    assert batched % length == 0 and batched >= length
    # Two steps of whole prompts at once.
    assert got["max_num_seqs"] >= 2 * (batched // length)
    assert got["kv_cache_memory_bytes"] >= 2 * batched * needed(LLAMA)


def test_what_the_user_gives_wins():
    got = arguments(max_num_batched_tokens=96, enforce_eager=False, seed=7, swap_space=0)
    assert got["max_num_batched_tokens"] == 96 and got["swap_space"] == 0
    assert got["enforce_eager"] is False and got["seed"] == 7
    for name in ("gpu_memory_utilization", "kv_cache_memory_bytes"):
        got = arguments(**{name: 1})
        assert got[name] == 1 and set(got) - {name} == set(arguments()) - {"kv_cache_memory_bytes"}


def test_the_cache_is_as_wide_as_the_run():
    narrow, wide = (arguments(dtype=d)["kv_cache_memory_bytes"] for d in ("bfloat16", "float32"))
    assert wide == 2 * narrow == 2 * arguments()["kv_cache_memory_bytes"]
    assert arguments(tensor_parallel_size=4)["kv_cache_memory_bytes"] == narrow // 4


def test_the_environment_is_ours_inside_and_the_users_afterwards(monkeypatch):
    monkeypatch.delenv("VLLM_ENABLE_V1_MULTIPROCESSING", raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    before = dict(os.environ)
    with engine_environment():
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
        assert os.environ["VLLM_LOGGING_STREAM"] == "ext://sys.stderr"
    assert dict(os.environ) == before
    with pytest.raises(KeyError), engine_environment():
        raise KeyError
    assert dict(os.environ) == before


def test_stdout_goes_to_stderr_from_c_and_from_children():
    program = """
import os, subprocess, sys
from scoremode.engines.vllm.settings import stdout_to_stderr
print("before")
with stdout_to_stderr():
    print("python", flush=True)
    os.write(1, b"c\\n")
    subprocess.run(["echo", "child"])
print("after")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["before", "after"]
    assert done.stderr.split() == ["python", "c", "child"]


def test_stdout_comes_back_after_an_error(capfd):
    with pytest.raises(KeyError), stdout_to_stderr():
        raise KeyError
    os.write(1, b"here")
    assert capfd.readouterr().out == "here"


def options(*flags: str):
    return vllm_options(specs.given(Ppl, "model", "--engine", "vllm", *flags))


def test_without_flags_vllm_and_scoring_choose():
    got = options()
    assert got.dtype == "auto" and got.head_dtype == "model" and got.strict is False
    assert got.trust_remote_code is False
    assert dict(got.arguments) == {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}


def test_flags_become_keywords():
    got = options(
        *("-tp", "2", "-pp", "3", "--quantization", "fp8", "--gpu-memory-utilization", "0.5"),
        *("--disable-custom-all-reduce", "--no-enforce-eager", "--max-num-batched-tokens", "64"),
        *("--dtype", "float32", "--head-dtype", "float32", "--strict", "--trust-remote-code"),
        *("--engine-arg", "block_size=32", "--engine-arg", "kv-cache-dtype=fp8"),
        *("--engine-arg", 'hf_overrides={"a": [1]}', "--engine-arg", "async_scheduling=false"),
    )
    assert (got.dtype, got.head_dtype, got.strict) == ("float32", "float32", True)
    assert got.trust_remote_code is True
    assert dict(got.arguments) == {
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 3,
        "quantization": "fp8",
        "gpu_memory_utilization": 0.5,
        "disable_custom_all_reduce": True,
        "enforce_eager": False,
        "max_num_batched_tokens": 64,
        "block_size": 32,
        "kv_cache_dtype": "fp8",
        "hf_overrides": {"a": [1]},
        "async_scheduling": False,
    }


WRONG = [
    (["--device", "cpu"], "--device cpu"),
    (["--max-memory", "1GiB"], "--gpu-memory-utilization"),
    (["--batch-size", "2"], "--max-num-batched-tokens"),
    (["--arithmetic", "weights"], "--arithmetic weights"),
    (["-tp", "0"], "--tensor-parallel-size 0"),
    (["-pp", "-1"], "--pipeline-parallel-size -1"),
    (["--max-num-batched-tokens", "0"], "--max-num-batched-tokens 0"),
    (["--gpu-memory-utilization", "1.5"], "--gpu-memory-utilization 1.5"),
    (["--engine-arg", "block_size"], "is not KEY=VALUE"),
    (["--engine-arg", "=3"], "is not KEY=VALUE"),
    (["--engine-arg", "block size=3"], "is not KEY=VALUE"),
    (["--engine-arg", "tensor-parallel-size=2"], "use --tensor-parallel-size"),
    (["--engine-arg", "dtype=float16"], "use --dtype"),
    (["--engine-arg", "runner=generate"], "scoring sets runner itself"),
    (["--engine-arg", "max_model_len=9"], "scoring sets max_model_len itself"),
    (["--engine-arg", "seed=1", "--engine-arg", "seed=1"], "seed is given twice"),
]


@pytest.mark.parametrize(("flags", "message"), WRONG)
def test_a_flag_that_vllm_can_not_obey_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        options(*flags)


@pytest.mark.parametrize(("flags", "message"), WRONG[:3])
def test_the_command_says_so_in_one_line(flags, message, demo, capsys, tmp_path):
    model = str(demo / "model")
    run = ["ppl", model, "--text", "a b", "-c", "32", "-o", str(tmp_path / "runs")]
    assert main([*run, "--engine", "vllm", *flags]) == 2
    out, err = capsys.readouterr()
    assert message in error_of(err) and out == "" and not (tmp_path / "runs").exists()


def test_a_base_has_no_quantized_cache(demo):
    def of_base(*words: str):
        return dict(options(*words).of_base(open_checkpoint(str(demo / "model"))).arguments)

    assert "kv_cache_dtype" not in of_base("--kv-cache", "fp8_e5m2")
    assert of_base("--kv-cache", "bf16")["kv_cache_dtype"] == "bfloat16"
    assert of_base() == dict(options().arguments)


def test_a_base_has_the_dtype_that_its_models_config_names(demo):
    checkpoint = open_checkpoint(str(demo / "model"))
    assert options().in_dtype_of(checkpoint).dtype == "bfloat16"
    assert options("--dtype", "float16").in_dtype_of(checkpoint).dtype == "float16"
    # As it is deployed, whatever a kept base computed in.
    assert options().in_dtype("float16").dtype == "auto"

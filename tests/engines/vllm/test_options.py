"""The command line's flags for vLLM. Needs no vLLM: what is wrong is found before it is imported."""

import pytest
from support import specs

from scoremode.checkpoint.files import open_checkpoint
from scoremode.cli.engines import vllm_options
from scoremode.cli.main import main
from scoremode.cli.ppl import Ppl
from scoremode.errors import UsageError


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
    (line,) = err.splitlines()
    assert message in line and out == "" and not (tmp_path / "runs").exists()


def test_a_base_has_no_quantized_cache():
    assert "kv_cache_dtype" not in options("--kv-cache", "fp8_e5m2").of_base().arguments
    assert options("--kv-cache", "bf16").of_base().arguments["kv_cache_dtype"] == "bfloat16"
    assert dict(options().of_base().arguments) == dict(options().arguments)


def test_a_base_has_the_dtype_that_its_models_config_names(demo):
    checkpoint = open_checkpoint(str(demo / "model"))
    assert options().in_dtype_of(checkpoint).dtype == "bfloat16"
    assert options("--dtype", "float16").in_dtype_of(checkpoint).dtype == "float16"

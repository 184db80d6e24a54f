"""What is said of quantized activations: declared by the config, done by the kernels. Needs no vLLM."""

import pytest

from scoremode.engines.vllm.engine import declared_activations, ran
from scoremode.engines.vllm.workers.worker import layer_activations


def groups(*inputs):
    return {"config_groups": {str(i): {"input_activations": a} for i, a in enumerate(inputs)}}


FP8, INT8 = {"type": "float", "num_bits": 8}, {"type": "int", "num_bits": 8}
FP4 = {"type": "float", "num_bits": 4}


@pytest.mark.parametrize(
    ("config", "declared"),
    [
        ({}, None),
        (groups(None), None),
        ({"quant_method": "gptq", "bits": 4}, None),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, None),
        (groups(FP8), "float8"),
        (groups(INT8, None), "int8"),
        (groups(FP8, FP4, FP4), "float4, float8"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8 dynamic"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "FP8"),
    ],
)
def test_what_a_config_declares(config, declared):
    assert declared_activations(config) == declared


@pytest.mark.parametrize(
    ("scheme", "kernel", "done"),
    [
        ("UnquantizedLinearMethod", None, None),
        ("CompressedTensorsW8A8Fp8", "CutlassFP8ScaledMMLinearKernel", "quantized"),
        ("CompressedTensorsW8A8Int8", "CPUInt8ScaledMMLinearKernel", "quantized"),
        ("CompressedTensorsW4A4Fp4", "MarlinNvFp4LinearKernel", "not quantized"),
        ("CompressedTensorsW8A16Fp8", None, "not quantized"),
        ("CompressedTensorsWNA16", "MacheteLinearKernel", "not quantized"),
        ("SomethingNew", "NewKernel", "unknown"),
    ],
)
def test_what_a_layer_does(scheme, kernel, done):
    assert layer_activations(scheme, kernel) == done


def test_a_layer_packed_for_8_bit_activations_quantizes_them():
    """Whatever the name of its scheme says: vLLM's CPU kernel for 4-bit weights may choose to."""
    name = "CompressedTensorsWNA16", "CPUWNA16LinearKernel"
    assert layer_activations(*name, act_bits=8) == "quantized"
    assert layer_activations(*name, is_w4a8=True) == "quantized"
    assert layer_activations(*name, act_bits=16) == "not quantized"


@pytest.mark.parametrize(
    ("counts", "all_in_all"),
    [
        ({}, None),
        ({"quantized": 0}, None),
        ({"quantized": 3, "not quantized": 0}, "quantized"),
        ({"quantized": 3, "not quantized": 1}, "mixed"),
        ({"quantized": 3, "unknown": 1}, "not known"),
    ],
)
def test_what_all_layers_did(counts, all_in_all):
    assert ran(counts) == all_in_all

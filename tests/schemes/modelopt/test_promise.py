"""Tensors that a config of ModelOpt alone promises, against those that it and its like wrote."""

import pytest
import torch
from support.families.modelopt import FORMATS, config, file
from support.families.modelopt_golden import golden
from support.promises import headers, promises_of

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.layout import Linear
from scoremode.schemes.modelopt import Modules

promise = promises_of(Modules)

UP = "model.layers.0.mlp.up_proj"
MIXED = {
    "model.layers.0.mlp.experts": {"quant_algo": "FP8"},
    "model.layers.0.mlp.gate": {"quant_algo": "MXFP8"},
    "lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
}


def promised(fields: dict, module: str = UP, rows: int = 256, columns: int = 384, **others):
    tensors = promise(fields)(Linear(module, (rows, columns), "BF16", **others))
    return (
        None if tensors is None else {suffix: (t.dtype, t.shape) for suffix, t in tensors.items()}
    )


@pytest.mark.parametrize("form", [config, file])
@pytest.mark.parametrize("algorithm", FORMATS)
def test_tensors_of_each_algorithm(algorithm, form):
    torch.manual_seed(0)
    stored = FORMATS[algorithm].store(torch.randn(256, 384).bfloat16())
    assert promised(form(algorithm, "lm_head")) == headers(stored)


@pytest.mark.parametrize("algorithm", [a for a in FORMATS if a != "NVFP4_AWQ"])
def test_tensors_that_modelopt_wrote(algorithm):
    compared = 0
    for stored, dense in golden(algorithm):
        rows, columns = next(iter(dense.values())).shape
        found = headers(stored)
        # Of AWQ some linears have it, which no config tells.
        found.pop("pre_quant_scale", None)
        expected = promised(config(algorithm), rows=rows, columns=columns)
        if algorithm == "FP8_PB_WO":
            # Here of a single block, whose scale it writes without dimensions.
            assert expected and expected["weight_scale"] == ("F32", (1, 1, 1, 1))
            expected["weight_scale"] = ("F32", ())
        assert expected == found
        compared += 1
    assert compared


def test_a_group_size_that_only_scales_tell():
    with pytest.raises(
        UnsupportedFormat, match="W4A16_AWQ and no group_size: it is known from its"
    ):
        promised(config("W4A16_AWQ", group_size=None))


@pytest.mark.parametrize("module", ["lm_head", UP, "model.layers.0.mlp.gate"])
def test_what_an_algorithm_for_all_leaves(module):
    fields = config("NVFP4", "*.up_proj")
    assert promised(fields, module, in_layer=module != "lm_head") is None
    assert promised(fields, "model.layers.0.mlp.gate_proj") is not None


def test_routers_that_are_linears_are_left():
    for name in ("feed_forward.router", "mlp.shared_expert_gate", "block_sparse_moe.gate"):
        assert promised(config("FP8"), f"model.layers.3.{name}") is None


def test_quantized_layers_say_all():
    fields = config("MIXED_PRECISION", "*.2.up_proj", quantized_layers=MIXED)
    expert = "model.language_model.layers.0.mlp.experts"
    expected = headers(FORMATS["FP8"].store(torch.ones(256, 384)))
    assert promised(fields, f"{expert}.1.up_proj") == expected
    assert promised(fields, f"{expert}.2.up_proj") is None
    assert promised(fields) is None
    # Whatever else is left.
    head, gate = promised(fields, "lm_head", in_layer=False), promised(fields, "layers.0.mlp.gate")
    assert head and head.keys() == {"weight", "weight_scale", "weight_scale_2"}
    assert gate and gate["weight_scale"] == ("U8", (256, 12))


def test_nothing_is_quantized():
    assert promised(file(None, kv_cache_quant_algo="FP8")) is None


@pytest.mark.parametrize("key", ["exclude_modules", "ignore"])
def test_a_list_that_was_left_out_tells_nothing(key):
    fields = {"quant_method": "modelopt", "quantization": {"quant_algo": "nvfp4", key: None}}
    with pytest.raises(UnsupportedFormat, match="quant_algo NVFP4 and no exclude_modules: which"):
        promised(fields)
    assert promised({"quant_method": "modelopt", "quant_algo": "NVFP4", key: []}) is not None


def test_a_config_that_can_not_be_read():
    with pytest.raises(CheckpointError, match="ignore 3 is not a list"):
        promise(config("FP8") | {"ignore": 3})

"""Tensors that a config of AMD Quark alone promises, against those of its formats."""

import pytest
import torch
from support.families.quark import KINDS, config, quantize, spec
from support.promises import headers, promised_headers, promises_of

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.layout import Linear
from scoremode.schemes.quark import Modules

promise = promises_of(Modules)

LINEAR = Linear("model.layers.0.mlp.up_proj", (32, 64), "BF16")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_each_kind(kind):
    torch.manual_seed(0)
    stored = quantize(torch.randn(32, 64).bfloat16(), kind)
    del stored["dense"]
    promised = promise(config(kind))(LINEAR)
    assert promised_headers(promised) == headers(stored)


def test_what_stays_dense_and_layers_of_their_own():
    mxfp4 = {"weight": KINDS["mxfp4"][0]}
    none = {"weight": None, "input_tensors": None}
    layers = {"*.mlp.up_proj": mxfp4, "*.layers.1.*": none}
    exclude = ["lm_head", "*.self_attn.*", "model.layers.2.mlp.up_proj"]
    forms = promise(config("fp8", layer_quant_config=layers, exclude=exclude))

    def dtype(module: str) -> str | None:
        found = forms(LINEAR._replace(module=module))
        return found["weight"].dtype if found else None

    assert dtype("model.layers.0.mlp.up_proj") == "U8"
    assert dtype("model.layers.0.mlp.down_proj") == "F8_E4M3"
    assert dtype("model.layers.1.mlp.down_proj") is None
    assert dtype("model.layers.2.mlp.up_proj") is None
    assert dtype("model.layers.2.self_attn.q_proj") is None and dtype("lm_head") is None


def test_static_inputs_of_integers():
    static = {"global_quant_config": {"weight": spec("int8", "per_tensor"),
                                      "input_tensors": spec("int8", "per_tensor")}}  # fmt: skip
    promised = promise(config("int8", **static))(LINEAR)
    assert promised and {"input_scale", "input_zero_point"} <= promised.keys()


def test_what_only_tensors_tell():
    grouped = {"global_quant_config": {"weight": spec("int8", "per_group", axis=1, group_size=32)}}
    with pytest.raises(
        UnsupportedFormat, match=r"up_proj: .*'quark' with weights int8 group 32: not decoded"
    ):
        promise(config("int8", **grouped))(LINEAR)


def test_words_that_a_linear_does_not_fill():
    for shape in ((36, 64), (32, 80)):
        with pytest.raises(UnsupportedFormat, match=r"int4 group 32, which \d+ x \d+ don't fill"):
            promise(config("int4"))(LINEAR._replace(shape=shape))

"""Tensors that a config of bitsandbytes alone promises, against those of its format."""

import pytest
import torch
from support.families.bitsandbytes import config, quantize
from support.promises import NAMES, promises_of

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.bitsandbytes import Modules
from scoremode.schemes.layout import Linear

promise = promises_of(Modules)

LINEAR = Linear("model.layers.0.mlp.up_proj", (96, 200), "BF16")
HEAD = Linear("lm_head", (96, 200), "BF16", in_layer=False)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_tensors_of_each_kind(kind, double):
    torch.manual_seed(0)
    stored = quantize(torch.randn(96, 200).bfloat16(), kind, double and kind != "int8")
    del stored["dense"]
    promised = promise(config(kind, double))(LINEAR)
    assert promised and promised.keys() == stored.keys()
    for suffix, tensor in stored.items():
        found = promised[suffix]
        assert found.dtype == NAMES[tensor.dtype], suffix
        # The text of a number in the record has any length.
        if not (double and ".quant_state." in suffix):
            assert found.shape == tuple(tensor.shape), suffix
        if "quant_map" in suffix and "nested" not in suffix:
            assert found.content == tensor.numpy().tobytes()
        if ".quant_state." in suffix and not double:
            assert found.content == tensor.numpy().tobytes()


def test_what_stays_dense():
    assert promise(config())(HEAD) is None
    # A list takes the place of what is left by itself.
    listed = promise(config(llm_int8_skip_modules=["up_proj"]))
    assert listed(LINEAR) is None and listed(HEAD) is not None


@pytest.mark.parametrize(
    ("storage", "dtype", "rows"), [("bfloat16", "BF16", 4800), (None, "U8", 9600)]
)
def test_codes_in_other_dtypes(storage, dtype, rows):
    promised = promise(config(bnb_4bit_quant_storage=storage))(LINEAR)
    assert promised and promised["weight"][:2] == (dtype, (rows, 1))


def test_configs_that_are_refused():
    with pytest.raises(UnsupportedFormat, match="bnb_4bit_quant_storage 'complex64': not decoded"):
        promise(config(bnb_4bit_quant_storage="complex64"))(LINEAR)
    with pytest.raises(CheckpointError, match="neither of load_in_4bit"):
        promise({"quant_method": "bitsandbytes"})

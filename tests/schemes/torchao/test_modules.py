"""Schemes of torchao's checkpoints by headers and metadata, and each way they can be wrong."""

import json

import pytest
import torch
from safetensors.torch import save_file
from support.golden_libraries import golden

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.packed import Packed
from scoremode.schemes.resolve import resolve

CASES = golden("torchao")
LABELS = {
    "int8": ("W8A16 channel", None),
    "int8-dynamic": ("W8A8 channel", "int8 token"),
    "float8": ("FP8 W8A16 channel", None),
    "int4-group": ("W4A16 g32", None),
    "int3-row": ("W3A16 channel", None),
}


def metadata(case: str = "int8-bf16") -> dict:
    return json.loads(bytes(CASES[case]["metadata"].tolist()))


@pytest.fixture
def resolved(tmp_path):
    def build(case="int8-bf16", text=None, config=None, **changes):
        given = {k: v for k, v in CASES[case].items() if k not in ("dense", "metadata")} | changes
        tensors = {f"m.{k}": v for k, v in given.items() if v is not None}
        about = json.dumps(metadata(case)) if text is None else text
        save_file(tensors, tmp_path / "model.safetensors", metadata={"m.weight": about})
        quantization = {"quant_method": "torchao"} | (config or {})
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": quantization}))
        return resolve(open_checkpoint(str(tmp_path))).quantized

    return build


@pytest.mark.parametrize("name", CASES)
def test_what_fits(resolved, name):
    scheme = resolved(name)["m"]
    kind, _, dtype = name.rpartition("-")
    assert isinstance(scheme, Packed)
    assert (scheme.label, scheme.inputs and scheme.inputs.label) == LABELS[kind]
    assert scheme.shape == (6, 96) and scheme.rounded == CASES[name]["dense"].dtype
    assert dtype in ("bf16", "f16", "f32")


@pytest.mark.parametrize(
    ("kind", "suffixes"),
    [
        ("Int4Tensor", ("scale", "zero_point")),
        ("Int4PlainInt32Tensor", ("scale", "zero_point")),
        ("Int4TilePackedTo4dTensor", ("scale_and_zero",)),
        ("Int4PreshuffledTensor", ("group_scale", "group_zero")),
        ("MXTensor", ("scale",)),
        ("NVFP4Tensor", ("scale", "per_tensor_scale")),
    ],
)
def test_packings_that_are_not_decoded_are_named_by_their_class(refusal, kind, suffixes):
    others = {f"_weight_{suffix}": torch.ones(3, 6).bfloat16() for suffix in suffixes}
    tensors = {"_weight_scale": None, "_weight_qdata": torch.zeros(6, 48).byte()} | others
    words = f"m: quantization method 'torchao' with a weight that is '{kind}': not decoded"
    assert refusal(error=UnsupportedFormat, text=changed(kind), **tensors) == words


def changed(kind=None, **fields) -> str:
    value = metadata()
    value["_type"] = kind or value["_type"]
    value["_data"] |= fields
    return json.dumps(value)


ACT = metadata("int8-dynamic-bf16")["_data"]["act_quant_kwargs"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed("Int4Tensor"), "m: quantization method 'torchao' with a weight that is 'Int4Tens"),
        (changed(dtype={"_type": "torch.dtype", "_data": "float64"}), "with dtype 'float64': not"),
        (changed(block_size=[2, 96]), "with [6, 96] in block_size [2, 96]: not decoded"),
        (changed(block_size=[1, 36]), "with [6, 96] in block_size [1, 36]: not decoded"),
        (changed(block_size=[True, 96]), "with [6, 96] in block_size [True, 96]: not decoded"),
        (changed(block_size="1 96"), "with [6, 96] in block_size '1 96': not decoded"),
        (changed(act_quant_kwargs={"_type": "Other", "_data": {}}), "act_quant_kwargs {'_type'"),
        (
            changed(act_quant_kwargs=ACT | {"_data": ACT["_data"] | {"reduce_range": True}}),
            "with act_quant_kwargs, reduce_range True: not decoded",
        ),
        (
            changed(
                act_quant_kwargs=ACT
                | {"_data": {"granularity": {"_type": "PerGroup", "_data": {}}}}
            ),
            "with act_quant_kwargs, granularity 'PerGroup': not decoded",
        ),
    ],
)
def test_what_is_not_decoded_is_named(refusal, text, words):
    assert words in refusal(error=UnsupportedFormat, text=text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "m: its weight's metadata is not JSON"),
        ("[]", "m: its weight's metadata can't be understood: []"),
        ('{"_type": "Int8Tensor", "_data": 3}', "m: its weight's metadata can't be understood: {"),
        (changed(dtype="bfloat16"), "m: its weight's metadata can't be understood: 'bfloat16'"),
    ],
)
def test_metadata_that_cannot_be_understood(refusal, text, words):
    assert words in refusal(text=text)


def test_tensors_that_do_not_fit(refusal):
    assert "_weight_scale is missing" in refusal(_weight_scale=None)
    assert "m._weight_scale has shape [6], expected [6, 1]" in refusal(_weight_scale=torch.ones(6))
    wrong = torch.zeros(6, 96).byte()
    assert "m._weight_qdata has dtype U8, expected I8" in refusal(_weight_qdata=wrong)
    zeros = torch.ones(6, 1).char()
    words = "m: quantization method 'torchao' with zero points: not decoded"
    assert refusal(error=UnsupportedFormat, _weight_zero_point=zeros) == words
    words = "m: quantization method 'torchao' with _weight_act_pre_scale is not supported"
    assert refusal(error=UnsupportedFormat, _weight_act_pre_scale=torch.ones(1)) == words
    words = "m: stored quantized, and modules_to_not_convert names it"
    assert refusal(config={"modules_to_not_convert": ["m"]}) == words

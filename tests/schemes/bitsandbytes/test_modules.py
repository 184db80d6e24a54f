"""Schemes of bitsandbytes' checkpoints by their headers and records, and each way they can be
wrong."""

import json

import pytest
import torch
from support.families.bitsandbytes import config, quantize, state
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.bitsandbytes import FourBit, LlmInt8, Modules, Nested
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

SHAPE = (6, 96)
STATE = "weight.quant_state.bitsandbytes__nf4"
WEIGHT = random_weight(*SHAPE, torch.bfloat16)


def stored(kind: str = "nf4", double: bool = False, **changes) -> dict[str, torch.Tensor]:
    tensors = quantize(WEIGHT, kind, double) | changes
    return {f"m.{k}": t for k, t in tensors.items() if k != "dense" and t is not None}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, kind="nf4", **others):
        path = write_checkpoint(tmp_path, tensors, config(kind, **others))
        return resolve(open_checkpoint(path))

    return build


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b.weight", ("a.b", "weight")),
        ("a.b.bias", ("a.b", "bias")),
        ("a.b.weight.absmax", ("a.b", "weight.absmax")),
        ("a.b.weight.nested_quant_map", ("a.b", "weight.nested_quant_map")),
        (f"a.b.{STATE}", ("a.b", STATE)),
        ("a.b.weight.other", ("a.b.weight", "other")),
        ("experts.gate_up_proj.absmax", ("experts.gate_up_proj", "absmax")),
        ("weight", ("", "weight")),
    ],
)
def test_a_tensors_module(name, parts):
    assert Modules.split(name) == parts


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(resolved, kind, double):
    tensors = stored(kind, double) | {"m.bias": torch.zeros(6), "lm_head.weight": torch.zeros(5, 4)}
    schemes = resolved(tensors, kind)
    assert list(schemes.quantized) == ["m"]
    scheme = schemes.quantized["m"]
    assert isinstance(scheme, FourBit)
    assert (scheme.shape, scheme.type, scheme.blocksize) == (SHAPE, kind, 64)
    assert scheme.dtype == torch.bfloat16
    assert isinstance(scheme.nested, Nested) == double


@pytest.mark.parametrize("storage", [torch.int8, torch.bfloat16, torch.float16, torch.float32])
def test_any_storage(resolved, storage):
    codes = quantize(WEIGHT, "nf4", False)["weight"].view(-1).view(storage).view(-1, 1)
    assert resolved(stored(weight=codes)).quantized["m"].shape == SHAPE


@pytest.mark.parametrize("order", [torch.tensor(0), torch.tensor([0]), None])
def test_eight_bits(resolved, order):
    order = None if order is None else order.to(torch.uint8)
    scheme = resolved(stored("int8", weight_format=order), "int8").quantized["m"]
    assert isinstance(scheme, LlmInt8) and scheme.shape == SHAPE
    assert scheme.inputs and scheme.inputs.label == "int8 token, outliers from 6 apart"


def test_bits_per_weight(tmp_path):
    """Of all that decoding reads; the table of 16 and the record are no parameters."""
    for kind, double, bits in [
        ("nf4", False, 4 + 32 * 9 / 576),
        ("nf4", True, 4 + (8 * 9 + 32 + 32 * 256) / 576),
        ("int8", False, 8 + 32 * 6 / 576),
    ]:
        tensors = stored(kind, double) | {"m.bias": torch.zeros(6)}
        path = write_checkpoint(tmp_path / f"{kind}{double}", tensors, config(kind, double))
        summary = summarize(open_checkpoint(path))
        assert summary.body_bits == bits and not summary.refusals
        assert (summary.parameters, summary.quantized) == (576 + 6, 576)


def changed(**fields) -> dict[str, torch.Tensor]:
    return stored(**{STATE: state("nf4", torch.bfloat16, SHAPE, **fields)})


def text(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (stored(weight=None), "m: quantized, and its tensor weight is missing"),
        (
            stored(**{"weight.absmax": None}) | {"n.weight.absmax": torch.ones(1)},
            "m: quantized, and its tensor weight.absmax is missing",
        ),
        (stored(**{"weight.absmax": torch.ones(8)}), "m.weight.absmax has shape [8], expected [9]"),
        (
            stored(**{"weight.absmax": torch.ones(9).half()}),
            "weight.absmax has dtype F16, expected F32",
        ),
        (
            stored(double=True, **{"weight.absmax": torch.ones(9)}),
            "weight.absmax has dtype F32, expected U8",
        ),
        (
            stored(double=True, **{"weight.nested_absmax": torch.ones(2)}),
            "nested_absmax has shape [2], expected [1]",
        ),
        (
            stored(double=True, **{"weight.nested_quant_map": None}),
            "m: quantized, and its tensor weight.nested_quant_map is missing",
        ),
        (
            stored(weight=torch.zeros(287, 1).byte()),
            "m.weight has shape [287, 1], expected [288, 1]",
        ),
        (
            stored(weight=torch.zeros(1, 288).byte()),
            "m.weight has shape [1, 288], expected [288, 1]",
        ),
        (stored(weight=torch.zeros(288, 1).int()), "m.weight has dtype I32, expected U8"),
        (stored(weight=torch.zeros(6, 96)), "m.weight has shape [6, 96], expected [72, 1]"),
        (stored(**{"weight.quant_map": torch.zeros(16)}), "m: its quant_map is not that of nf4"),
        (
            stored(**{"weight.quant_map": torch.zeros(15)}),
            "weight.quant_map has shape [15], expected [16]",
        ),
        (stored(**{STATE: None}), "m: quantized in 4 bits, and not with one weight.quant_state"),
        (stored(**{STATE: text(b"{")}), f"m: its {STATE} is not JSON"),
        (stored(**{STATE: text(b"[]")}), f"m: its {STATE} is not an object"),
        (stored(**{STATE: torch.zeros(3)}), f"m: its {STATE} is F32 [3], not a short text"),
        (changed(shape=[6, 97]), "m.weight has shape [288, 1], expected [291, 1]"),
        (changed(shape=[6]), "m: shape [6] in its"),
        (changed(shape=[True, 96]), "m: shape [True, 96] in its"),
        (changed(shape=None), "m: shape None in its"),
        (
            changed(nested_offset="1", nested_dtype="float32", nested_blocksize=256),
            "m: nested_offset '1' in its",
        ),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (changed(blocksize=48), "m: blocksize 48 in its"),
        (changed(blocksize=64.0), "m: blocksize 64.0 in its"),
        (changed(dtype="float8"), "m: dtype 'float8' in its"),
        (changed(quant_type="fp4"), "m: quant_type 'fp4' in its"),
        (changed(nested_blocksize=128, nested_dtype="float32", nested_offset=0.5),
         "m: nested_blocksize 128 in its"),
        (changed(nested_dtype="float16"), "m: nested_dtype 'float16' in its"),
        (stored(zero=torch.ones(1)), "m: quantization method 'bitsandbytes' with zero is not sup"),
        (
            stored() | {"e.up.absmax": torch.ones(1), "e.up.quant_map": torch.ones(16)},
            "e.up: a parameter that is no linear's weight in 4 bits (absmax, quant_map)",
        ),
        (
            {"m.weight": torch.zeros(4, 4)},
            "quantization method 'bitsandbytes' of 4 bits, and no tensor is a weight.absmax",
        ),
    ],
)  # fmt: skip
def test_what_is_not_decoded_is_named(refusal, tensors, words):
    assert words in refusal(tensors, error=UnsupportedFormat)


def test_eight_bits_that_do_not_fit(refusal):
    zero = torch.tensor(2, dtype=torch.uint8)
    words = "m: weight_format 2, not rows: not decoded"
    assert refusal(stored("int8", weight_format=zero), "int8", error=UnsupportedFormat) == words
    for change, words in [
        ({"SCB": torch.ones(5)}, "m.SCB has shape [5], expected [6]"),
        ({"SCB": torch.ones(6).half()}, "m.SCB has dtype F16, expected F32"),
        ({"weight": torch.zeros(6, 96).byte()}, "m.weight has dtype U8, expected I8"),
        ({"weight_format": torch.zeros(2).byte()}, "m.weight_format has shape [2], expected [1]"),
    ]:
        assert words in refusal(stored("int8", **change), "int8")
    # Neither kind passes for the other.
    assert "no tensor is a SCB" in refusal(stored(), "int8", error=UnsupportedFormat)


def test_a_module_that_the_list_names(refusal):
    words = "m: stored quantized, and llm_int8_skip_modules names it"
    assert refusal(stored(), llm_int8_skip_modules=["m"]) == words


def test_records_as_they_are_written():
    written = json.loads(bytes(state("nf4", torch.float16, SHAPE).tolist()))
    assert written == {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [6, 96]}

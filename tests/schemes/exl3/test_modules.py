"""Schemes of ExLlamaV3's checkpoints by their headers, and each way they can be wrong."""

import pytest
import torch
from support.families.exl3 import config, quantize
from support.schemes import write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.exl3 import Exl3
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize


def stored(of: int = 3, codebook: str = "mcg", signs: bool = False, **changes):
    torch.manual_seed(of)
    tensors = quantize(torch.randn(128, 256), of, codebook, signs) | changes
    return {f"m.{k}": t for k, t in tensors.items() if k != "dense" and t is not None}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, quantization=None, **others):
        path = write_checkpoint(tmp_path, tensors, quantization or config(), **others)
        return resolve(open_checkpoint(path))

    return build


@pytest.mark.parametrize("codebook", ["3inst", "mcg", "mul1"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_bits_and_codebook_are_the_tensors(resolved, bits, codebook):
    """Whatever the config says of either."""
    tensors = stored(bits, codebook) | {"m.bias": torch.zeros(128).half()}
    schemes = resolved(tensors | {"norm.weight": torch.zeros(5).half()}, config(4.5, "mul1"))
    assert schemes.quantized == {"m": Exl3((128, 256), bits, codebook)}


def test_signs_of_the_first_releases(resolved):
    tensors = stored(signs=True, suh=torch.ones(256).half(), su=None)
    assert resolved(tensors).quantized["m"] == Exl3((128, 256), 3, "mcg", (False, True))


def test_modules_that_are_alike_share_a_scheme(resolved):
    tensors = stored() | {k.replace("m.", "n."): t for k, t in stored().items()}
    schemes = resolved(tensors).quantized
    assert schemes["m"] is schemes["n"]


def test_bits_per_weight(tmp_path):
    path = write_checkpoint(tmp_path, stored() | {"m.bias": torch.zeros(128).half()}, config())
    summary = summarize(open_checkpoint(path))
    assert summary.body_bits == 3 + 16 / 128 + 16 / 256
    assert (summary.parameters, summary.quantized) == (128 * 256 + 128, 128 * 256)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            stored(trellis=None) | {k.replace("m.", "n."): t for k, t in stored().items()},
            "m: quantized, and its tensor trellis is missing",
        ),
        (stored(suh=None), "m: quantized, and its tensor suh is missing"),
        (stored(svh=None), "m: quantized, and its tensor svh is missing"),
        (stored(svh=torch.ones(128)), "m.svh has dtype F32, expected F16"),
        (stored(suh=torch.ones(128).half()), "m.suh has shape [128], expected [256]"),
        (stored(su=torch.ones(16).short()), "m: it has both su and suh"),
        (stored(svh=None, sv=torch.ones(9).short()), "m.sv has shape [9], expected [8]"),
        (stored(svh=None, sv=torch.ones(8).half()), "m.sv has dtype F16, expected I16"),
        (stored(trellis=torch.zeros(16, 8, 48).int()), "m.trellis has dtype I32, expected I16"),
        (stored(trellis=torch.zeros(16, 384).short()), "shape [16, 384], not [n, n, n]"),
        (stored(trellis=torch.zeros(16, 8, 40).short()), "m: 40 words a tile are not 1 to 8 bits"),
        (stored(trellis=torch.zeros(16, 8, 144).short()), "m: 144 words a tile are not 1 to 8"),
        (
            stored(trellis=torch.zeros(16, 9, 48).short()),
            "m: 144 outputs and 256 inputs are no whole blocks of 128",
        ),
        (
            stored(trellis=torch.zeros(7, 8, 48).short()),
            "m: 128 outputs and 112 inputs are no whole blocks of 128",
        ),
        (stored(mul1=torch.tensor(1).int()), "m: it is marked as of codebook mcg and mul1"),
        (stored(mcg=torch.ones(2).int()), "m.mcg has shape [2], expected [1]"),
        (stored(mcg=torch.tensor(1.0)), "m.mcg has dtype F32, expected I32"),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            stored(mcg=torch.tensor(0xCAF6A435 - (1 << 32)).int()),
            "m: quantization method 'exl3' with a codebook mcg of multiplier 0xcaf6a435: not decoded",
        ),
        (stored(scale=torch.ones(1)), "m: quantization method 'exl3' with scale is not supported"),
        (
            stored(weight=torch.ones(128, 256)),
            "m: quantization method 'exl3' with weight is not supported",
        ),
        (
            {"m.weight": torch.zeros(2, 2)},
            "quantization method 'exl3', and no tensor is a trellis: not decoded",
        ),
    ],
)
def test_what_is_not_decoded_is_named(refusal, tensors, words):
    assert refusal(tensors, error=UnsupportedFormat) == words


@pytest.mark.parametrize(
    "described",
    [
        {"model_type": "laguna"},
        {"model_type": "mistral3", "text_config": {"model_type": "mistral4"}},
    ],
)
def test_models_whose_experts_are_stored_divided(resolved, refusal, described):
    kind = described.get("text_config", described)["model_type"]
    words = (
        f"quantization method 'exl3' of a model of type '{kind}', whose experts it stores divided by "
        "128: not decoded"
    )
    assert refusal(stored(), error=UnsupportedFormat, **described) == words
    assert resolved(
        stored(), model_type="mistral3", text_config={"model_type": "mistral"}
    ).quantized

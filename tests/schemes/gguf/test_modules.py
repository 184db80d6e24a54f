"""Schemes of modules in blocks by their headers, and each way they can be wrong."""

import pytest
import torch
from support.gguf.blocks import dequantized, random_blocks
from support.schemes import decode, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import UnsupportedFormat
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.gguf import BLOCK_TYPES, Blocks, Scaled
from scoremode.schemes.resolve import resolve
from scoremode.schemes.summary import summarize

CONFIG = {"quant_method": "gguf"}


@pytest.fixture
def resolved(tmp_path):
    def build(tensors, config=CONFIG):
        return resolve(open_checkpoint(write_checkpoint(tmp_path, tensors, config)))

    return build


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_linears_and_embeddings(resolved, kind):
    tensors = {
        f"layers.0.q_proj.{kind}": random_blocks(kind, 6, 3),
        "layers.0.q_proj.bias": torch.zeros(6),
        f"layers.1.q_proj.{kind}": random_blocks(kind, 6, 3),
        f"embed_tokens.{kind}": random_blocks(kind, 9, 1),
        "norm.weight": torch.zeros(5),
    }
    schemes = resolved(tensors)
    values = BLOCK_TYPES[kind].values
    assert schemes.quantized == {
        "layers.0.q_proj": Blocks(kind, (6, 3 * values)),
        "layers.1.q_proj": Blocks(kind, (6, 3 * values)),
        "embed_tokens": Blocks(kind, (9, values)),
    }
    assert schemes.quantized["layers.0.q_proj"] is schemes.quantized["layers.1.q_proj"]
    assert schemes.parameter_of("embed_tokens") == "embed_tokens.weight"


@pytest.mark.parametrize("kind", BLOCK_TYPES)
def test_experts_are_stored_as_one(resolved, kind):
    packed = random_blocks(kind, 15, 2).view(3, 5, -1)
    schemes = resolved({f"mlp.experts.gate_proj.{kind}": packed})
    ((name, scheme),) = schemes.quantized.items()
    assert name == "mlp.experts.gate_proj.weight" and isinstance(scheme, Stacked)
    shape = 3, 5, 2 * BLOCK_TYPES[kind].values
    assert schemes.parameter_of(name) == name and scheme.shape == shape
    assert scheme.together == Blocks(kind, (15, shape[2]))
    expected = dequantized(kind, packed.view(15, -1)).view(shape)
    same(decode(scheme, {kind: packed}, torch.float32), expected)
    same(decode(scheme.one, {kind: packed[1]}, torch.float32), expected[1])


def test_bits_per_weight_by_type(tmp_path):
    tensors = {
        "a.q_proj.Q4_K": random_blocks("Q4_K", 8, 1),
        "b.q_proj.Q6_K": random_blocks("Q6_K", 8, 1),
        "c.experts.up_proj.Q8_0": random_blocks("Q8_0", 8, 8).view(2, 4, -1),
        "embed_tokens.Q6_K": random_blocks("Q6_K", 20, 1),
        "norm.weight": torch.zeros(256),
    }
    summary = summarize(open_checkpoint(write_checkpoint(tmp_path, tensors, CONFIG)))
    assert summary.parameters == 256 * (8 + 8 + 8 + 20 + 1)
    bits = {label: found.bits for label, found in summary.formats.items()}
    assert bits == {"Q4_K": 4.5, "Q6_K": 6.5625, "Q8_0": 8.5}
    assert summary.formats["Q6_K"].kinds == {"q_proj": 1, "embed_tokens": 1}
    assert summary.body_bits == pytest.approx((4.5 + 6.5625 + 8.5) / 3)


def test_one_more_factor(resolved):
    tensors = {
        "m.NVFP4": random_blocks("NVFP4", 6, 2),
        "m.scale": torch.ones(1),
        "n.experts.up_proj.NVFP4": random_blocks("NVFP4", 6, 2).view(2, 3, -1),
        "n.experts.up_proj.scale": torch.tensor([0.3, -0.7]),
    }
    schemes = resolved(tensors).quantized
    assert schemes["m"] == Scaled(Blocks("NVFP4", (6, 128)))
    experts = schemes["n.experts.up_proj.weight"]
    assert isinstance(experts, Stacked) and experts.together is None
    stored = {s: tensors[f"n.experts.up_proj.{s}"] for s in ("NVFP4", "scale")}
    expected = dequantized("NVFP4", stored["NVFP4"].view(6, -1)).view(2, 3, 128)
    same(decode(experts, stored, torch.float32), expected * stored["scale"][:, None, None])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (
            {"m.Q4_K": torch.zeros(6, 143).byte()},
            "m: 143 bytes a row are no whole Q4_K blocks of 144",
        ),
        ({"m.Q4_K": torch.zeros(6, 144)}, "m.Q4_K has dtype F32, expected U8"),
        ({"m.Q4_K": torch.zeros(144).byte()}, "m.Q4_K has shape [144], not [n, n]"),
        ({"m.Q4_K": torch.zeros(0, 144).byte()}, "m.Q4_K has shape [0, 144], not [n, n]"),
        ({"m.Q4_K": torch.zeros(2, 6, 144).byte()}, "m.Q4_K has shape [2, 6, 144], not [n, n]"),
        (
            {"m.NVFP4": torch.zeros(6, 36).byte(), "m.scale": torch.ones(6)},
            "m.scale has shape [6], expected [1]",
        ),
        (
            {"m.NVFP4": torch.zeros(6, 36).byte(), "m.scale": torch.ones(1).half()},
            "m.scale has dtype F16, expected F32",
        ),
        (
            {"m.experts.up_proj.Q4_K": torch.zeros(6, 144).byte()},
            "up_proj.Q4_K has shape [6, 144], not [n, n, n]",
        ),
        (
            {"m.Q4_K": torch.zeros(6, 144).byte(), "m.Q6_K": torch.zeros(6, 210).byte()},
            "m: stored more than once, as Q4_K and Q6_K",
        ),
        (
            {"m.Q4_K": torch.zeros(6, 144).byte(), "m.weight": torch.zeros(6, 256)},
            "m: stored more than once, as Q4_K and weight",
        ),
    ],
)
def test_tensors_that_do_not_fit(refusal, tensors, words):
    assert words in refusal(tensors)


def test_what_is_not_decoded_is_named(refusal):
    tensors = {"m.Q4_K": torch.zeros(6, 144).byte()}
    words = "m: quantization method 'gguf' with zeros is not supported"
    assert refusal(tensors | {"m.zeros": torch.ones(1)}, error=UnsupportedFormat) == words
    words = "m: blocks of ggml's type Q1_0: not decoded"
    assert refusal({"m.Q1_0": torch.zeros(6, 18).byte()}, error=UnsupportedFormat) == words
    words = "quantization method 'gguf' with 'bits': not decoded"
    assert refusal(tensors, CONFIG | {"bits": 4}, error=UnsupportedFormat) == words
    words = "quantization method 'gguf', and no tensor is in blocks: not decoded"
    assert refusal({"m.weight": torch.ones(2, 2)}, error=UnsupportedFormat) == words

"""Bits per weight of every preset, by hand: elements, then the scales over those that share one."""

import pytest
import torch
from support.schemes import compress, preset, quantization, random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.summary import not_finite, summarize, tied_embeddings

ROWS, COLUMNS = 256, 512
ELEMENTS = ROWS * COLUMNS
BITS = {
    **{f"W{bits}A16": bits + 16 / 128 for bits in range(2, 9)},
    # A zero point of 4 bits a group.
    "W4A16_ASYM": 4 + (16 + 4) / 128,
    "W4A8": 8 + 16 / 128,
    "W8A8": 8 + 16 / COLUMNS,
    "FP8": 8 + 16 / ELEMENTS,
    "FP8_DYNAMIC": 8 + 16 / COLUMNS,
    "FP8_BLOCK": 8 + 16 / 128**2,
    "NVFP4": 4 + 8 / 16 + 32 / ELEMENTS,
    "MXFP4": 4 + 8 / 32,
    "MXFP6A8": 6 + 8 / 32,
    "MXFP8": 8 + 8 / 32,
}


@pytest.mark.parametrize("name", BITS)
def test_bits_per_weight(name, tmp_path):
    """Of the body: neither the embedding's nor those of scales of the input."""
    scheme, form = preset(name)
    stored = compress(random_weight(ROWS, COLUMNS, torch.bfloat16), scheme, form)
    tensors = {f"model.up_proj.{key}": tensor for key, tensor in stored.items()}
    tensors["model.embed_tokens.weight"] = torch.zeros(7, 3, dtype=torch.bfloat16)
    config = quantization({"g": scheme.model_dump(mode="json")}, form, version="0.20.0")
    path = write_checkpoint(tmp_path, tensors, config)
    summary = summarize(open_checkpoint(path))
    assert summary.refusals == {}
    assert summary.body_bits == BITS[name]
    assert summary.parameters == ELEMENTS + 21
    assert sorted(f.modules for f in summary.formats.values()) == [1, 1]


@pytest.mark.parametrize("tied", [True, False, None])
def test_a_tied_head_that_is_stored_apart_counts_once(tied, tmp_path):
    """In EXL3 it is quantized, beside a dense embedding; its bytes are those of the file."""
    scheme, form = preset("W8A8")
    stored = compress(random_weight(ROWS, COLUMNS, torch.bfloat16), scheme, form)
    tensors = {f"lm_head.{key}": tensor for key, tensor in stored.items()}
    tensors["model.embed_tokens.weight"] = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16)
    config = quantization({"g": scheme.model_dump(mode="json")}, form, version="0.20.0")
    said = {} if tied is None else {"tie_word_embeddings": tied}
    path = write_checkpoint(tmp_path, tensors, config, **said)
    checkpoint = open_checkpoint(path)
    summary = summarize(checkpoint)
    parameters = ELEMENTS if tied else 2 * ELEMENTS
    assert (summary.parameters, summary.quantized) == (parameters, 0 if tied else ELEMENTS)
    assert summary.file_bits == 8 * checkpoint.bytes / parameters
    assert tied_embeddings(checkpoint) is tied


def test_what_is_not_finite_is_named(tmp_path):
    """A tensor as it is stored, or the codes of a weight that decode to it."""
    dense = {"a.weight": torch.ones(4, 32), "b.weight": torch.ones(4, 32)}
    config = {"quant_method": "fp8", "weight_block_size": [4, 32]}
    codes = torch.ones(4, 32).to(torch.float8_e4m3fn)
    packed = {"q.weight": codes, "q.weight_scale_inv": torch.ones(1, 1)}
    opened = [open_checkpoint(write_checkpoint(tmp_path / "ok", dense | packed, config))]
    dense["b.weight"][3, 7] = float("inf")
    codes.view(torch.uint8)[1, 2] = 0x7F
    opened += [
        open_checkpoint(write_checkpoint(tmp_path / str(n), tensors, config))
        for n, tensors in enumerate((dense | packed, packed))
    ]
    ok, by_value, by_code = map(not_finite, opened)
    assert ok is None
    assert by_value and by_value.endswith("tensor b.weight has values that are not finite")
    assert by_code and "the weight of q.weight, q.weight_scale_inv decodes to values" in by_code

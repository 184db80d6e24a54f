"""AutoAWQ's words of four outputs: decoded, told from headers, and each way they can be wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.families.qweight import Recipe, quantize
from support.schemes import DTYPES, decode, random_weight, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError
from scoremode.schemes.awq import GemvFast, gemv_fast_layout, stored_gemv_fast
from scoremode.schemes.qweight import Declared, Stored

GOLDEN = load_file(Path(__file__).parents[2] / "golden" / "qweight" / "gemv.safetensors")


@pytest.mark.parametrize("size", [32, 64, 128])
def test_what_autoawq_packs(size):
    name = f"fast-g{size}."
    stored = {k.removeprefix(name): t for k, t in GOLDEN.items() if k.startswith(name)}
    dense = stored.pop("weight_dense")
    scheme = GemvFast((8, dense.shape[1]), size)
    assert scheme.label == f"AWQ W4A16 g{size} asym" and set(scheme.tensors) == set(stored)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), dense.to(dtype))


def test_blocks_begin_at_whole_words(monkeypatch):
    monkeypatch.setattr("scoremode.schemes.decoding.unpack.BLOCK_ELEMENTS", {"cpu": 1000})
    stored, expected = quantize(
        random_weight(24, 192, torch.float32), Recipe(4, 64, order="gemv_fast")
    )
    same(decode(GemvFast((24, 192), 64), stored, torch.float16), expected)


@pytest.fixture
def stored(tmp_path):
    def make(size: int = 32, **changes: torch.Tensor | None) -> Stored:
        recipe = Recipe(4, size, order="gemv_fast")
        tensors, _ = quantize(random_weight(16, 384, torch.float32), recipe)
        kept = {f"m.{name}": t for name, t in (tensors | changes).items() if t is not None}
        checkpoint = open_checkpoint(write_checkpoint(tmp_path, kept, {"quant_method": "awq"}))
        headers = {name.removeprefix("m."): info for name, info in checkpoint.tensors.items()}
        return Stored("m", headers, checkpoint)

    return make


@pytest.mark.parametrize(("size", "places"), [(32, 32), (64, 16), (128, 8), (-1, 8)])
def test_shapes_and_what_a_config_alone_promises(stored, size, places):
    found, declared = stored(size), Declared(4, size, symmetric=False)
    scheme = stored_gemv_fast(found, declared)
    assert scheme == GemvFast((16, 384), 384 if size == -1 else size)
    assert found.tensors["qzeros"].shape == (places, 16)
    layout = gemv_fast_layout((16, 384), declared)
    assert layout is not None
    assert {k: (t.dtype, t.shape) for k, t in layout.items()} == {
        k: (t.dtype, t.shape) for k, t in found.tensors.items()
    }


@pytest.mark.parametrize("shape", [(16, 96), (18, 64), (16, 64 * 5)])
def test_linears_that_fill_no_words_or_groups_are_left_dense(shape):
    assert gemv_fast_layout(shape, Declared(4, 128, symmetric=False)) is None


@pytest.mark.parametrize(
    ("size", "changes", "words"),
    [
        (128, {}, "m.scales has shape [32, 16], expected [8, 16]"),
        (36, {}, "m: 384 inputs are no whole number of 64 or of groups of 36"),
        (32, {"qweight": torch.ones(4, 96).short()}, "m: 96 inputs are no whole number of 64"),
        (32, {"qweight": torch.ones(4, 384).int()}, "has dtype I32, expected I16"),
        (32, {"qzeros": torch.ones(32, 16).int()}, "has dtype I32, expected F16"),
        (32, {"qzeros": None}, "m: quantized, and its tensor qzeros is missing"),
    ],
)
def test_tensors_that_do_not_fit(stored, size, changes, words):
    with pytest.raises(CheckpointError) as caught:
        stored_gemv_fast(stored(**changes), Declared(4, size, symmetric=False))
    assert words in str(caught.value)

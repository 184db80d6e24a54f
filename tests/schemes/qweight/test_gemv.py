"""AutoAWQ's `gemv` and `gemv_fast`: decoded, told from headers, and each way they can be wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.families.qweight import Recipe, quantize
from support.kernel_twins import check_decoder, require_triton
from support.promises import headers, promised_headers
from support.schemes import DTYPES, decode, random_weight, same, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError
from scoremode.schemes.awq import (
    Gemv,
    GemvFast,
    gemv_fast_layout,
    gemv_layout,
    stored_gemv,
    stored_gemv_fast,
    zero_words,
)
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.qweight import Declared, Stored

GOLDEN = load_file(Path(__file__).parents[2] / "golden" / "qweight" / "gemv.safetensors")
READ = {"gemv": stored_gemv, "gemv_fast": stored_gemv_fast}
LAYOUTS = {"gemv": gemv_layout, "gemv_fast": gemv_fast_layout}


def case(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    stored = {k.partition(".")[2]: t for k, t in GOLDEN.items() if k.startswith(f"{name}.")}
    return stored, stored.pop("weight_dense")


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize("version", READ)
def test_what_autoawq_packs(version, size):
    stored, dense = case(f"g{size}" if version == "gemv" else f"fast-g{size}")
    shape = (8, dense.shape[1])
    scheme = GemvFast(shape, size)
    if version == "gemv":
        scheme = Gemv.of(Scaling(shape, "group", size))
        assert stored["scales"].shape[1] > dense.shape[1] // size
    assert scheme.label == f"AWQ W4A16 g{size} asym" and set(scheme.tensors) == set(stored)
    for dtype in DTYPES:
        same(decode(scheme, stored, dtype), dense.to(dtype))


def test_codes_and_scales():
    stored, dense = case("g64")
    scheme = Gemv.of(Scaling((8, dense.shape[1]), "group", 64))
    codes = torch.empty(scheme.shape)
    scales = scheme.factor(stored, codes, Scratch())
    assert codes.abs().max() <= 15 and scales.shape == (8, 5)
    same((codes * scales.repeat_interleave(64, 1)).half(), dense)


@pytest.mark.parametrize("size", [32, 64, 128, -1])
def test_the_cuda_decoder_gives_the_same_bits(size, monkeypatch):
    require_triton(monkeypatch)
    shape = (19, 640)
    stored, expected = quantize(random_weight(*shape, torch.float32), Recipe(4, size, order="gemv"))
    scheme = Gemv.of(Scaling(shape, "channel") if size == -1 else Scaling(shape, "group", size))
    same(decode(scheme, stored, torch.float16), expected)
    check_decoder(scheme, stored, torch.bfloat16)


def test_blocks_begin_at_whole_words(monkeypatch):
    monkeypatch.setattr("scoremode.schemes.decoding.unpack.BLOCK_ELEMENTS", {"cpu": 1000})
    recipe = Recipe(4, 64, order="gemv_fast")
    stored, expected = quantize(random_weight(24, 192, torch.float32), recipe)
    same(decode(GemvFast((24, 192), 64), stored, torch.float16), expected)


@pytest.fixture
def stored(tmp_path):
    """A module, and its tensors."""

    def make(version: str, size: int = 32, symmetric: bool = False, **changes):
        recipe = Recipe(4, size, order=version, symmetric=symmetric)  # type: ignore[arg-type]
        tensors, _ = quantize(random_weight(16, 384, torch.float32), recipe)
        kept = {name: t for name, t in (tensors | changes).items() if t is not None}
        named = {f"m.{name}": t for name, t in kept.items()}
        checkpoint = open_checkpoint(write_checkpoint(tmp_path, named, {"quant_method": "awq"}))
        infos = {name.removeprefix("m."): info for name, info in checkpoint.tensors.items()}
        return Stored("m", infos, checkpoint), kept

    return make


@pytest.mark.parametrize(
    ("version", "size", "zeros"),
    [
        *(("gemv", size, (16, words)) for size, words in ((32, 4), (64, 2), (128, 1), (384, 1))),
        ("gemv", -1, (16, 1)),
        *(("gemv_fast", size, (n, 16)) for size, n in ((32, 32), (64, 16), (128, 8), (-1, 8))),
    ],
)
def test_shapes_and_what_a_config_alone_promises(stored, version, size, zeros):
    (found, tensors), declared = stored(version, size), Declared(4, size, symmetric=False)
    scheme = READ[version](found, declared)
    assert scheme.shape == (16, 384) and found.tensors["qzeros"].shape == zeros
    assert promised_headers(LAYOUTS[version]((16, 384), declared)) == headers(tensors)


@pytest.mark.parametrize(
    ("version", "shape", "size"),
    [
        ("gemv", (16, 36), 32),
        ("gemv", (16, 40), 32),
        *(("gemv_fast", shape, 128) for shape in ((16, 96), (18, 64), (16, 64 * 5))),
    ],
)
def test_linears_that_fill_no_words_or_groups_are_left_dense(version, shape, size):
    assert LAYOUTS[version](shape, Declared(4, size, symmetric=False)) is None


@pytest.mark.parametrize(
    ("version", "size", "changes", "words"),
    [
        ("gemv", 128, {}, "m.qzeros has shape [16, 4], expected [16, 1]"),
        ("gemv", 36, {}, "m: 384 inputs are no whole number of groups of 36"),
        ("gemv", 32, {"scales": torch.ones(16, 12).half()}, "[16, 12], expected [16, 32]"),
        ("gemv", 32, {"scales": torch.ones(16, 32)}, "has dtype F32, expected F16"),
        ("gemv", 32, {"qzeros": None}, "m: quantized, and its tensor qzeros is missing"),
        ("gemv", 32, {"qweight": torch.ones(4).int()}, "has shape [4], not a matrix's"),
        ("gemv_fast", 128, {}, "m.scales has shape [32, 16], expected [8, 16]"),
        ("gemv_fast", 36, {}, "m: 384 inputs are no whole number of 64 or of groups of 36"),
        ("gemv_fast", 32, {"qweight": torch.ones(4, 96).short()}, "m: 96 inputs are no whole"),
        ("gemv_fast", 32, {"qweight": torch.ones(4, 384).int()}, "dtype I32, expected I16"),
        ("gemv_fast", 32, {"qzeros": torch.ones(32, 16).int()}, "dtype I32, expected F16"),
        ("gemv_fast", 32, {"qzeros": None}, "m: quantized, and its tensor qzeros is missing"),
    ],
)
def test_tensors_that_do_not_fit(stored, version, size, changes, words):
    found, _ = stored(version, **changes)
    with pytest.raises(CheckpointError) as caught:
        READ[version](found, Declared(4, size, symmetric=False))
    assert words in str(caught.value)


def test_zero_points_of_symmetric_weights_are_looked_at(stored):
    symmetric = Declared(4, 32, symmetric=True)
    # What lies beyond the last group is zeros in any case.
    assert stored_gemv(stored("gemv", symmetric=True)[0], symmetric)
    with pytest.raises(CheckpointError, match="m: zero_point is false, and its zero points are n"):
        stored_gemv(stored("gemv")[0], symmetric)


@pytest.mark.parametrize(
    ("columns", "size", "words"),
    [(4096, 128, 4), (1152, 128, 2), (320, 64, 2), (1088, 64, 4), (96, 32, 4), (1056, 32, 8)],
)
def test_words_of_zero_points(columns, size, words):
    assert zero_words(columns, size) == words

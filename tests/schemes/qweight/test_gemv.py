"""AutoAWQ's rows of words: decoded, told from headers, and each way they can be wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.families.qweight import Recipe, quantize
from support.kernel_twins import check_decoder
from support.schemes import DTYPES, decode, random_weight, same, write_checkpoint
from support.triton_interpreter import exact_bfloat16

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError
from scoremode.schemes.awq import Gemv, gemv_layout, stored_gemv, zero_words
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.qweight import Declared, Stored

GOLDEN = load_file(Path(__file__).parents[2] / "golden" / "qweight" / "gemv.safetensors")


def case(name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    stored = {k.partition(".")[2]: t for k, t in GOLDEN.items() if k.startswith(f"{name}.")}
    return stored, stored.pop("weight_dense")


@pytest.mark.parametrize("size", [32, 64, 128])
def test_what_autoawq_packs(size):
    stored, dense = case(f"g{size}")
    scheme = Gemv.of(Scaling((8, dense.shape[1]), "group", size))
    assert scheme.label == f"AWQ W4A16 g{size} asym"
    assert stored["scales"].shape[1] > dense.shape[1] // size
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
    triton = pytest.importorskip("triton", reason="needs Triton")
    if not torch.cuda.is_available():
        if not triton.knobs.runtime.interpret:
            pytest.skip("Triton was imported without its interpreter")
        exact_bfloat16(monkeypatch)
    stored, expected = quantize(
        random_weight(19, 640, torch.float32), Recipe(4, size, order="gemv")
    )
    shape = (19, 640)
    scheme = Gemv.of(Scaling(shape, "channel") if size == -1 else Scaling(shape, "group", size))
    same(decode(scheme, stored, torch.float16), expected)
    check_decoder(scheme, stored, torch.bfloat16)


@pytest.fixture
def stored(tmp_path):
    def make(size: int = 32, **changes: torch.Tensor | None) -> Stored:
        recipe = Recipe(4, size, order="gemv", symmetric=changes.pop("symmetric", False))  # type: ignore[arg-type]
        tensors, _ = quantize(random_weight(16, 384, torch.float32), recipe)
        kept = {f"m.{name}": t for name, t in (tensors | changes).items() if t is not None}
        checkpoint = open_checkpoint(write_checkpoint(tmp_path, kept, {"quant_method": "awq"}))
        headers = {name.removeprefix("m."): info for name, info in checkpoint.tensors.items()}
        return Stored("m", headers, checkpoint)

    return make


@pytest.mark.parametrize(("size", "words"), [(32, 4), (64, 2), (128, 1), (384, 1), (-1, 1)])
def test_shapes_and_what_a_config_alone_promises(stored, size, words):
    found, declared = stored(size), Declared(4, size, symmetric=False)
    scheme = stored_gemv(found, declared)
    assert scheme.shape == (16, 384) and found.tensors["qzeros"].shape == (16, words)
    layout = gemv_layout((16, 384), declared)
    assert layout is not None
    assert {k: (t.dtype, t.shape) for k, t in layout.items()} == {
        k: (t.dtype, t.shape) for k, t in found.tensors.items()
    }


def test_inputs_that_fill_no_words_or_groups_are_left_dense():
    declared = Declared(4, 32, symmetric=False)
    for columns in (36, 40):
        assert gemv_layout((16, columns), declared) is None


@pytest.mark.parametrize(
    ("size", "changes", "words"),
    [
        (128, {}, "m.qzeros has shape [16, 4], expected [16, 1]"),
        (36, {}, "m: 384 inputs are no whole number of groups of 36"),
        (32, {"scales": torch.ones(16, 12).half()}, "has shape [16, 12], expected [16, 32]"),
        (32, {"scales": torch.ones(16, 32)}, "has dtype F32, expected F16"),
        (32, {"qzeros": None}, "m: quantized, and its tensor qzeros is missing"),
        (32, {"qweight": torch.ones(4).int()}, "has shape [4], not a matrix's"),
    ],
)
def test_tensors_that_do_not_fit(stored, size, changes, words):
    with pytest.raises(CheckpointError) as caught:
        stored_gemv(stored(**changes), Declared(4, size, symmetric=False))
    assert words in str(caught.value)


def test_zero_points_of_symmetric_weights_are_looked_at(stored):
    symmetric = Declared(4, 32, symmetric=True)
    # What lies beyond the last group is zeros in any case.
    assert stored_gemv(stored(symmetric=True), symmetric)
    with pytest.raises(CheckpointError, match="m: zero_point is false, and its zero points are n"):
        stored_gemv(stored(), symmetric)


@pytest.mark.parametrize(
    ("columns", "size", "words"),
    [(4096, 128, 4), (1152, 128, 2), (320, 64, 2), (1088, 64, 4), (96, 32, 4), (1056, 32, 8)],
)
def test_words_of_zero_points(columns, size, words):
    assert zero_words(columns, size) == words

"""AWQ and GPTQ decoded, against the packer's own arithmetic and compressed-tensors' converter."""

import json
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from safetensors import safe_open
from support.families.qweight import Recipe, quantize
from support.schemes import DTYPES, decode, random_weight, same

from scoremode.schemes.decoding.codes import Scaling
from scoremode.schemes.qweight import Qweight

GOLDEN = Path(__file__).parents[2] / "golden" / "qweight" / "linears.safetensors"


def build(recipe: Recipe, shape: tuple[int, int], *, reads_zeros: bool = True) -> Qweight:
    scaling = Scaling(shape, "group", recipe.size) if recipe.size > 0 else Scaling(shape, "channel")
    order = "columns" if recipe.order == "columns" else "outputs"
    asymmetric = reads_zeros or not recipe.symmetric
    return Qweight.of(scaling, recipe.bits, "X", order, asymmetric, recipe.ordered, recipe.less_one)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [32, 24, -1])
@pytest.mark.parametrize("less_one", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits, symmetric, less_one, size, dtype):
    recipe = Recipe(bits, size, symmetric, less_one=less_one, ordered=size == 24, scale=dtype)
    stored, expected = quantize(random_weight(64, 96, torch.float32), recipe)
    scheme = build(recipe, (64, 96))
    same(decode(scheme, stored, dtype), expected)
    # Rounded in the scales' dtype first, whatever is computed in.
    same(decode(scheme, stored, torch.float32), expected.float())
    if symmetric:
        # Without zero points, which are half of the range all of them.
        del stored["qzeros"]
        same(decode(build(recipe, (64, 96), reads_zeros=False), stored, dtype), expected)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq_of_a_single_row_of_words(bits):
    """Whose transposition torch takes for contiguous as it is."""
    recipe, shape = Recipe(bits, -1), (64, 32 // bits)
    stored, expected = quantize(random_weight(*shape, torch.float32), recipe)
    same(decode(build(recipe, shape), stored, torch.float16), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [32, 40, -1])
@pytest.mark.parametrize("shape", [(64, 96), (8, 1), (24, 2053)])
def test_awq(shape, size, dtype):
    recipe = Recipe(4, size, order="outputs", scale=dtype)
    stored, expected = quantize(random_weight(*shape, torch.float32), recipe)
    same(decode(build(recipe, shape), stored, torch.float32), expected.float())


def test_awq_as_compressed_tensors_converts_it():
    """Its converter writes codes and zero points of its own format."""
    recipe = Recipe(4, 32, order="outputs")
    stored, _ = quantize(random_weight(64, 96, torch.float32), recipe)
    converter = AutoAWQConverter(targets=["m"])
    found = converter.process({f"m.{name}": t for name, t in stored.items() if name != "g_idx"})
    codes = unpack_from_int32(found["m.weight_packed"], 4, torch.Size((64, 96)))
    zero = unpack_from_int32(found["m.weight_zero_point"], 4, torch.Size((64, 3)), packed_dim=0)
    scale = found["m.weight_scale"]
    less = (codes.half() - zero.half().repeat_interleave(32, 1)) * scale.repeat_interleave(32, 1)
    same(decode(build(recipe, (64, 96)), stored, torch.float16), less)


def test_blocks_of_rows_begin_at_whole_words(monkeypatch):
    monkeypatch.setattr("scoremode.schemes.decoding.unpack.BLOCK_ELEMENTS", {"cpu": 1000})
    recipe = Recipe(4, 32, order="outputs")
    stored, expected = quantize(random_weight(72, 96, torch.float32), recipe)
    same(decode(build(recipe, (72, 96)), stored, torch.float16), expected)


@pytest.mark.parametrize(
    ("recipe", "label"),
    [
        (Recipe(4, 128), "X W4A16 g128 asym"),
        (Recipe(3, 128, symmetric=True), "X W3A16 g128"),
        (Recipe(4, 128, ordered=True), "X W4A16 g128 asym g_idx"),
        (Recipe(8, -1, symmetric=True), "X W8A16 channel"),
    ],
)
def test_labels(recipe, label):
    assert build(recipe, (8, 256), reads_zeros=False).label == label


def test_golden_files_of_gptqmodel_and_auto_round():
    """Whatever they stored is read as they read it, to the bit (golden/qweight/make_linears.py)."""
    with safe_open(GOLDEN, "pt") as file:
        cases = json.loads(file.metadata()["cases"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert len(cases) == 20
    for name, about in cases.items():
        stored = {k.partition(".")[2]: t for k, t in tensors.items() if k.startswith(f"{name}.")}
        expected = stored.pop("weight_dense")
        recipe = Recipe(
            about["bits"], about["group_size"], less_one=about["less_one"], ordered="order" in name
        )
        assert expected.dtype == torch.float16, name
        same(decode(build(recipe, expected.shape), stored, torch.float16), expected)

import numpy as np
import pytest
import torch
from support.families.qweight import Recipe, packed, quantize
from support.schemes import random_weight, write_checkpoint

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.qweight import Declared, Stored
from scoremode.schemes.resolve import resolve

SHAPE = (64, 96)
PLAIN = Recipe()


@pytest.fixture
def stored(tmp_path):
    """A module of a recipe, some of its tensors replaced; None takes one away."""

    def make(recipe: Recipe = PLAIN, **changes: torch.Tensor | None) -> Stored:
        tensors, _ = quantize(random_weight(*SHAPE, torch.float32), recipe)
        tensors |= changes
        kept = {f"m.{name}": t for name, t in tensors.items() if t is not None}
        checkpoint = open_checkpoint(write_checkpoint(tmp_path, kept, {"quant_method": "gptq"}))
        headers = {name.removeprefix("m."): info for name, info in checkpoint.tensors.items()}
        return Stored("m", headers, checkpoint)

    return make


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_bits_and_shape_come_from_the_tensors(stored, bits):
    assert stored(Recipe(bits)).words() == ("columns", bits, SHAPE, 3)


def test_awqs_words_are_told_from_gptqs(stored):
    assert stored(Recipe(order="outputs")).words() == ("outputs", 4, SHAPE, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qzeros": None}, "m: quantized, and its tensor qzeros is missing"),
        ({"scales": None}, "its tensor scales is missing"),
        ({"qweight": None}, "its tensor qweight is missing"),
        (
            {"qzeros": ints(3, 7)},
            "m: qzeros [3, 7] are not those of scales [3, 64] at 2, 3, 4 or 8",
        ),
        ({"qzeros": ints(2, 8)}, "qzeros [2, 8] are not those of scales [3, 64]"),
        ({"qzeros": ints(3, 10)}, "qzeros [3, 10] are not"),
        ({"qweight": ints(12, 63)}, "qweight [12, 63] is not one of 64 outputs at 4 bits"),
        ({"qweight": ints(12, 64).short()}, "dtype I16, expected I32"),
        ({"scales": ints(3, 64)}, "dtype I32, expected BF16 or F16 or F32"),
        ({"scales": torch.ones(64)}, "not a matrix's"),
        ({"qweight": ints(0, 64)}, "not a matrix's"),
    ],
)
def test_tensors_that_do_not_fit(stored, changes, words):
    with pytest.raises(CheckpointError) as error:
        stored(**changes).words()
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_config_must_say_what_is_stored(stored):
    here = stored()
    first, other = Declared(4, 128, True), Declared(4, 32, False)
    assert here.declared(4, 96, 3, other, ()) is other
    assert here.declared(4, 96, 3, first, (other,)) is other
    # A last group may be short, and -1 is all inputs.
    assert here.declared(4, 96, 3, Declared(4, 40, True), ()).group_size == 40
    assert here.declared(4, 96, 1, Declared(4, -1, True), ()).group_size == -1
    with pytest.raises(CheckpointError, match="4 bits and 3 groups of 96 inputs, and the config"):
        here.declared(4, 96, 3, first, (Declared(8, 32, True),))


@pytest.mark.parametrize("declared", [True, False])
def test_activation_order(stored, declared):
    here = stored()
    grouped = here.scaling(SHAPE, Declared(4, 32, True))
    assert not here.in_activation_order(grouped, declared=declared)
    ordered = stored(Recipe(ordered=True))
    if declared:
        assert ordered.in_activation_order(grouped, declared=True)
    else:
        with pytest.raises(CheckpointError, match="activation order, and desc_act is not true"):
            ordered.in_activation_order(grouped, declared=False)


def test_sizes_of_as_many_groups(stored):
    """Of 96 inputs two sizes may make as many groups, and mean other weights."""
    here = stored()

    def found(groups: int, first: Declared, *others: Declared) -> Declared:
        return here.declared(4, 96, groups, first, (first, *others))

    one, all_, more = (Declared(4, size, True) for size in (96, -1, 128))
    of_32, of_40, of_50 = (Declared(4, size, True) for size in (32, 40, 50))
    # One group of all is the same by whatever size, and the module's own goes before all.
    assert found(1, more, all_) is more and found(1, of_32, all_, one, more) is all_
    assert found(3, of_32, of_40) is of_32 and found(3, of_40, of_32) is of_40
    assert found(2, of_32, of_50) is of_50
    with pytest.raises(CheckpointError) as error:
        found(3, of_50, of_40, of_32)
    assert str(error.value) == (
        "m: stored in 4 bits and 3 groups of 96 inputs, and the config says 4 bits in groups of 50; of "
        "others it says 4 bits in groups of 40, sym True and 4 bits in groups of 32, sym True, and "
        "nothing tells which of these it is"
    )
    with pytest.raises(
        CheckpointError, match=r"groups of 32, sym True and .* 32, sym False, and not"
    ):
        found(3, of_50, of_32, Declared(4, 32, False))


def test_activation_order_that_makes_other_groups(stored):
    order = torch.arange(96, dtype=torch.int32) // 32
    order[0] = 2
    here = stored(g_idx=order)
    with pytest.raises(CheckpointError, match="g_idx doesn't put 96 inputs into g32"):
        here.in_activation_order(here.scaling(SHAPE, Declared(4, 32, True)), declared=True)


def test_activation_order_without_its_tensor(stored):
    here = stored(g_idx=None)
    grouped, whole = (here.scaling(SHAPE, Declared(4, size, True)) for size in (32, -1))
    with pytest.raises(CheckpointError, match="desc_act is true, and its tensor g_idx is missing"):
        here.in_activation_order(grouped, declared=True)
    assert not here.in_activation_order(grouped, declared=False)
    assert not here.in_activation_order(whole, declared=True)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_stored_zero_points(stored, bits):
    codes = np.full((3, 64), 2)
    here = stored(Recipe(bits), qzeros=packed(codes, bits))
    assert here.zeros_are(2, bits) and not here.zeros_are(1, bits)
    assert here.has_zero(2, bits) and not here.has_zero(1, bits)
    codes[2, 63] = 1
    here = stored(Recipe(bits), qzeros=packed(codes, bits))
    assert not here.zeros_are(2, bits) and not here.zeros_are(1, bits)
    assert here.has_zero(2, bits) and here.has_zero(1, bits) and not here.has_zero(0, bits)


def test_tensors_that_nothing_uses(stored):
    from scoremode.schemes.qweight import Qweight

    here = stored(weird=ints(1))
    scheme = Qweight.of(here.scaling(SHAPE, Declared(4, 32, True)), 4, "GPTQ", "columns", True)
    with pytest.raises(CheckpointError, match="m: GPTQ W4A16 g32 asym has no weird"):
        here.used_by(scheme, "g_idx")
    assert stored().used_by(scheme, "g_idx") is scheme


@pytest.mark.parametrize("method", ["awq", "gptq", "auto-round"])
def test_a_wholly_dense_checkpoint_is_refused(method, tmp_path):
    """Marlin's `B` and `s`, or weights that were only made to look quantized."""
    named = {"m.weight": torch.ones(64, 96, dtype=torch.half)}
    folder = write_checkpoint(tmp_path, named, {"quant_method": method, "bits": 4})
    with pytest.raises(UnsupportedFormat, match=f"'{method}', and no tensor is a qweight"):
        resolve(open_checkpoint(folder))

"""The CUDA decoder against each scheme's plain torch, bit for bit.

Under Triton's interpreter where there is no GPU.
"""

import pytest
import torch
from support.decoding_cases import (
    DTYPES,
    Case,
    differing,
    every_form,
    floats,
    integers,
    modelopt_int4,
    mx,
    nvfp4,
    packed,
)
from support.kernel_twins import by_kernel, by_twin, launches
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.schemes.decoding.codes import Scaling

triton = pytest.importorskip("triton", reason="needs Triton")
if not torch.cuda.is_available() and not triton.knobs.runtime.interpret:
    pytest.skip("Triton was imported without its interpreter", allow_module_level=True)
kernels = pytest.importorskip("scoremode.schemes.decoding.kernels")

# What overflows on a GPU without a word, numpy warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
FORMS = list(every_form((19, 76)))


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """So that small weights have several, and the interpreter less to do."""
    if DEVICE.type == "cpu":
        exact_bfloat16(monkeypatch)
        monkeypatch.setattr(kernels, "_TILES", dict.fromkeys(kernels._TILES, (32, 64, 4)))


def check(case: Case, dtypes=DTYPES, factors=None) -> None:
    wanted = [("decode", d) for d in dtypes]
    wanted += [("factor", d) for d in (case.factors if factors is None else factors)]
    for what in wanted:
        twin = by_twin(case.scheme, case.tensors, *what)
        with launches() as names:
            ours = by_kernel(case.scheme, case.tensors, *what)
        assert names and differing(ours, twin) == 0, what


@pytest.mark.parametrize("index", range(len(FORMS)), ids=lambda i: FORMS[i].name)
def test_every_form(index):
    case = FORMS[index]
    factors = case.factors[index % 3 :][:1] if index % 2 else ()
    check(case, [DTYPES[index // 3 % 3]], factors)


@pytest.mark.parametrize("scale", DTYPES, ids=str)
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_every_dtype(bits, scale):
    check(packed(Scaling((7, 40), "group", 16), bits, True, True, scale, 1))


@pytest.mark.parametrize(
    "case",
    [
        packed(Scaling((1, 1), "channel"), 4, True, True, torch.bfloat16, 0),
        packed(Scaling((1, 9), "group", 8), 3, True, True, torch.bfloat16, 0),
        packed(Scaling((2, 101), "group", 64), 5, False, True, torch.float16, 0),
        packed(Scaling((33, 45), "group", 45), 7, True, False, torch.float32, 0),
        packed(Scaling((70, 7), "channel"), 6, True, True, torch.float32, 0),
        integers(Scaling((5, 33), "group", 32), True, torch.bfloat16, 0),
        integers(Scaling((3, 5), "channel"), True, torch.bfloat16, 0),
        floats(Scaling((5, 33), "block", block=(4, 24)), torch.bfloat16, 0),
        floats(Scaling((1, 1), "tensor"), torch.float16, 0),
        nvfp4((5, 34), 3.0, 0),
        nvfp4((3, 2), 3.0, 0),
        modelopt_int4((2, 3), 16, 0),
        modelopt_int4((70, 101), 64, 0),
        mx((5, 36), 4, 0),
        mx((5, 36), 6, 0),
        mx((3, 45), 8, 0),
    ],
    ids=lambda case: case.name,
)
def test_ragged_shapes(case):
    check(case)


@pytest.mark.parametrize("make", [lambda: nvfp4((5, 64), 3.0, 0), lambda: mx((5, 64), 6, 0)])
def test_bytes_at_odd_places(make):
    """An expert's share of a tensor can begin anywhere."""
    case = make()
    name = case.scheme.tensors[0]
    moved = torch.cat((torch.zeros(1, dtype=torch.uint8), case.tensors[name].flatten()))
    case.tensors[name] = moved[1:].view(case.tensors[name].shape)
    check(case)


def test_powers_of_two_may_be_stored_as_such():
    case = mx((5, 64), 4, 0)
    case.tensors["weight_scale"] = case.tensors["weight_scale"].view(torch.float8_e8m0fnu)
    check(case)


def test_every_float8_under_every_power_of_two(monkeypatch):
    codes = torch.arange(256).to(torch.uint8)
    case = mx((256, 256), 8, 0)
    case.tensors["weight"] = codes.view(torch.float8_e4m3fn).repeat(256, 1)
    case.tensors["weight_scale"] = codes.unsqueeze(1).repeat(1, 8)
    if DEVICE.type == "cpu":
        # In one piece: the interpreter's cost is that of a program.
        monkeypatch.setattr(kernels, "_TILES", dict.fromkeys(kernels._TILES, (256, 256, 4)))
    check(case, [torch.bfloat16], ())


def test_every_float4_under_every_float8():
    codes = torch.arange(256).to(torch.uint8)
    case = nvfp4((256, 16), 9 / 347, 0)
    case.tensors["weight_packed"] = (codes[0:16:2] | codes[1:16:2] << 4).repeat(256, 1)
    case.tensors["weight_scale"] = codes.unsqueeze(1).view(torch.float8_e4m3fn)
    check(case)


def test_names_say_what_was_decoded():
    case = packed(Scaling((4, 32), "group", 16), 4, True, True, torch.bfloat16, 0)
    with launches() as names:
        by_kernel(case.scheme, case.tensors, "decode", torch.bfloat16)
        by_kernel(case.scheme, case.tensors, "factor", torch.int8)
    assert names == ["decode W4A16 g16 asym", "factor W4A16 g16 asym"]


def test_a_scale_of_255_is_nan_where_the_format_says_so():
    from scoremode.schemes.compressed_tensors_weights import mx
    from scoremode.schemes.fp8 import block_float8

    scales = torch.tensor([[0, 1], [127, 254], [255, 120]], dtype=torch.uint8)
    codes = torch.arange(3 * 32, dtype=torch.uint8).view(3, 32)
    of_four = {"weight_packed": codes, "weight_scale": scales}
    of_eight = {"weight": codes.view(torch.float8_e4m3fn), "weight_scale_inv": scales}
    for scheme, tensors in (
        (mx(Scaling((3, 64), "group", 32), 4, nan_scale=True), of_four),
        (block_float8(Scaling((3, 32), "block", block=(1, 16))), of_eight),
    ):
        case = Case(scheme.label, scheme, tensors, ())
        check(case)
        assert (
            by_twin(case.scheme, case.tensors, "decode", torch.float32)[2, : scheme.shape[1] // 2]
            .isnan()
            .all()
        )

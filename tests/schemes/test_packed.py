"""A format of a few lines on the base of all, against Python's own integers."""

from itertools import product

import pytest
import torch
from support.schemes import same

from scoremode.lib import fallback
from scoremode.schemes.base import Scratch
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import BLOCK_ELEMENTS, FLOATS, Elements
from scoremode.schemes.packed import Packed


def format_of(scaling: Scaling, elements: Elements, **names: str) -> Packed:
    own = {"label": "a format", "codes": Codes("int"), "weight": "codes"}
    return Packed(scaling=scaling, elements=elements, **own | names)


def words(rows: list[list[int]], bits: int) -> torch.Tensor:
    """int32 words of each row, its first value in the lowest bits."""
    content = b""
    for row in rows:
        number = sum(value << i * bits for i, value in enumerate(row))
        content += number.to_bytes(-(-len(row) * bits // 32) * 4, "little")
    return torch.frombuffer(bytearray(content), dtype=torch.int32).view(len(rows), -1)


CODES = [[(7 * i + 5 * j) % 32 for j in range(11)] for i in range(6)]
ZEROS = [[(3 * i + 11 * j) % 32 for j in range(3)] for i in range(6)]
SCALES = [[(i + 1) * 2.0 ** (j - 2) for j in range(3)] for i in range(6)]
SCALING = Scaling((6, 11), "group", 4)


@pytest.mark.parametrize("elements", [1, 22, 1 << 20])
@pytest.mark.parametrize("g_idx", [None, [2, 0, 1, 0, 1, 0, 1, 0, 1, 2, 2]])
def test_codes_less_zero_points_times_scales(g_idx, elements, monkeypatch):
    """Whatever the rows of a block are."""
    monkeypatch.setitem(BLOCK_ELEMENTS, "cpu", elements)
    tensors = {
        "codes": words(CODES, 5),
        "weight_scale": torch.tensor(SCALES),
        "weight_zero_point": words([list(column) for column in zip(*ZEROS, strict=True)], 5).T,
    }
    if g_idx:
        tensors["weight_g_idx"] = torch.tensor(g_idx, dtype=torch.int32)
    group = g_idx or [j // 4 for j in range(11)]
    values = [[CODES[i][j] - ZEROS[i][group[j]] for j in range(11)] for i in range(6)]
    weight = [[values[i][j] * SCALES[i][group[j]] for j in range(11)] for i in range(6)]
    order = {"g_idx": "weight_g_idx"} if g_idx else {}
    scheme = format_of(SCALING, Elements(5), zero_point="weight_zero_point", **order)
    out = torch.empty(6, 11)
    scheme.decode(tensors, out, Scratch())
    assert out.tolist() == weight
    for dtype in (torch.int8, torch.bfloat16):
        codes = torch.empty(6, 11, dtype=dtype)
        assert torch.equal(scheme.factor(tensors, codes, Scratch()), torch.tensor(SCALES))
        assert codes.tolist() == values


def test_zero_points_may_be_bytes_and_blocks_share_them():
    tensors = {
        "codes": words(CODES, 5),
        "weight_scale": torch.tensor([[0.5, 2.0], [1.0, 4.0]]),
        "weight_zero_point": torch.tensor([[-3, 5], [0, 1]], dtype=torch.int8),
    }
    out = torch.empty(6, 11)
    scaling = Scaling((6, 11), "block", block=(4, 8))
    scheme = format_of(scaling, Elements(5), zero_point="weight_zero_point")
    scheme.decode(tensors, out, Scratch())
    for i, j in product(range(6), range(11)):
        place = i // 4, j // 8
        value = CODES[i][j] - 16 - tensors["weight_zero_point"][place]
        assert out[i, j] == value * tensors["weight_scale"][place]


def test_scales_of_a_byte_are_powers_of_two_and_round_to_bfloat16():
    codes = torch.arange(256).to(torch.uint8).repeat(3, 1)
    exponents = torch.tensor([[0], [127], [255]]).to(torch.uint8)
    out = torch.empty(3, 256)
    scheme = format_of(Scaling((3, 256), "channel"), FLOATS[8])
    scheme.decode({"codes": codes, "weight_scale": exponents}, out, Scratch())
    floats = codes[0].view(torch.float8_e4m3fn).float()
    expected = [floats * 2.0**-127, floats, floats * torch.inf]
    same(out, torch.stack(expected).bfloat16())
    assert not torch.equal(out[0].nan_to_num(), expected[0].nan_to_num())


def test_the_kernel_is_asked_first_and_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr(fallback, "attempt", lambda name, *_: asked.append(name) or True)
    scheme, out = format_of(SCALING, Elements(5)), torch.full((6, 11), 77.0)
    tensors = {"codes": words(CODES, 5), "weight_scale": torch.tensor(SCALES)}
    scheme.decode(tensors, out, Scratch())
    scheme.factor(tensors, out, Scratch())
    assert asked == ["decode a format", "factor a format"] and (out == 77).all()

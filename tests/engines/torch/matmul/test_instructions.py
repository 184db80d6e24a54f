"""What a device is believed to multiply by itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul import products
from scoremode.engines.torch.matmul import products as instructions
from scoremode.schemes.decoding.codes import Codes

CPU = choose_device("cpu", None, None)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of some compute capability."""

    def make(*capability: int) -> Any:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        return SimpleNamespace(is_cuda=True, torch=torch.device("cuda", 0))

    return make


def test_a_single_column_is_not_multiplied_natively():
    """torch 2.13 gives other numbers there."""
    int8 = Codes("int", 128)
    assert not products.choose_product(int8, int8, (8, 1), CPU).native


def test_int8_needs_turing_and_whole_vectors(gpu):
    assert instructions.multiplies_int8(gpu(7, 5), (16, 24))
    assert not instructions.multiplies_int8(gpu(7, 0), (16, 24))
    for shape in ((12, 24), (16, 20)):
        assert not instructions.multiplies_int8(gpu(9, 0), shape)


def test_float8_needs_ada_and_whole_vectors(gpu):
    assert instructions.multiplies_float8(gpu(8, 9), (16, 32), None)
    assert instructions.multiplies_float8(gpu(8, 9), (16, 32), 16)
    assert not instructions.multiplies_float8(gpu(8, 6), (16, 32), None)
    for shape, step in (((8, 32), None), ((16, 24), None), ((16, 32), 8)):
        assert not instructions.multiplies_float8(gpu(9, 0), shape, step)


def test_kernels_need_ampere_and_triton(gpu, monkeypatch):
    monkeypatch.setattr(instructions, "is_missing", lambda: None)
    assert instructions.has_kernels(gpu(8, 0)) and not instructions.has_kernels(gpu(7, 5))
    monkeypatch.setattr(instructions, "is_missing", lambda: "No module named 'triton'")
    assert not instructions.has_kernels(gpu(8, 0))


def test_a_cpu_has_neither_float8_nor_kernels():
    assert not instructions.multiplies_float8(CPU, (16, 32), None)
    assert not instructions.has_kernels(CPU)


@pytest.mark.parametrize(
    ("x_group", "weight", "shape", "taken"),
    [
        (128, Codes("float8", None, 128, 128), (304, 640), True),
        # Each row under scales of its own, other blocks, a last one that is short.
        (128, Codes("float8", None, 128), (304, 640), False),
        (64, Codes("float8", None, 128, 128), (304, 640), False),
        (128, Codes("float8", None, 128, 64), (304, 640), False),
        (128, Codes("float8", None, 128, 128), (304, 656), False),
    ],
)
def test_blocks_of_float8_that_cublas_multiplies(gpu, monkeypatch, x_group, weight, shape, taken):
    monkeypatch.setattr(instructions, "is_missing", lambda: None)
    monkeypatch.setattr(products, "scales_blocks", lambda device: True)
    product = products.choose_product(Codes("float8", None, x_group), weight, shape, gpu(9, 0))
    assert product.native and ("scaled_mm of blocks" in product.name) is taken


def test_blocks_of_float8_need_hopper(gpu):
    instructions.scales_blocks.cache_clear()
    assert not instructions.scales_blocks(gpu(8, 9).torch)
    instructions.scales_blocks.cache_clear()
    assert not instructions.scales_blocks(gpu(10, 0).torch)
    instructions.scales_blocks.cache_clear()

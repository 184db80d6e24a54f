"""Products of codes against integer and float64 arithmetic."""

import pytest
import torch

from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul import products
from scoremode.engines.torch.matmul.products import (
    cpu_multiplies_int8,
    exact_int_product,
    int8_product,
)
from scoremode.engines.torch.matmul.sums import Operands
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Scratch
from scoremode.schemes.compressed_tensors_weights import int_quantized, pack_quantized
from scoremode.schemes.decoding.codes import Codes, Quantized, Scaling
from scoremode.schemes.fields import TensorFormat

CPU = choose_device("cpu", None, None)
EPS = torch.finfo(torch.float32).eps


def test_zero_points_of_more_than_their_bits():
    """An int8 holds any: codes less such a zero point are no int8 any more."""
    form = TensorFormat(4, "int", "tensor", symmetric=False)
    inputs = Inputs(form, ("input_scale", "input_zero_point"))
    assert not products.choose_product(inputs.codes, Codes("int", 8), (8, 64), CPU).native
    stored = {"input_scale": torch.ones(1), "input_zero_point": torch.tensor([127]).to(torch.int8)}
    codes = inputs.quantize(torch.zeros(1, 64), stored).codes.float()
    assert (codes == 7 - 127).all()
    for weights in (
        int_quantized(Scaling((8, 64), "channel"), 4, has_zero_point=True),
        pack_quantized(Scaling((8, 64), "tensor"), 4, has_zero_point=True),
    ):
        assert not products.choose_product(Codes("int", 8), weights.codes, (8, 64), CPU).native


def test_sums_of_more_than_31_bits():
    x = Quantized(torch.full((1, 1 << 16), 255.0), torch.ones(1, 1))
    total = exact_int_product(258, torch.float32).multiply(Operands(x, x, Scratch()))
    assert total.item() == 255 * 255 << 16


def random_codes(rows: int, columns: int, limit: int, groups: int, seed: int) -> Quantized:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-limit, limit + 1, (rows, columns), generator=generator).float()
    return Quantized(codes, torch.rand(rows, groups, generator=generator) + 0.5)


def product_in_float64(
    x: Quantized, w: Quantized, x_group: int | None, w_group: int | None
) -> torch.Tensor:
    def dense(q: Quantized, group: int | None) -> torch.Tensor:
        columns = q.codes.shape[1]
        scale = q.scale.double().repeat_interleave(group or columns, dim=1)[:, :columns]
        return q.codes.double() * scale

    return dense(x, x_group) @ dense(w, w_group).T


@pytest.mark.parametrize("columns", [1, 7, 1000, 4096])
@pytest.mark.parametrize("limits", [(8, 8), (128, 8), (128, 128), (255, 128), (255, 255)])
def test_integer_sums_are_exact(limits, columns):
    x, w = (random_codes(19, columns, limit, 1, s) for s, limit in enumerate(limits))
    x.codes[0], w.codes[0] = limits[0], limits[1]
    one = Quantized(x.codes, torch.ones(1, 1)), Quantized(w.codes, torch.ones(1, 1))
    exact = one[0].codes.long() @ one[1].codes.long().T
    product = exact_int_product((1 << 24) // (limits[0] * limits[1]), torch.float32)
    assert torch.equal(product.multiply(Operands(*one, Scratch())), exact.float())
    if max(limits) < 128 and columns > 1 and cpu_multiplies_int8():
        native = [Quantized(q.codes.to(torch.int8), q.scale) for q in one]
        assert torch.equal(int8_product().multiply(Operands(*native, Scratch())), exact.float())


@pytest.mark.skipif(not cpu_multiplies_int8(), reason="needs a CPU with int8 products")
@pytest.mark.parametrize("shape", [(1, 1, 2), (3, 5, 7), (17, 8, 129), (300, 65, 1027)])
def test_native_and_emulated_integers_are_the_same_bits(shape):
    rows, outputs, columns = shape
    x, w = random_codes(rows, columns, 127, 1, 0), random_codes(outputs, columns, 127, 1, 1)
    native = [Quantized(q.codes.to(torch.int8), q.scale) for q in (x, w)]
    emulated = exact_int_product(1024, torch.float32).multiply(Operands(x, w, Scratch()))
    assert torch.equal(int8_product().multiply(Operands(*native, Scratch())), emulated)


@pytest.mark.parametrize(
    ("x_group", "w_group"), [(None, 32), (32, None), (32, 128), (128, 32), (48, 32), (64, 64)]
)
@pytest.mark.parametrize("columns", [384, 300, 31])
def test_groups_of_either_side(x_group, w_group, columns):
    def groups(size: int | None) -> int:
        return -(-columns // size) if size else 1

    x = random_codes(300, columns, 100, groups(x_group), 0)
    w = random_codes(33, columns, 7, groups(w_group), 1)
    product = products.choose_product(
        Codes("int", 100, x_group), Codes("int", 7, w_group), (33, columns), CPU
    )
    assert product.name.startswith("integers, exact products by ")
    exact = product_in_float64(x, w, x_group, w_group)
    magnitude = product_in_float64(
        Quantized(x.codes.abs(), x.scale), Quantized(w.codes.abs(), w.scale), x_group, w_group
    )
    assert (
        (product.multiply(Operands(x, w, Scratch())) - exact).abs() <= 8 * EPS * magnitude
    ).all()


def test_large_groups_of_large_integers_are_summed_in_parts(monkeypatch):
    steps, own = [], products.by_parts

    def noted(operands, step, *others):
        steps.append(step)
        return own(operands, step, *others)

    monkeypatch.setattr(products, "by_parts", noted)
    wide, x = Codes("int", 255, 1024), random_codes(8, 2048, 255, 2, 0)
    products.choose_product(wide, wide, (8, 2048), CPU).multiply(Operands(x, x, Scratch()))
    (step,) = steps
    assert 1024 % step == 0 and step * 255 * 255 <= 1 << 24

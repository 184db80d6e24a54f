"""The Slot: codes that are stored as a product takes them stay where they are."""

import pytest
import torch

from scoremode.engines.torch.device import choose_device
from scoremode.engines.torch.matmul.linears import QuantizedMatmul, Windows
from scoremode.engines.torch.matmul.products import float_product, int8_product
from scoremode.engines.torch.weights.slot import Binding, Slot
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.compressed_tensors_weights import float_quantized, int_quantized
from scoremode.schemes.decoding.codes import Quantized, Scaling
from scoremode.schemes.fields import TensorFormat

CPU = choose_device("cpu", None, None)
SHAPE = (24, 48)
CHANNEL = Scaling(SHAPE, "channel")
INT8 = Inputs(TensorFormat(8, "int", "token", dynamic=True), ())
FLOAT8 = Inputs(TensorFormat(8, "float", "token", dynamic=True), ())
SCALE = torch.linspace(0.5, 2, 24, dtype=torch.bfloat16).view(24, 1)


def loaded(scheme: FactoredScheme, tensors, product) -> tuple[Slot, Quantized]:
    matmul = QuantizedMatmul(scheme, CPU, Windows())
    matmul.product = product
    slot = Slot(CPU.torch, lambda name, index: tensors[name.removeprefix("m.")])
    binding = Binding(
        torch.nn.Module(), "weight", "linear", "m", scheme, torch.bfloat16, matmul=matmul
    )
    slot.load(binding)
    assert matmul._loaded is not None
    return slot, matmul._loaded[0]


def aligned(values: torch.Tensor, offset: int = 0) -> torch.Tensor:
    """At `offset` bytes from a multiple of 64."""
    memory = torch.zeros(values.nbytes + 128, dtype=torch.uint8)
    begin = -memory.data_ptr() % 64 + offset
    place = memory[begin : begin + values.nbytes].view(values.dtype).view(values.shape)
    return place.copy_(values)


def int8_weight(offset: int = 0) -> dict[str, torch.Tensor]:
    values = torch.randint(-128, 128, SHAPE, generator=torch.Generator().manual_seed(0))
    return {"weight": aligned(values.to(torch.int8), offset), "weight_scale": SCALE}


def test_int8_stays_where_it_is():
    tensors = int8_weight()
    slot, weight = loaded(int_quantized(CHANNEL, 8, inputs=INT8), tensors, int8_product())
    assert weight.codes.data_ptr() == tensors["weight"].data_ptr()
    assert torch.equal(weight.scale, SCALE.float())
    assert slot.bytes == 0


def test_what_a_matmul_cannot_read_in_place_is_copied():
    tensors = int8_weight(offset=8)
    slot, weight = loaded(int_quantized(CHANNEL, 8, inputs=INT8), tensors, int8_product())
    assert slot.bytes == weight.codes.nbytes
    assert torch.equal(weight.codes, tensors["weight"])
    assert torch.equal(weight.scale, SCALE.float())


@pytest.mark.parametrize("case", ["zero points", "another dtype"])
def test_codes_that_differ_from_what_is_stored_are_made(case):
    tensors = int8_weight() | {"weight_zero_point": torch.full((24, 1), 3, dtype=torch.int8)}
    asymmetric = case == "zero points"
    product = float_product("integers", (None, None), None, torch.float32)
    slot, weight = loaded(int_quantized(CHANNEL, 8, asymmetric, inputs=INT8), tensors, product)
    assert slot.bytes == weight.codes.nbytes
    assert torch.equal(weight.codes, tensors["weight"].float() - (3 if asymmetric else 0))


def test_float8_stays_where_it_is():
    codes = torch.linspace(-9, 9, 24 * 48).view(SHAPE).to(torch.float8_e4m3fn)
    tensors = {"weight": aligned(codes), "weight_scale": SCALE}
    # On a CPU there is no float8 product: only its dtype counts here.
    product = float_product("floats", (None, None), None, torch.float8_e4m3fn)
    slot, weight = loaded(float_quantized(CHANNEL, inputs=FLOAT8), tensors, product)
    assert weight.codes.data_ptr() == tensors["weight"].data_ptr()
    assert torch.equal(weight.scale, SCALE.float())
    assert slot.bytes == 0


def test_layers_of_other_kinds_keep_their_memory():
    """As the first layers of a model of experts do, which have none."""
    slot = Slot(CPU.torch, lambda name, index: tensors[name.rpartition(".")[2]])
    taken = []
    for role, shape, dtype in [
        ("up", (24, 48), torch.bfloat16),
        ("up", (24, 48), torch.float32),
        ("up", (40, 48), torch.bfloat16),
        ("gate", (24, 48), torch.bfloat16),
    ]:
        scheme = int_quantized(Scaling(shape, "channel"), 8)
        tensors = {
            "weight": torch.zeros(shape, dtype=torch.int8),
            "weight_scale": torch.ones(shape[0], 1),
        }
        taken.append(Binding(torch.nn.Module(), "weight", role, "m", scheme, dtype))
        slot.fill(taken[-1:])
    assert slot.bytes_for(taken) == slot.bytes == 24 * 48 * (4 + 2) + 40 * 48 * 2

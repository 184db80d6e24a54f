"""Names of the tensors that a parameter is made of."""

import torch

from scoremode.engines.torch.weights.slot import Binding, Source
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Dense
from scoremode.schemes.compressed_tensors_weights import int_quantized
from scoremode.schemes.decoding.scaling import Scaling
from scoremode.schemes.fields import TensorFormat


def test_names_are_the_modules_and_with_its_inputs_static_scales():
    inputs = Inputs(TensorFormat(8, "int", "tensor"), ("input_scale",))
    scheme = int_quantized(Scaling((4, 8), "channel"), 8, inputs=inputs)
    binding = Binding(torch.nn.Linear(8, 4), "weight", "up", "m.up", scheme, torch.float32)
    own = {s: f"m.up.{s}" for s in scheme.tensors}
    assert binding.tensor_names() == own == Source("m.up", scheme).tensor_names()
    assert binding.all_tensor_names() == [*own.values(), "m.up.input_scale"]


def test_a_tensor_at_the_top_has_its_own_name():
    scheme = Dense((4,), torch.float32, "table")
    assert Source("", scheme).tensor_names() == {"table": "table"}

"""What rounds a linear's input has one face."""

from scoremode.schemes.activations.ggml import GgmlInputs
from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.base import Quantizer
from scoremode.schemes.fields import TensorFormat


def test_both_kinds_have_it():
    kinds: list[Quantizer] = [Inputs(TensorFormat(8, "int", "token"), ()), GgmlInputs("Q8_0")]
    for name in ("label", "tensors", "scales", "declared", "spans_window", "by_window", "codes"):
        assert all(hasattr(kind, name) for kind in kinds)
    assert [kind.declared for kind in kinds] == [True, False]

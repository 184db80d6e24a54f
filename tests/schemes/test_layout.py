import pytest
import torch
from support.schemes import DTYPE_NAMES

from scoremode.checkpoint.safetensors_files import TensorInfo
from scoremode.errors import CheckpointError
from scoremode.schemes.layout import SCALES, Headers, Tensor, single


def headers(**tensors: torch.Tensor) -> Headers:
    from pathlib import Path

    return Headers(
        "m",
        {
            suffix: TensorInfo(
                f"m.{suffix}", Path("file"), DTYPE_NAMES[t.dtype], tuple(t.shape), t.nbytes
            )
            for suffix, t in tensors.items()
        },
    )


def test_what_fits():
    found = headers(weight=torch.ones(3, 4), scale=torch.ones(()).half())
    assert found.matrix("weight", ("F32",)) == (3, 4)
    assert found.expect("weight", SCALES, [(1,), (3, 4)]).name == "m.weight"
    found.match({"scale": single("F32", dtypes=SCALES), "none": single(optional=True)})
    found.match({"weight": Tensor("F32", (4, 3), shapes=((4, 3), (3, 4)))})
    assert found.of_shape("weight", (None, 4), ("F32",)) == (3, 4)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda h: h.matrix("none", ("F32",)), "m: quantized, and its tensor none is missing"),
        (lambda h: h.matrix("weight", ("I8",)), "file: tensor m.weight has dtype F32, expected I8"),
        (lambda h: h.matrix("line", ("F32",)), "m.line has shape [3], not a matrix's"),
        (lambda h: h.matrix("empty", ("F32",)), "m.empty has shape [0, 3], not a matrix's"),
        (lambda h: h.expect("weight", SCALES, [(4, 3)]), "has shape [3, 4], expected [4, 3]"),
        (lambda h: h.of_shape("weight", (None, 5), ("F32",)), "has shape [3, 4], not [n, 5]"),
        (lambda h: h.of_shape("weight", (None,), ("F32",)), "has shape [3, 4], not [n]"),
        (lambda h: h.of_shape("empty", (None, 3), ("F32",)), "has shape [0, 3], not [n, 3]"),
        (lambda h: h.of_shape("weight", (3, 4), ("I8",)), "has dtype F32, expected I8"),
        (
            lambda h: h.match({"none": Tensor("F32", (3,))}),
            "m: quantized, and its tensor none is missing",
        ),
        (lambda h: h.match({"line": Tensor("F32", (4,), ("I8", "F16"))}), "expected I8 or F16"),
        (lambda h: h.match({"line": single()}), "has shape [3], expected [1]"),
    ],
)
def test_what_does_not(ask, words):
    found = headers(weight=torch.ones(3, 4), line=torch.ones(3), empty=torch.ones(0, 3))
    with pytest.raises(CheckpointError) as error:
        ask(found)
    assert words in str(error.value) and "\n" not in str(error.value)

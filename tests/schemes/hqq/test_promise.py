"""Tensors that a config of HQQ alone promises, against those that hqq writes."""

import pytest
from support.families.hqq import config
from support.golden_libraries import golden
from support.promises import NAMES, promises_of

from scoremode.errors import CheckpointError, UnsupportedFormat
from scoremode.schemes.hqq import Modules
from scoremode.schemes.layout import Linear

promise = promises_of(Modules)

CASES = golden("hqq")
LINEAR = Linear("model.layers.0.mlp.up_proj", (24, 96), "BF16")


def of(bits: object, size: object = 32, axis: object = 1, **others) -> dict:
    """`others`: fields of `weight_quant_params`."""
    given = config()
    weight = given["quant_config"]["weight_quant_params"]
    weight |= {"nbits": bits, "group_size": size, "axis": axis} | others
    return given


@pytest.mark.parametrize("case", CASES)
def test_tensors_as_the_library_writes_them(case):
    stored = {k: v for k, v in CASES[case].items() if k not in ("dense", "bias")}
    bits = {"1_58": 1.58}.get(case.partition("-")[0]) or int(case[0])
    axis, size = stored["axis"].item(), stored["group_size"].item()
    as_float = bool(stored["view_as_float"].item())
    dense = CASES[case]["dense"]
    rows, columns = dense.shape
    linear = Linear("m", (rows, columns), NAMES[dense.dtype])
    promised = promise(of(bits, size, axis, view_as_float=as_float))(linear)
    assert promised and promised.keys() == stored.keys()
    for suffix, tensor in stored.items():
        found = promised[suffix]
        assert (found.dtype, found.shape) == (NAMES[tensor.dtype], tuple(tensor.shape)), suffix
        if suffix not in ("W_q", "scale", "zero"):
            assert found.content == tensor.numpy().tobytes(), suffix


def test_what_stays_dense():
    assert promise(config())(LINEAR)
    assert promise(config())(Linear("lm_head", (24, 96), "BF16", in_layer=False)) is None
    by_kind = {"mlp.up_proj": None, "mlp.gate_proj": config(8)["quant_config"]}
    forms = promise({"quant_config": by_kind, "skip_modules": ["mlp.down_proj"]})
    for kind, dense in (("up", True), ("down", True), ("gate", False)):
        linear = LINEAR._replace(module=f"model.layers.0.mlp.{kind}_proj")
        assert (forms(linear) is None) == dense, kind
    # The library's default.
    without = promise(of(4, axis=None))(LINEAR)
    assert without and without["scale"].shape == (72, 1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (of(7), "nbits 7, group_size 32 and axis 1"),
        (of(4, None), "nbits 4, group_size None"),
        (of(4, 32, 2), "and axis 2"),
        (of(None), "nbits None"),
    ],
)
def test_what_only_tensors_tell(given, words):
    with pytest.raises(UnsupportedFormat) as error:
        promise(given)(LINEAR)
    assert words in str(error.value)
    assert str(error.value).endswith(": what is stored is known from its tensors alone")


def test_groups_that_do_not_fit():
    with pytest.raises(CheckpointError, match="up_proj: 24 x 96 elements are no whole number of"):
        promise(of(4, 100))(LINEAR)

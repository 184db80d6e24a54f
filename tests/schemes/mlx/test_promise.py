"""Tensors that MLX's config alone promises, against those that mlx writes."""

import pytest
from support.golden_libraries import golden
from support.promises import NAMES, headers, promised_headers, promises_of

from scoremode.errors import UnsupportedFormat
from scoremode.schemes.layout import Linear
from scoremode.schemes.mlx import Modules

promise = promises_of(Modules)

CASES = golden("mlx")


@pytest.mark.parametrize("case", CASES)
def test_tensors_as_the_library_writes_them(case):
    stored = {k: v for k, v in CASES[case].items() if k != "dense"}
    bits, _, size = case.rpartition("-")[0].partition("-")
    given = {"mode": case} if not bits else {"bits": int(bits), "group_size": int(size)}
    dense = CASES[case]["dense"]
    rows, columns = dense.shape
    promised = promise(given)(Linear("m", (rows, columns), NAMES[dense.dtype]))
    assert promised_headers(promised) == headers(stored)


def test_what_stays_dense_and_modules_of_their_own():
    forms = promise({"bits": 4, "group_size": 64, "a": {"bits": 8}, "b": False,
                     "c": {"group_size": 32}})  # fmt: skip

    def width(module: str, columns: int = 128) -> int | None:
        found = forms(Linear(module, (8, columns), "BF16", in_layer=False))
        return found["weight"].shape[1] if found else None

    assert (width("x"), width("a"), width("b"), width("c", 96)) == (16, 32, None, 12)
    # mlx-lm leaves what is no whole number of groups.
    assert width("x", 96) is None


def test_configs_that_are_refused():
    with pytest.raises(UnsupportedFormat, match="7 bits in groups of 64: not decoded"):
        promise({"bits": 7, "group_size": 64})

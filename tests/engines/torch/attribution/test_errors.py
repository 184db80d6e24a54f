"""Local errors against their definition."""

import math

import pytest
import torch
from torch import nn

from scoremode.engines.torch.attribution.units import Error, LayerErrors


class Layer(nn.Module):
    """Two linears, the first of whose outputs is overwritten, as a fused gate does."""

    def __init__(self, seed: int):
        super().__init__()
        torch.manual_seed(seed)
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.one(x)
        out = self.two(y.clone())
        y.zero_()
        return out


def relative(base, other):
    return float((other.double() - base.double()).norm() / base.double().norm())


def test_errors_are_of_the_base_s_inputs_and_of_one_s_own():
    base, model = Layer(0), Layer(1)
    errors = LayerErrors(["one", "two", ""])
    wanted = {"local": [], "accumulated": []}
    with torch.no_grad():
        for seed in range(2):
            torch.manual_seed(10 + seed)
            mine, theirs = torch.randn(3, 8), torch.randn(3, 8)
            with errors.beside_base(base, model, {}):
                base(mine)
            with errors.behind_model(model):
                model(theirs)
            wanted["local"].append((mine, mine))
            wanted["accumulated"].append((mine, theirs))
        for kind, pairs in wanted.items():
            mine, theirs = (torch.cat(x) for x in zip(*pairs, strict=True))
            found = getattr(errors, kind)
            one = relative(base.one(mine), model.one(theirs))
            assert found["one"].to_json()["relative_error"] == pytest.approx(one, rel=1e-5)
            inputs = mine if kind == "accumulated" else None
            own = model.one(theirs) if inputs is not None else base.one(mine)
            two = relative(base.two(base.one(mine)), model.two(own))
            assert found["two"].to_json()["relative_error"] == pytest.approx(two, rel=1e-5)
            whole = relative(base(mine), model(theirs))
            assert found[""].to_json()["relative_error"] == pytest.approx(whole, rel=1e-5)
    assert not base._forward_hooks and not model.one._forward_hooks


def test_an_output_that_is_known_is_not_computed_again():
    base, model = Layer(0), Layer(1)
    errors, x = LayerErrors([""]), torch.ones(3, 8)
    with torch.no_grad():
        known = {"": base(x) + 0.25}
        with errors.beside_base(base, model, known):
            base(x)
        assert errors._outputs.keys() == {""}
        norm = float(base(x).norm())
    found = errors.local[""].to_json()["relative_error"]
    assert found == pytest.approx(0.25 * math.sqrt(24) / norm, rel=1e-5)


def test_decibels_and_what_has_none():
    error = Error(4.0, 0.04)
    found = error.to_json()
    assert found["relative_error"] == pytest.approx(0.1) and found["sqnr_db"] == pytest.approx(20)
    assert Error(4.0, 0.0).to_json() == {"relative_error": 0.0, "sqnr_db": None}
    assert Error().to_json() == {"relative_error": None, "sqnr_db": None}
    both = error + Error(1.0, 0.21)
    assert both.to_json()["sqnr_db"] == pytest.approx(10 * math.log10(5 / 0.25))

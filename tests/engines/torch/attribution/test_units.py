"""What is one unit, and what its weights take."""

import pytest
from support.engine import make_engine

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.attribution.units import find_units
from scoremode.schemes.summary import summarize


@pytest.fixture(scope="module")
def engines(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("units") / "w4"
    (form,) = [v for v in VARIANTS if v.name == "W4A16-g32"]
    quantize_folder(demo / "model", folder, form)
    return make_engine(demo / "model"), make_engine(folder)


def test_units_by_layer_module_and_kind_hold_the_same_weights(engines):
    base, model = engines
    quantized = summarize(model.parts.checkpoint).quantized
    for by, count in (("layer", 3), ("module", 21), ("kind", 7)):
        units = find_units(base, model, by)
        assert len(units) == count
        assert sum(unit.parameters for unit in units) == quantized
        assert sum(len(unit.modules) for unit in units) == 21
        for unit in units:
            found = unit.to_json()
            assert found["bits_per_weight"] == pytest.approx(4.5, abs=1e-9)
            assert unit.base_bytes == 2 * unit.parameters
            assert found["formats"] == {"base": ["bf16"], "model": ["W4A16 g32"]}


def test_units_are_named_and_in_the_layers_order(engines):
    layers = find_units(*engines, "layer")
    assert [unit.name for unit in layers] == [f"model.layers.{i}" for i in range(3)]
    assert [unit.to_json()["layer"] for unit in layers] == [0, 1, 2]
    assert all(unit.whole for unit in layers)
    modules = find_units(*engines, "module")
    assert modules[0].name == "model.layers.0.self_attn.q_proj" and not modules[0].whole
    assert modules[-1].paths(2) == ["mlp.down_proj"] and modules[-1].paths(1) == []
    kinds = find_units(*engines, "kind")
    assert kinds[0].name == "q_proj" and kinds[0].to_json()["layer"] is None
    assert [place.layer for place in kinds[0].places] == [0, 1, 2]
    assert not any(unit.has("head") or unit.has("embedding") for unit in kinds)

"""Heat maps and curves of attributed runs."""

import json

import pytest

from scoremode.errors import RunFolderError
from scoremode.report.page.gathered.attributed import attributions, recipe_curves
from scoremode.results.attribution import SCHEMA, SCHEMA_VERSION
from scoremode.results.folders.store import seal_of


def metric(value):
    return {"value": value, "ci95": None, "n": 10, "note": "few"}


def sealed(path, value):
    path.write_text(json.dumps(value | {"sha256": seal_of(value)}))


def unit(name, layer, value):
    sizes = {"bytes": 50, "base_bytes": 200, "parameters": 100}
    return {"name": name, "layer": layer, "alone": metric(value), **sizes}


def attribution(by, units):
    sums = {"alone": metric(0.1) | {"share": 1.1}}
    return {
        "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "by": by, "units": units,
        "kld": metric(0.09), "additivity": sums, "unfit": [], "block_tokens": 64,
        "columns": {"name": f"attribution-{by}.parquet", "sha256": "0" * 64, "rows": 9},
    }  # fmt: skip


def test_modules_make_a_map_of_layers_and_kinds(tmp_path):
    units = [
        unit("model.layers.0.self_attn.q_proj", 0, 0.01),
        unit("model.layers.0.mlp.down_proj", 0, 0.02),
        unit("model.layers.1.mlp.down_proj", 1, 0.03),
        unit("lm_head", None, 0.04),
    ]
    sealed(tmp_path / "attribution-module.json", attribution("module", units))
    sealed(tmp_path / "attribution-layer.json", attribution("layer", []))
    (found,) = attributions({"r0": tmp_path, "r1": tmp_path / "none"})
    assert found["run"] == "r0" and found["by"] == "module" and found["sum_share"] == 1.1
    assert found["heads"] == ["q_proj", "down_proj", "all of it"]
    values = {
        row["name"]: [cell and cell["value"] for cell in row["cells"]] for row in found["rows"]
    }
    assert values == {
        "layer 0": [0.01, 0.02, None],
        "layer 1": [None, 0.03, None],
        "lm_head": [None, None, 0.04],
    }


@pytest.mark.parametrize(
    ("by", "units", "heads", "rows"),
    [
        ("layer", [("model.layers.0", 0), ("model.layers.1", 1)], ["all of it"],
         ["model.layers.0", "model.layers.1"]),
        ("kind", [("q_proj", None), ("o_proj", None)], ["q_proj", "o_proj"], ["all layers"]),
    ],
)  # fmt: skip
def test_layers_and_kinds_by_themselves(tmp_path, by, units, heads, rows):
    made = attribution(by, [unit(name, layer, 0.1) for name, layer in units])
    sealed(tmp_path / f"attribution-{by}.json", made)
    (found,) = attributions({"r0": tmp_path})
    assert found["heads"] == heads and [row["name"] for row in found["rows"]] == rows


def test_a_recipe_is_a_curve(tmp_path):
    points = [(3.5, 0.1), (4.5, 0.02), (16.0, 0.0)]
    curve = [{"bits_per_weight": bits, "predicted": kld} for bits, kld in points]
    sealed(tmp_path / "recipe.json", {"curve": curve, "measured": metric(0.03)})
    (chart,) = recipe_curves({"r0": tmp_path, "r1": tmp_path / "none"})
    (series,) = chart["series"]
    assert series["x"] == [3.5, 4.5] and series["y"] == [0.1, 0.02] and series["run"] == "r0"
    assert recipe_curves({"r1": tmp_path / "none"}) == []
    text = (tmp_path / "recipe.json").read_text()
    (tmp_path / "recipe.json").write_text(text.replace("0.02", "0.01"))
    with pytest.raises(RunFolderError, match="was changed after it was written"):
        recipe_curves({"r0": tmp_path})

"""`scoremode attribute` as a user meets it."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.programs import error_of, run, told

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.results.attribution import metrics_of, write_columns
from scoremode.results.folders.store import find_runs, read_scores, seal_of


@pytest.fixture(scope="module")
def models(demo, tmp_path_factory):
    home = tmp_path_factory.mktemp("attribute")
    for variant in VARIANTS:
        if variant.name in ("W4A16-g32", "W4A16-g32-AWQ"):
            quantize_folder(demo / "model", home / variant.name, variant)
    return home


@pytest.fixture(scope="module")
def text(demo):
    words = (demo / "heldout.txt").read_text()[:9000]
    flags = ["--text", words, "--protocol", "disjoint", "-c", "64", "--device", "cpu"]
    return ["--reference", str(demo / "model"), *flags]


def only_run(folder):
    ((path, record),) = find_runs(folder)
    return path, record


@pytest.fixture(scope="module")
def attributed(models, text, tmp_path_factory):
    """The folder of a run that was attributed to layers and to kinds."""
    from scoremode.cli.main import main

    home = tmp_path_factory.mktemp("runs")
    asked = ["attribute", str(models / "W4A16-g32"), *text, "-o", str(home), "--windows", "20"]
    assert main([*asked, "--quiet"]) == 0
    path, _ = only_run(home)
    assert main([*asked, "--by", "kind", "--quiet", "-o", str(path), "--resume"]) == 0
    return path


def test_the_table_and_the_json(models, text, capsys, tmp_path):
    asked = ["attribute", str(models / "W4A16-g32"), *text, "-o", str(tmp_path), "--windows", "20"]
    code, out, err = run(capsys, *asked)
    assert (code, told(err)) == (0, "")
    said, _, *lines = out.splitlines()
    names = [line.split()[0] for line in lines[2:5]]
    assert f"; of 3 parts, {names[0]} (" in said
    assert sorted(names) == [f"model.layers.{i}" for i in range(3)]
    assert "sum of alone" in out and "of the whole" in out
    path, record = only_run(tmp_path)
    assert record["status"] == "done" and record["plan"]["windows"] == 20
    value = json.loads((path / "attribution-layer.json").read_text())
    assert value["kld"] == record["metrics"]["kld"] and value["run"] == record["sha256"]
    assert [unit["name"] for unit in value["units"]] == sorted(names)
    code, out, _ = run(capsys, *asked, "--resume", "--json")
    again = json.loads(out)
    assert code == 0 and again["units"] == value["units"] and only_run(tmp_path)[0] == path
    # Each part's numbers are those of the file's columns.
    table = pq.read_table(path / "attribution-layer.parquet")
    for unit in value["units"]:
        column = table[f"alone {unit['name']}"].to_numpy()
        assert unit["alone"]["value"] == pytest.approx(column.mean(), rel=1e-12)


def test_alone_leaves_out_what_the_model_s_own_states_are_for(
    attributed, models, text, capsys, tmp_path
):
    asked = ["attribute", str(models / "W4A16-g32"), *text, "-o", str(tmp_path), "--windows", "20"]
    code, out, err = run(capsys, *asked, "--alone")
    assert (code, told(err)) == (0, "")
    assert "sum of alone" in out and "falls" not in out and "accumulated" not in out.split("\n")[0]
    path, _ = only_run(tmp_path)
    value = json.loads((path / "attribution-layer.json").read_text())
    both = json.loads((attributed / "attribution-layer.json").read_text())
    for one, other in zip(value["units"], both["units"], strict=True):
        assert one["alone"] == other["alone"] and one["local"] == other["local"]
        assert "without" not in one and one["accumulated"] is None
    assert run(capsys, "check", str(path), "--quiet")[0] == 0
    # Of a run that is there already, nothing of which is scored again.
    code, out, _ = run(capsys, *asked, "--json", "--resume")
    again = json.loads(out)
    assert code == 0 and again["units"] == both["units"]
    assert again["seconds"]["attribute"] > 0 and again["peak_bytes"] > 0


def test_a_variant_has_the_bits_of_a_mixture_s_run(attributed, models, text, capsys, tmp_path):
    asked = ["kld", str(models / "W4A16-g32"), *text, "--limit", "20", "--quiet"]
    assert run(capsys, *asked, "--keep-dense", "layers.1", "-o", str(tmp_path / "a"))[0] == 0
    kinds = [f"re:.*{k}_proj" for k in ("q", "k", "v", "o", "gate", "up")]
    flags = [word for kind in kinds for word in ("--keep-dense", kind)]
    assert run(capsys, *asked, *flags, "-o", str(tmp_path / "b"))[0] == 0
    runs = {name: read_scores(only_run(tmp_path / name)[0]).against.kld for name in "ab"}
    layers = pq.read_table(attributed / "attribution-layer.parquet")
    kinds_found = pq.read_table(attributed / "attribution-kind.parquet")
    assert np.array_equal(layers["without model.layers.1"].to_numpy(), runs["a"])
    assert np.array_equal(kinds_found["alone down_proj"].to_numpy(), runs["b"])


def test_check_makes_it_again_and_finds_a_forged_one(attributed, capsys, tmp_path):
    code, out, _ = run(capsys, "check", str(attributed))
    assert code == 0 and "attribution-layer  held: " in out and "attribution-kind" in out
    forged = tmp_path / "forged"
    shutil.copytree(attributed, forged)
    file = forged / "attribution-layer.json"
    value = json.loads(file.read_text())
    value["units"][0]["alone"]["value"] /= 2
    file.write_text(json.dumps(value))
    code, out, _ = run(capsys, "check", str(forged))
    assert code != 0 and "was changed after it was written" in out
    value["sha256"] = seal_of(value)
    file.write_text(json.dumps(value))
    code, out, _ = run(capsys, "check", str(forged))
    assert code != 0 and "model.layers.0.alone" in out
    value = json.loads((attributed / "attribution-layer.json").read_text())
    value["units"][1]["bits_per_weight"] -= 0.5
    value["sha256"] = seal_of(value)
    file.write_text(json.dumps(value))
    code, out, _ = run(capsys, "check", str(forged))
    assert code != 0 and "model.layers.1 bits" in out
    (forged / "attribution-kind.parquet").unlink()
    code, out, _ = run(capsys, "check", str(forged))
    assert code != 0 and "attribution-kind.parquet" in out


def test_whatever_an_attribution_holds_check_says_it_in_a_line(attributed, capsys, tmp_path):
    forged = tmp_path / "forged"
    shutil.copytree(attributed, forged)
    file = forged / "attribution-layer.json"
    whole = file.read_text()
    names = [*json.loads(whole), "units.0.name", "units.0.alone", "units.0.fall",
             "units.0.parameters"]  # fmt: skip
    for name in [
        *names,
        "columns.name",
        "columns.sha256",
        "columns.rows",
        "units.0.bytes",
        "kld.value",
        "units.0.local.sqnr_db",
    ]:
        for other in (None, "../x", []):
            value = json.loads(whole)
            at, *path = [value, *name.split(".")]
            for step in path[:-1]:
                at = at[int(step)] if isinstance(at, list) else at[step]
            if at[path[-1]] == other:
                continue
            at[path[-1]] = other
            value["sha256"] = value["sha256"] if name == "sha256" else seal_of(value)
            file.write_text(json.dumps(value))
            code, out, err = run(capsys, "check", str(forged))
            assert "Traceback" not in err
            # What no number follows from is taken as it is.
            told = {"created", "unfit", "seconds", "peak_bytes"}
            assert (code == 0) == (name in told), (name, other, out)


def test_check_holds_the_columns_against_the_run_s_scores(attributed, capsys, tmp_path):
    forged = tmp_path / "forged"
    shutil.copytree(attributed, forged)
    file = forged / "attribution-layer.json"
    value = json.loads(file.read_text())
    columns = pq.read_table(forged / "attribution-layer.parquet").to_pydict()
    columns = {name: np.array(column) for name, column in columns.items()}
    columns["kld"] = 2 * columns["kld"]
    sha256 = write_columns(forged / "attribution-layer.parquet", columns)
    names = [unit["name"] for unit in value["units"]]
    summary, units = metrics_of(columns, names, value["block_tokens"])
    for unit, made in zip(value["units"], units, strict=True):
        unit.update(made)
    value = value | summary
    value["columns"]["sha256"] = sha256
    file.write_text(json.dumps(value | {"sha256": seal_of(value)}))
    code, out, _ = run(capsys, "check", str(forged))
    assert code == 3 and "column kld  WRONG: is not that of the run's scores" in out


def test_scales_that_were_moved_are_told_of(models, text, capsys, tmp_path):
    asked = ["attribute", str(models / "W4A16-g32-AWQ"), *text, "--windows", "2", "--by", "module"]
    code, out, err = run(capsys, *asked, "-o", str(tmp_path / "a"))
    assert code == 0 and "input_layernorm.weight is not the same in both models" in err
    assert "not to be added" in out
    code, out, err = run(capsys, *asked[:-1], "layer", "-o", str(tmp_path / "b"))
    assert (code, told(err)) == (0, "") and "not to be added" not in out


def test_what_can_not_be_attributed_is_refused_in_a_line(models, text, demo, capsys, tmp_path):
    model = str(models / "W4A16-g32")
    out = ["-o", str(tmp_path / "runs")]
    for more, words in {
        ("--devices", "2"): "--devices 2: is not for attribute",
        ("--shard", "1/2"): "--shard 1/2: is not for attribute",
        ("--windows", "0"): "limit of 0 windows",
    }.items():
        code, _, err = run(capsys, "attribute", model, *text, *out, *more)
        assert code == 2 and words in error_of(err)
    code, _, err = run(capsys, "attribute", str(demo / "model"), *text, *out)
    assert code == 1 and "there is nothing to attribute" in err
    kept = str(tmp_path / "kept")
    own = [w for w in text if w not in ("--reference", str(demo / "model"))]
    assert run(capsys, "reference", str(demo / "model"), *own, "-o", kept, "--quiet")[0] == 0
    code, _, err = run(capsys, "attribute", model, "--reference", kept, *own, *out)
    assert code == 2 and "has no weights to put in the model's place" in err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/record.json"))

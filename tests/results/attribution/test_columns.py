"""An attribution's numbers from its columns."""

import json

import numpy as np
import pytest

from scoremode.errors import RunFolderError
from scoremode.results.attribution import (
    SCHEMA,
    SCHEMA_VERSION,
    file_of,
    metrics_of,
    read_attributed,
    read_attribution,
    write_columns,
)
from scoremode.results.folders.store import seal_of


def columns(n: int = 4000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    parts = {name: rng.gamma(1, 0.01, n) for name in ("a", "b")}
    whole = parts["a"] + parts["b"] + rng.gamma(1, 0.001, n)
    found = {"index": np.arange(n), "kld": whole}
    for name, part in parts.items():
        found |= {f"alone {name}": part, f"without {name}": whole - part, f"tv {name}": part / 2}
    return found


def test_means_intervals_and_shares():
    made = columns()
    summary, (a, b) = metrics_of(made, ["a", "b"], 100)
    assert summary["kld"]["value"] == pytest.approx(made["kld"].mean())
    for unit, name in ((a, "a"), (b, "b")):
        alone, fall = made[f"alone {name}"], made["kld"] - made[f"without {name}"]
        assert unit["alone"]["value"] == pytest.approx(alone.mean())
        assert unit["fall"]["value"] == pytest.approx(fall.mean())
        assert unit["without"]["value"] == pytest.approx(made[f"without {name}"].mean())
        assert unit["fall"]["share"] == pytest.approx(fall.mean() / made["kld"].mean())
        low, high = unit["fall"]["ci95"]
        # Paired: as the part itself, and not as wide as the whole's and what is left together.
        assert low < fall.mean() < high
        assert high - low < 1.2 * (unit["alone"]["ci95"][1] - unit["alone"]["ci95"][0])
        assert unit["alone"]["n"] == 4000
        assert unit["acceptance"]["value"] == pytest.approx(1 - alone.mean() / 2)
    sums = summary["additivity"]
    both = made["alone a"] + made["alone b"]
    assert sums["alone"]["value"] == pytest.approx(both.mean())
    assert sums["alone"]["share"] == pytest.approx(both.mean() / made["kld"].mean())
    assert sums["alone"]["share"] < 1 and sums["fall"]["value"] == pytest.approx(both.mean())


def test_a_model_that_is_the_base_has_no_shares():
    made = {name: np.zeros(100) for name in ("kld", "alone a", "without a", "tv a")}
    summary, (unit,) = metrics_of({"index": np.arange(100), **made}, ["a"], 50)
    assert summary["additivity"]["alone"]["share"] is None and unit["fall"]["share"] is None
    assert unit["alone"]["ci95"] is None


def test_what_was_written_is_read_and_nothing_else(tmp_path):
    path = file_of(tmp_path, "layer", "parquet")
    assert path.name == "attribution-layer.parquet"
    made = columns(50)
    sha256 = write_columns(path, made)
    read = read_attributed(path, sha256, 50, 2)
    assert all(np.array_equal(read[name], made[name]) for name in made)
    with pytest.raises(RunFolderError):
        read_attributed(path, "0" * 64, 50, 2)
    path.write_bytes(path.read_bytes()[:-3] + b"abc")
    with pytest.raises(RunFolderError):
        read_attributed(path, sha256, 50, 2)


def written(path, **changes):
    sizes = {"bytes": 50, "base_bytes": 200, "parameters": 100}
    value = {
        "schema": SCHEMA, "schema_version": SCHEMA_VERSION, "block_tokens": 64, "kld": {},
        "columns": {"name": f"{path.stem}.parquet", "sha256": "0" * 64}, "additivity": {},
        "units": [{"name": "model.layers.0", "alone": {}, **sizes}],
    } | changes  # fmt: skip
    path.write_text(json.dumps(value | {"sha256": changes.get("sha256", seal_of(value))}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "scoremode/run"}, "is no attribution"),
        ({"schema_version": 99}, "schema version 99"),
        ({"sha256": "0" * 64}, "was changed after it was written"),
        ({"columns": {"name": "../a.parquet", "sha256": ""}}, r"columns\.name is not what"),
        ({"block_tokens": True}, "block_tokens is not what"),
        ({"units": []}, "units is not what"),
        ({"units": [{"name": "a", "alone": {}, "bytes": 1.5}]}, r"units\[0\]\.bytes is not what"),
    ],
)
def test_what_is_not_read(tmp_path, changes, words):
    with pytest.raises(RunFolderError, match=words):
        read_attribution(written(tmp_path / "a.json", **changes))


def test_what_is_read(tmp_path):
    assert read_attribution(written(tmp_path / "a.json"))["block_tokens"] == 64
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RunFolderError, match="not JSON"):
        read_attribution(tmp_path / "a.json")
    with pytest.raises(RunFolderError, match="No such file"):
        read_attribution(tmp_path / "b.json")

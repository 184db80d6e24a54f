"""An attribution's numbers from its columns."""

import numpy as np
import pytest

from scoremode.errors import RunFolderError
from scoremode.results.attribution import (
    file_of,
    metrics_of,
    read_attributed,
    write_columns,
)


def columns(n: int = 4000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    parts = {name: rng.gamma(1, 0.01, n) for name in ("a", "b")}
    whole = parts["a"] + parts["b"] + rng.gamma(1, 0.001, n)
    found = {"index": np.arange(n), "kld": whole}
    for name, part in parts.items():
        found |= {f"alone {name}": part, f"without {name}": whole - part}
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
    sums = summary["additivity"]
    both = made["alone a"] + made["alone b"]
    assert sums["alone"]["value"] == pytest.approx(both.mean())
    assert sums["alone"]["share"] == pytest.approx(both.mean() / made["kld"].mean())
    assert sums["alone"]["share"] < 1 and sums["fall"]["value"] == pytest.approx(both.mean())


def test_a_model_that_is_the_base_has_no_shares():
    made = {name: np.zeros(100) for name in ("kld", "alone a", "without a")}
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

"""What is no attribution, or is not as it was written; whole ones are forged in
`tests/features/test_attribute.py`."""

import json

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.attribution import SCHEMA, SCHEMA_VERSION, read_attribution
from scoremode.results.folders.store import seal_of


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

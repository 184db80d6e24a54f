"""What is no attribution, or is not as it was written; whole ones are forged in
`tests/cli/test_attribute.py`."""

import json

import pytest

from scoremode.errors import RunFolderError
from scoremode.results.attribution.audit import SCHEMA, SCHEMA_VERSION, read_attribution
from scoremode.results.folders.store import seal_of


def written(path, **changes):
    value = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "units": []} | changes
    path.write_text(json.dumps(value | {"sha256": changes.get("sha256", seal_of(value))}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "scoremode/run"}, "is no attribution"),
        ({"schema_version": 99}, "schema version 99"),
        ({"sha256": "0" * 64}, "was changed after it was written"),
    ],
)
def test_what_is_not_read(tmp_path, changes, words):
    with pytest.raises(RunFolderError, match=words):
        read_attribution(written(tmp_path / "a.json", **changes))


def test_what_is_read(tmp_path):
    assert read_attribution(written(tmp_path / "a.json"))["units"] == []
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(RunFolderError, match="not JSON"):
        read_attribution(tmp_path / "a.json")
    with pytest.raises(RunFolderError, match="No such file"):
        read_attribution(tmp_path / "b.json")

"""An attribution from Python; `tests/features/test_attribute.py` has the whole of it."""

from dataclasses import replace

import numpy as np
import pytest
from support.run_requests import request

from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import UsageError
from scoremode.results.attribution import file_of, read_attributed, read_attribution
from scoremode.runs.attribute import attribute
from scoremode.text.protocol import preset


@pytest.fixture
def request_of(demo, tmp_path):
    (form,) = [v for v in VARIANTS if v.name == "W4A16-g32"]
    quantize_folder(demo / "model", tmp_path / "w4", form)
    text = (demo / "heldout.txt").read_text()[:3000]

    def make(**more):
        own = {
            "model": tmp_path / "w4",
            "reference": str(demo / "model"),
            "output": tmp_path / "runs",
        }
        asked = {"text": text, "options": TorchOptions(device="cpu")} | own | more
        return request(**asked)

    return make


def test_progress_ends_where_it_says_and_files_are_the_attribution(request_of):
    done: list[float] = []
    totals = set()

    def progress(tokens, total):
        done.append(tokens)
        totals.add(total)

    found = attribute(request_of(), "kind", progress=progress)
    # The run's own work, then the attribution's.
    assert len(totals) == 2
    assert sum(done) == pytest.approx(sum(totals), rel=0.2)
    value = read_attribution(file_of(found.folder, "kind", "json"))
    assert value == found.attribution and value["by"] == "kind" and value["unfit"] == []
    file, rows = value["columns"], found.record.document["plan"]["scored"]
    units = len(value["units"])
    columns = read_attributed(found.folder / file["name"], file["sha256"], rows, units)
    assert all(len(column) == value["columns"]["rows"] for column in columns.values())
    assert {c.split(" ")[0] for c in columns} == {"index", "kld", "alone", "without", "tv"}
    mean = np.mean(columns["alone down_proj"])
    (unit,) = [u for u in value["units"] if u["name"] == "down_proj"]
    assert unit["alone"]["value"] == pytest.approx(mean)


def test_evaluations_that_weigh_otherwise_do_so_here_too(request_of):
    """The whole is the run's own number, under a protocol that weighs windows."""
    asked = request_of()
    found = attribute(
        replace(asked, protocol=preset("hf-strided").override(context_length=64, stride=32)),
        "layer",
    )
    whole = found.record.document["metrics"]["kld"]
    assert found.attribution["kld"] == whole
    sha256, rows = found.attribution["columns"]["sha256"], found.record.document["plan"]["scored"]
    path, units = found.folder / "attribution-layer.parquet", len(found.attribution["units"])
    columns = read_attributed(path, sha256, rows, units)
    weight = columns["weight"]
    assert len(set(weight.tolist())) > 1
    unit = found.attribution["units"][0]
    mean = np.average(columns[f"alone {unit['name']}"], weights=weight)
    assert unit["alone"]["value"] == pytest.approx(mean)
    assert unit["alone"]["value"] != pytest.approx(
        columns[f"alone {unit['name']}"].mean(), rel=1e-9
    )


def test_a_base_without_weights_is_refused_before_anything_is_read(request_of, tmp_path):
    (tmp_path / "logits").write_bytes(b"_logits_")
    with pytest.raises(UsageError, match="has no weights to put in the model's place"):
        attribute(request_of(reference=str(tmp_path / "logits"), model=tmp_path / "none"), "layer")
    assert not (tmp_path / "runs").exists()


def test_a_resumed_run_is_attributed_again_only_where_something_is_missing(request_of):
    asked = replace(request_of(), resume="if-there")
    said: list[str] = []

    def again(by, directions):
        said.clear()
        found = attribute(asked, by, notify=said.append, directions=directions)
        return found.attribution, [line for line in said if "attributed" in line]

    alone, lines = again("kind", ["alone"])
    assert not lines
    assert again("kind", ["alone"]) == (alone, [f"already attributed: {said[-1].split(': ')[1]}"])
    both, lines = again("kind", ["alone", "without"])
    assert not lines and "fall" in both["units"][0]
    # What has more than is asked for will do.
    assert again("kind", ["alone"])[0] == both
    path = file_of(attribute(asked, "kind").folder, "kind", "parquet")
    path.write_bytes(path.read_bytes()[:-1])
    mended, (line,) = again("kind", ["alone"])
    assert line.endswith(": attributed again") and str(path) in line
    assert [u["alone"] for u in mended["units"]] == [u["alone"] for u in both["units"]]

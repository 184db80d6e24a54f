"""The demo's table, and a folder that is in use."""

from typing import Any

import pytest
from support.record_fields import fields

from scoremode.demo import variants
from scoremode.demo.quantize import VARIANTS
from scoremode.demo.variants import variants_data
from scoremode.errors import RunFolderError
from scoremode.report.terminal import table_text
from scoremode.results.record.section import Metric
from scoremode.text.corpus import from_string
from scoremode.text.protocol import preset


def test_a_model_of_something_else_is_not_written_over(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "measure", lambda *_, **__: None)
    config = tmp_path / "models" / VARIANTS[0].name / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("{}")
    corpus, protocol = from_string("a"), preset("disjoint")
    found = variants.measure_variants(demo / "model", corpus, protocol, tmp_path, command=())
    with pytest.raises(RunFolderError, match="W8A16: is no model of this demo's"):
        list(found)
    assert config.read_text() == "{}"


def test_a_base_of_another_machine_says_how_to_begin_anew(demo, tmp_path, monkeypatch):
    def measure(*_, **__):
        raise RunFolderError("demo/reference: is another run")

    monkeypatch.setattr(variants, "measure", measure)
    corpus, protocol = from_string("a"), preset("disjoint")
    found = variants.measure_variants(demo / "model", corpus, protocol, tmp_path, command=())
    with pytest.raises(RunFolderError, match="is another run; to begin anew, name another folder"):
        list(found)


def record(ratio: float, ci95: tuple[float, float] | None, half_life: int | None = 7) -> Any:
    values = {"ppl": 44.44444, "ppl_ratio": ratio, "kld": 0.0123456, "top1": 0.87654}
    values["acceptance"] = 0.92345
    made = fields(
        {
            "checkpoint": {"bits_per_weight": {"body": 4.5}},
            "metrics": {
                name: Metric(value=value, ci95=ci95, n=9, note=None)
                for name, value in values.items()
            },
        }
    )
    made.distribution = {"kld": {"99": 0.123456}}
    made.survival = fields({"sampled": {"half_life": half_life, "longest": 255}})
    return made


def test_a_variants_line_has_its_size_its_ratio_and_its_distance():
    header, _, one, two = table_text(
        variants_data({"A": record(1.0234, (1.0212, 1.0256)), "B": record(0.99, None, None)})
    ).splitlines()
    assert header.split("  ")[0] == "model" and header.split()[-1] == "half-life"
    assert one.split() == [
        *("A", "4.500", "44.4444", "×1.0234", "[1.0212,", "1.0256]", "0.01235", "0.1235"),
        *("87.65%", "92.34%", "7"),
    ]
    assert two.split()[3:5] == ["×0.9900", "-"] and two.split()[-1] == ">255"

"""docs/python.md: its pipeline runs as it stands, with llm-compressor, on the demo's model."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.models import library_model

import scoremode
from scoremode.errors import GateNotMet

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
JOBS = dict(re.findall(r"<!-- job: (\w+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL))


def test_the_page_has_the_job():
    assert "pipeline" in JOBS


# Of its own libraries.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["NVFP4A16", "FP8_DYNAMIC"])
def test_a_pipeline_is_gated(demo, scheme, monkeypatch, tmp_path):
    pytest.importorskip("llmcompressor", reason="llm-compressor is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text((demo / "heldout.txt").read_text()[:6000])
    names = {
        "model": library_model(demo / "model", torch.bfloat16), "SCHEME": scheme, "MAX_KLD": 0.05,
        "BASE": str(demo / "model"), "TEXT": tmp_path / "text.txt", "OUTPUT": tmp_path / "saved",
    }  # fmt: skip
    exec(compile(JOBS["pipeline"], PAGE.name, "exec"), names)
    live = names["run"]
    plan = {"file": names["TEXT"], "context_length": 512, "tokenizer": names["BASE"], "quiet": True}
    batch = live.record.document["schedule"]["batch_windows"]
    saved = scoremode.kld(
        names["OUTPUT"], reference=names["BASE"], device="cpu", batch_size=batch, **plan
    )
    klds = [run.scores["kld"] for run in (live, saved)]
    if scheme == "NVFP4A16":
        assert np.array_equal(*klds)
    else:
        assert klds[0].mean() == pytest.approx(klds[1].mean(), rel=0.1)
    strict = names | {"model": library_model(demo / "model", torch.bfloat16), "MAX_KLD": 1e-9}
    strict["OUTPUT"] = tmp_path / "never"
    with pytest.raises(GateNotMet):
        exec(compile(JOBS["pipeline"], PAGE.name, "exec"), strict)
    assert not strict["OUTPUT"].exists()

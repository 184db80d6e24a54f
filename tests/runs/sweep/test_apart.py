"""Models that want a process each: what they say there is told here."""

import shutil
from dataclasses import replace

import pytest
from support.models import edit_config
from support.sweeps import Apart, pair, scores_of

from scoremode.engines.kv_formats import parse_kv_cache
from scoremode.errors import CheckpointError
from scoremode.runs.measure import measure
from scoremode.runs.sweep.model import Stage
from scoremode.runs.sweep.sweep import capture_apart

pytestmark = pytest.mark.usefixtures("warm_children")


def test_a_base_is_captured_in_a_process_of_its_own(base, text, tmp_path):
    asked = pair(base, text[:1500], options=Apart(device="cpu", dtype="float32", batch_windows=2))
    capture = replace(asked, model=str(base), reference=None, keep="stored", output=tmp_path)
    stages, tokens = [], []
    stage = Stage(
        lambda _: None, lambda n, total: tokens.append((n, total)), lambda *s: stages.append(s)
    )
    (folder,) = capture_apart([capture], stage.named("the base"))
    assert folder.parent == tmp_path and ("score", "the base") in stages
    assert sum(n for n, _ in tokens) == pytest.approx(tokens[0][1])
    alone = measure(replace(capture, output=tmp_path / "alone"))
    assert scores_of(folder) == scores_of(alone.folder)


def test_a_base_is_captured_in_its_models_dtype_without_its_models_cache(base, text, tmp_path):
    """As one beside its model, though the file's own dtype is bfloat16."""
    model = shutil.copytree(base, tmp_path / "model")
    edit_config(model, dtype="float32")
    options = Apart(device="cpu", batch_windows=2, kv_cache=parse_kv_cache("int4-g32"))
    asked = replace(pair(base, text[:1500], options=options), model=str(model), output=tmp_path)
    record = measure(asked).record.document
    own = record["reference"]["engine"]
    assert own["dtype"] == record["engine"]["dtype"] == "float32"
    assert (own["kv_cache_dtype"], record["engine"]["kv_cache_dtype"]) == (None, "int4-g32")
    assert record["reference"]["kind"] == "model" and record["metrics"]["kld"]["value"] > 0


def test_what_fails_there_is_raised_here(base, text, tmp_path):
    asked = pair(base, text, options=Apart(device="cpu"))
    capture = replace(asked, model="/no/such", reference=None, keep="stored", output=tmp_path)
    with pytest.raises(CheckpointError, match="/no/such"):
        capture_apart([capture], Stage(lambda _: None, None, lambda *_: None))

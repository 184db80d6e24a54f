"""What goes wrong is one clear line, or a slower way that says so; never another number."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from engines.vllm.processes import WRONG, processes

REFUSED = {
    "no plugins": "VLLM_PLUGINS= keeps the plugin scoremode out: add it there",
    "other plugins": "VLLM_PLUGINS=other,another keeps the plugin scoremode out: add it there",
    "head dtype": "head dtype 'float64': is neither model nor float32",
    "no tokens": "max_model_len -1: must be at least 1",
    "too many positions": "512",
    "unknown keyword": "nonsense",
    "signatures": "PoolingParams in vllm/pooling_params.py has no nonesuch",
    "float32 head": "vLLM's own path has no head dtype float32",
    "shifted targets": "the self-test's logprob is",
}


@pytest.mark.parametrize("start", REFUSED)
def test_a_start_is_refused_in_one_line(start, ran):
    error = ran("refused", start).facts["errors"]["start"]
    assert REFUSED[start] in error and "\n" not in error


@pytest.mark.parametrize("call", WRONG)
@processes("dense", "float32, two ranks")
def test_a_wrong_request_is_refused_in_one_line(call, process, ran):
    error = ran(process).facts["errors"].get(call, "was not refused")
    assert WRONG[call][1] in error and "\n" not in error


@processes("dense", "float32, two ranks")
def test_after_wrong_requests_nothing_has_changed(process, ran):
    ours = ran(process)
    assert np.array_equal(ours.column("after errors"), ours.column("short"))


def test_where_the_plugin_does_not_fit_vllms_own_path_scores(ran):
    ours, reason = ran("refused", "fallback"), "pooling_params.py has no nonesuch"
    assert ours.facts["describe"]["path"] == "prompt_logprobs"
    assert reason in ours.facts["describe"]["problem"]
    (note,) = ours.facts["notes"]
    assert "DOES NOT FIT" in note and reason in note and "\n" not in note
    stock = ran("dense", "stock").column("windows")
    np.testing.assert_allclose(ours.column("windows"), stock, rtol=0, atol=1e-6)


def test_vllms_own_path_gives_the_same_columns(ran):
    ours, plugin = ran("refused", "fallback"), ran("dense")
    for name in ("position", "target", "top1"):
        assert np.array_equal(ours.column("short", name), plugin.column("short", name))
    for name in ("logprob", "top1_logprob"):
        np.testing.assert_allclose(
            ours.column("short", name), plugin.column("short", name), rtol=0, atol=1e-5
        )
    assert np.isnan(ours.column("short", "entropy")).all()
    for name in ("position", "target"):
        for call in ("first", "inputs"):
            assert np.array_equal(ours.column(call, name), plugin.column(call, name))


@pytest.mark.parametrize(
    ("call", "reason"),
    [("shuffled", "no other targets"), ("narrow", "its softmax over all 1024")],
)
def test_vllms_own_path_refuses_what_it_can_not_do(call, reason, ran):
    assert reason in ran("refused", "fallback").facts["errors"][call]


def test_a_package_that_is_only_on_the_path_is_not_found_by_vllm(engines, demo, tmp_path):
    """Every other package by link, scoremode by PYTHONPATH: its entry point is nowhere."""
    import scoremode

    (site,) = (Path(p) for p in sys.path if (Path(p) / "vllm" / "__init__.py").is_file())
    for entry in site.iterdir():
        if not entry.name.startswith(("scoremode", "_editable", "_scoremode", "__editable")):
            (tmp_path / entry.name).symlink_to(entry)
    source = Path(str(scoremode.__file__)).parents[1]
    run = ["ppl", str(demo / "model"), "--text", "a b", "-c", "32", "-o", str(tmp_path / "runs")]
    code, out, err = engines.run(
        # -S: without the environment's own packages.
        ["-S", "-m", "scoremode", *run, "--engine", "vllm"],
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(source)]),
    )
    (line,) = [line for line in err.splitlines() if "scoremode: error" in line]
    assert code == 1 and "has to be installed, not only on the path" in line
    assert "Traceback" not in err and out == ""

"""`scoremode verify` with both engines, on quantized weights; with two installations of one."""

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from engines.vllm.dtypes import SERVED, of_avx512, of_bf16

from scoremode.demo.quantize import Variant, quantize_folder


@of_bf16
@of_avx512
def test_vllm_agrees_with_the_float32_reference(demo, tmp_path):
    pytest.importorskip("vllm")
    quantize_folder(demo / "model", tmp_path / "w4", Variant("W4A16", 4, 64))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "scoremode", "verify", str(tmp_path / "w4")),
            *("-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "256"),
            *("--engines", "torch,vllm", "--windows", "9", "--json"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    engines = result["engines"]
    assert list(engines) == ["torch", "vllm"] and len(result["sample"]["windows"]) == 9
    for engine in engines.values():
        found = engine["difference"]
        assert engine["verdict"]["agrees"] and engine["verdict"]["arithmetic"] == "same"
        # Rounding, and not nothing; and what a kernel that mistook a scale would not leave.
        assert 1e-5 < found["rms"] < 0.05 and abs(found["bias"]["value"]) < 2e-3
        assert found["top1"] > 0.97 and found["correlation"] > 0.999
    kernels = engines["vllm"]["engine"]["linear"]
    assert all("WNA16" in name for name in kernels), kernels
    (pair,) = result["between"]
    assert (pair["engine"], pair["other"]) == ("vllm", "torch")


@pytest.fixture(scope="module")
def other_environment(tmp_path_factory) -> Path:
    """An environment of its own whose packages are this one's, by a `.pth` file."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("environments") / "copy"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # The paths as they are, and not what `.pth` files there add: those are read, too.
    ours = [place for place in sys.path if place.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({place!r})" for place in ours]
    (site / "ours.pth").write_text("\n".join(lines) + "\n")
    return folder


def verify(demo, dtype: str, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the document of a check of the demo's model."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "scoremode", "verify", str(demo / "model"), "--dtype", dtype),
            *("-f", str(demo / "heldout.txt"), "--protocol", "disjoint", "-c", "256", "--json"),
            *words,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def test_two_installations_give_the_same_and_a_planted_difference_is_found(demo, other_environment):
    """The same packages in two environments, and one of them with another rotation of positions."""
    # In float32, which resolves it: bfloat16's rounding is as large on this model.
    rope = '{"rope_parameters": {"rope_type": "default", "rope_theta": 9000.0}}'
    code, result = verify(
        demo,
        "float32",
        *("--engines", f"vllm,vllm@{other_environment}", "--windows", "5", "--worst", "3"),
        *("--variant", f"rope: vllm@{other_environment}/bin/python hf_overrides='{rope}'"),
    )
    plain, same, planted = result["engines"].values()
    assert list(result["engines"]) == ["vllm", "vllm@copy", "rope"]
    assert same["interpreter"]["path"] == str(other_environment / "bin" / "python")
    assert same["engine"]["vllm"] == plain["engine"]["vllm"]
    assert plain["verdict"]["agrees"] and same["verdict"]["agrees"]
    pairs = {(b["engine"], b["other"]): b for b in result["between"]}
    assert pairs["vllm@copy", "vllm"]["difference"]["rms"] == 0
    # Far from float32 where it should be near, and the farther the later in a window.
    assert code == 3 and not result["agree"] and not planted["verdict"]["agrees"]
    assert planted["growth"] > 2 > plain["growth"] and len(planted["worst"]) == 3
    assert planted["worst"][0]["target_text"]


def test_batches_of_one_are_within_rounding_of_batches_of_many(demo):
    pytest.importorskip("vllm")
    code, result = verify(
        demo,
        SERVED,
        *("--no-reference", "--windows", "9", "--variant", "vllm max_num_seqs=32"),
        *("--variant", "vllm max_num_seqs=1 max_num_batched_tokens=256"),
    )
    many, one = result["engines"].values()
    assert code == 0 and result["reference"] is None
    assert (many["engine"]["max_num_seqs"], one["engine"]["max_num_seqs"]) == (32, 1)
    (pair,) = result["between"]
    assert pair["verdict"]["agrees"] and pair["difference"]["rms"] < 0.05

"""`scoremode verify` with both engines, on quantized weights."""

import json
import subprocess
import sys

import pytest
from engines.vllm.dtypes import of_avx512, of_bf16

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

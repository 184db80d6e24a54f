"""What makes two runs comparable with one base."""

import pytest
from support.run_requests import request

from scoremode.engines.torch.options import TorchOptions
from scoremode.runs.baselines import base_sha256
from scoremode.runs.measure import measure


def test_how_windows_are_grouped_makes_no_other_base(kept, base, quant, text, tmp_path):
    """Nor how much memory there is: runs against it are still ranked together."""
    options = TorchOptions(device="cpu", dtype="bfloat16", batch_windows=3)
    other = measure(
        request(quant, text, tmp_path, reference=str(base), options=options)
    ).record.document
    stored = measure(request(quant, text, tmp_path, reference=str(kept))).record.document
    assert other["reference"]["sha256"] == stored["reference"]["sha256"]
    # bf16 products by AMX round otherwise where a micro-batch has other rows.
    kld, wanted = (r["metrics"]["kld"]["value"] for r in (other, stored))
    assert kld == pytest.approx(wanted, rel=1e-3)


def test_a_base_is_its_files_and_its_arithmetic():
    device = {"type": "cpu", "name": "x", "threads": 2, "memory_bytes": 1}
    engine = {"engine": "torch", "dtype": "bfloat16", "batch_windows": 4, "device": device}
    files = {"config.json": "c0", "model.safetensors": "b0"}
    one = base_sha256(files, engine)
    assert one == "0a8e8a899869c6357d9086f7db23e98d1b6dd9c768253813460e5edc1351fb48"
    regrouped = {"batch_windows": 1, "device": device | {"threads": 1, "memory_bytes": 9}}
    assert base_sha256(files, engine | regrouped) == one
    others = [
        (files | {"config.json": "c1"}, engine),
        (files, engine | {"dtype": "float32"}),
        (files, engine | {"device": device | {"name": "y"}}),
    ]
    assert len({one, *(base_sha256(*other) for other in others)}) == 4

"""The ways in which a row's sums are computed."""

import pytest
import torch

CUDA = torch.cuda.is_available()


@pytest.fixture
def kernels(monkeypatch) -> torch.device:
    """Where the Triton kernels run: on CUDA, else on the CPU under Triton's interpreter."""
    if CUDA:
        return torch.device("cuda")
    knobs = pytest.importorskip("triton", reason="needs CUDA or Triton's interpreter").knobs
    if not knobs.runtime.interpret:
        pytest.skip("Triton was imported without its interpreter")
    for module in ("rows", "divergence", "project"):
        monkeypatch.setattr(f"scoremode.head.{module}.has_kernels", lambda device: True)
    return torch.device("cpu")


@pytest.fixture(params=["plain", "kernels"])
def device(request) -> torch.device:
    """Of sums in plain torch and by kernels."""
    return torch.device("cpu") if request.param == "plain" else request.getfixturevalue("kernels")

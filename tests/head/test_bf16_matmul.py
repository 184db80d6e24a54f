"""Bf16 instructions lent to float32 matmuls: where, and for how long."""

import pytest
import torch

from scoremode.head import project as module
from scoremode.head.project import bf16_matmul, cpu_has_instructions, lends_bf16

BACKEND = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("dtype", "device", "lent"),
    [(torch.bfloat16, "cpu", True), (torch.float16, "cpu", False), (torch.float32, "cpu", False),
     (torch.bfloat16, "cuda", False)],
)  # fmt: skip
def test_lent_to_bf16_inputs_on_a_cpu_alone(dtype, device, lent, monkeypatch):
    monkeypatch.setattr(module, "cpu_has_instructions", lambda dtype: True)
    assert lends_bf16(dtype, torch.device(device)) == lent
    monkeypatch.setattr(module, "cpu_has_instructions", lambda dtype: False)
    assert not lends_bf16(dtype, torch.device(device))


def test_a_cpu_without_them_lends_none(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    fresh = cpu_has_instructions.__wrapped__
    assert fresh(torch.bfloat16) and fresh(torch.float32) and not fresh(torch.float16)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_setting_is_taken_back_even_after_an_error(wanted):
    before = BACKEND.fp32_precision
    with pytest.raises(ValueError), bf16_matmul(wanted):
        assert BACKEND.fp32_precision == ("bf16" if wanted else before)
        raise ValueError
    assert BACKEND.fp32_precision == before

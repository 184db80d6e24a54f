"""Decoders by a kernel, on a GPU or interpreted, beside the plain torch that gives the same bits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from support.schemes import same
from support.triton_interpreter import DEVICE, exact_bfloat16

from scoremode.lib import fallback
from scoremode.schemes.base import Scheme, Scratch

Tensors = Mapping[str, torch.Tensor]


def require_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips where kernels can neither run nor be interpreted."""
    triton = pytest.importorskip("triton", reason="needs Triton")
    if DEVICE.type == "cpu":
        if not triton.knobs.runtime.interpret:
            pytest.skip("Triton was imported without its interpreter")
        exact_bfloat16(monkeypatch)


@contextmanager
def launches() -> Iterator[list[str]]:
    """Has schemes decode by the kernel on any device; the names that it is asked for by."""
    names: list[str] = []

    def attempt(name, device, run):
        names.append(name)
        run()
        return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fallback, "attempt", attempt)
        yield names


def by_twin(scheme: Scheme, stored: Tensors, verb: str, dtype: torch.dtype) -> torch.Tensor:
    out = torch.full(scheme.shape, 77, dtype=torch.float32).to(dtype)
    getattr(scheme, verb)(stored, out, Scratch())
    return out


def by_kernel(scheme: Scheme, stored: Tensors, verb: str, dtype: torch.dtype) -> torch.Tensor:
    """With a margin around the weight that nothing may be written to."""
    rows, columns = scheme.shape
    memory = torch.full((rows * columns + 32,), 77, dtype=torch.float32).to(dtype).to(DEVICE)
    out = memory[16:-16].view(rows, columns)
    tensors = {name: placed(tensor) for name, tensor in stored.items()}
    getattr(scheme, verb)(tensors, out, Scratch())
    assert (memory[:16].float() == 77).all() and (memory[-16:].float() == 77).all()
    return out.cpu()


def check_decoder(scheme: Scheme, stored: Tensors, dtype: torch.dtype) -> None:
    """One launch gives the bits of plain torch."""
    twin = by_twin(scheme, stored, "decode", dtype)
    with launches() as names:
        ours = by_kernel(scheme, stored, "decode", dtype)
    assert names == [f"decode {scheme.label}"]
    same(ours, twin)


def placed(tensor: torch.Tensor) -> torch.Tensor:
    """On the device, at the same offset from an aligned address."""
    offset = tensor.storage_offset()
    memory = torch.empty(offset + tensor.numel(), dtype=tensor.dtype, device=DEVICE)
    return memory[offset:].view(tensor.shape).copy_(tensor)

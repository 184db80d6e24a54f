"""Triton's interpreter, where it would compute something else than a GPU does."""

import numpy as np
import pytest
import torch

# Where kernels run: on CUDA, or interpreted.
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def exact_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has it round float32 to bfloat16 to the nearest, half to even, as the instruction does, where
    it cuts bits off (3.9); and take a subnormal bfloat16 for what it is."""
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._convert_float

    def convert(values, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(values.copy()).bfloat16()
            return rounded.view(torch.int16).numpy().view(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return values.astype(np.uint32) << 16
        return original(values, source, target, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", convert)

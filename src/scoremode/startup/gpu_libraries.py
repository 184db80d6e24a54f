"""A GPU's first kernels, run while transformers is imported, for the libraries that they load.

cuBLAS, cuDNN and Triton are each loaded when they are used first; Triton also reads all of its own
library, 400 MB, for the name of its cache. Together that is a good half second, most of it outside
Python's lock.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from scoremode.engines.torch.model.attention import attention_backends
from scoremode.lib.fallback import is_missing

__all__ = ["warmer"]

_ROWS = 64


def warmer(gpu: int, config: Mapping[str, Any]) -> Callable[[], None] | None:
    """Gives a call for another thread, which imports nothing: small kernels, whose results are thrown
    away. None without that GPU.

    `config`: a model's, for the width of the norm that is needed first.
    """
    if gpu >= torch.cuda.device_count():
        return None
    norm = None
    if is_missing() is None:
        from scoremode.engines.torch.fused.kernels import rms_norm

        norm = rms_norm
    width = config.get("hidden_size")
    return partial(_warm, torch.device("cuda", gpu), width if type(width) is int else 4096, norm)


def _warm(device: torch.device, width: int, norm: Callable[..., Any] | None) -> None:
    # Triton launches on the thread's current device.
    with torch.no_grad(), torch.cuda.device(device):
        x = torch.ones((1, 1, 128, 128), dtype=torch.bfloat16, device=device)
        torch.mm(x[0, 0], x[0, 0])
        torch.mm(x[0, 0], x[0, 0], out_dtype=torch.float32)
        with attention_backends(device):
            torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        if norm is not None:
            rows = torch.ones((1, _ROWS, width), dtype=torch.bfloat16, device=device)
            norm(rows, rows[0, 0], 1e-5, 0)
        torch.cuda.synchronize(device)

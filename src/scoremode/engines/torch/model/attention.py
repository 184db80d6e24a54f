"""The choice of the attention kernel of torch's that runs on a CUDA device.

torch asks its kernels in an order of its own, flash first. cuDNN's is the faster one on the GPUs that
it is made for; where it can't take a call (a head that is too wide, float32) the next one does.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["attention_backends"]

_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention_backends(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which scaled_dot_product_attention on `device` asks cuDNN first; nothing on a CPU.

    The order belongs to the process, so no other thread may compute attention meanwhile.
    """
    if device.type != "cuda":
        return nullcontext()
    return sdpa_kernel(_ORDER, set_priority=True)

"""Which of torch's attention kernels runs on a GPU.

For a causal window without padding transformers asks for `scaled_dot_product_attention` without a mask.
cuDNN's kernel for that takes about half the time of the flash kernel on a Hopper GPU; where it can't be
had, the others follow in their usual order.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["attention_backends"]


def attention_backends(device: torch.device) -> AbstractContextManager[None]:
    """Within it, attention on a GPU is tried by these kernels in turn."""
    if device.type != "cuda":
        return nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)

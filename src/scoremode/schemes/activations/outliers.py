"""LLM.int8's quantizer of a linear's input: int8 by token, and columns with an outlier apart.

Which columns are apart depends on all tokens that go through the linear at once. Here these are the
tokens of one window, as when the library runs on it alone: no window's columns depend on what else is
in its batch, and a state does know that much of the tokens after it.

An input is rounded to float16 first. A token's scale is its largest magnitude below the threshold,
whichever column that lies in, over 127; codes of all tokens are zero in the columns apart.
Source: bitsandbytes 0.50, `int8_vectorwise_quant` on a CPU; its CUDA kernel divides approximately.
"""

import torch

from scoremode.schemes.decoding.codes import Quantized
from scoremode.schemes.decoding.unpack import row_blocks

__all__ = ["quantize_apart"]


def quantize_apart(x: torch.Tensor, threshold: float, dtype: torch.dtype) -> Quantized:
    """Codes [B·T, I] in `dtype` and scales of `x` float [B, T, I], whose columns are apart where a
    window has a magnitude of at least `threshold`, rounded to float16; in none where it is 0."""
    windows, tokens, width = x.shape
    limit = torch.tensor(threshold, dtype=torch.float16).item()
    codes = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty(windows, tokens, 1, device=x.device)
    apart = torch.zeros(windows, width, dtype=torch.bool, device=x.device)
    # As many windows at a time as a block holds, of a larger one so many tokens.
    for some in row_blocks((windows, tokens * width), x.device):
        for rows in row_blocks((tokens, width), x.device):
            values = x[some, rows].half().float()
            if threshold:
                outlier = values.abs() >= limit
                apart[some] |= outlier.any(1)
                values.masked_fill_(outlier, 0)
            largest = values.abs().amax(2, keepdim=True)
            # The library's 127 / largest is torch's: the inverse, times 127.
            steps = largest.reciprocal().mul_(127).masked_fill_(largest == 0, 0)
            codes[some, rows] = values.mul_(steps).round_()
            scale[some, rows] = largest.mul_(1 / 127)
    columns: tuple[torch.Tensor, ...] = ()
    if threshold:
        # One wait for a GPU, and not one a window.
        columns = tuple(row.nonzero().flatten().to(x.device) for row in apart.cpu())
        for window, found in enumerate(columns):
            codes[window].index_fill_(1, found, 0)
    return Quantized(codes.view(-1, width), scale.view(-1, 1), columns)

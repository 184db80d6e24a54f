"""GPTQ: columns are rounded one after the other, and those to come make up for the error.

Source: Frantar et al. 2022, arXiv:2210.17323, algorithm 1; without activation order, all columns in one
block, each linear on the dense model's inputs.
"""

import torch

from scoremode.demo.rounding import Tensors, qweight_by_column, symmetric_scale

__all__ = ["gptq"]

# Share of the mean diagonal that is added to it, the paper's.
_DAMPING = 0.01


def gptq(weight: torch.Tensor, gram: torch.Tensor, group_size: int) -> Tensors:
    """The tensors of a linear [O, I] in symmetric 4-bit groups; `gram` [I, I]: its inputs'."""
    left = weight.double().clone()
    hessian = gram.clone()
    dead = hessian.diagonal() == 0
    hessian.diagonal()[dead] = 1
    left[:, dead] = 0
    hessian.diagonal().add_(_DAMPING * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    upper = torch.linalg.cholesky(inverse, upper=True)
    codes = torch.empty(weight.shape, dtype=torch.int64)
    scales = []
    for column in range(weight.shape[1]):
        if column % group_size == 0:
            scales.append(symmetric_scale(left[:, column : column + group_size]))
        scale = scales[-1].double()
        codes[:, column] = (left[:, column] / scale).round().clamp(-8, 7)
        error = (left[:, column] - codes[:, column] * scale) / upper[column, column]
        left[:, column:] -= error.unsqueeze(1) * upper[column, column:]
    return qweight_by_column(codes + 8, torch.stack(scales))

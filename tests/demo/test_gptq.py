"""GPTQ against the paper's update, by an inverse made anew for every column."""

import numpy as np
import torch
from support.families.qweight import packed

from scoremode.demo.calibration import gptq

SIZE = 8


def test_columns_make_up_for_errors_before_them():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(16, 24, generator=generator)
    x = torch.randn(64, 24, generator=generator) @ torch.randn(24, 24, generator=generator)
    x[:, 5] = 0
    gram = (x.T @ x).double() / 64
    stored = gptq(weight, gram, SIZE)

    hessian = gram.numpy().copy()
    hessian[5, 5] = 1
    hessian += 0.01 * hessian.diagonal().mean() * np.eye(24)
    left = weight.double().numpy().copy()
    left[:, 5] = 0
    codes, scales = np.empty((16, 24), int), []
    for j in range(24):
        if j % SIZE == 0:
            largest = np.abs(left[:, j : j + SIZE]).max(1)
            scales.append((largest / 7.5).astype(np.float16))
        scale = scales[-1].astype(float)
        codes[:, j] = np.clip(np.rint(left[:, j] / scale), -8, 7)
        # Of the columns that are left alone (OBQ, equation 2).
        inverse = np.linalg.inv(hessian[j:, j:])
        error = (left[:, j] - codes[:, j] * scale) / inverse[0, 0]
        left[:, j:] -= np.outer(error, inverse[0])
    assert torch.equal(stored["scales"], torch.from_numpy(np.stack(scales)))
    assert torch.equal(stored["qweight"], packed(codes + 8, 4).T)
    assert torch.equal(stored["qzeros"], torch.full((3, 2), 0x77777777, dtype=torch.int32))
    assert stored["g_idx"].tolist() == [i // SIZE for i in range(24)]

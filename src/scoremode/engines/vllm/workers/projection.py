"""The step from final states to logits with vLLM's own kernels: of the model's head in float32, and
of another model's head beside it.
"""

# vLLM lives in an environment of its own.
# pyright: reportMissingImports=false

from dataclasses import replace
from typing import Any

import torch

from scoremode.head.project import Head, bf16_matmul, lends_bf16

__all__ = ["OtherHead", "project_in_float32"]


class OtherHead:
    """`head`, of one rank's entries, as vLLM would project it for a model of that head.

    Where vLLM captured the states, the kernel and its shapes are those of the capture, so that its
    logits come back to the bit.

    - `columns`: of the model's own projection on this rank, padding included; the head's are filled up
      with zeros, since a kernel may be chosen by their number.
    - `dtype`: of the states, to which the weight is rounded as the model's own would be.
    - `float32`: logits are float32, not rounded to `dtype`.
    """

    def __init__(
        self, head: Head, columns: int, dtype: torch.dtype, device: torch.device, *, float32: bool
    ):
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

        # vLLM's own methods add the bias.
        self._head = replace(head, bias=None)
        if float32 and dtype == torch.float32:
            # Widened tile by tile when it is multiplied, which is exact.
            dtype = head.weight.dtype
        self._layer = torch.nn.Module()
        weight = _padded(head.weight, columns, dtype, device)
        self._layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        self._bias = None if head.bias is None else _padded(head.bias, columns, dtype, device)
        self._method: Any = Float32Projection() if float32 else UnquantizedEmbeddingMethod()
        if not float32:
            # On a CPU the weight is repacked.
            self._method.process_weights_after_loading(self._layer)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Float [R, entries] of `states` [R, D]."""
        z = self._method.apply(self._layer, states, bias=self._bias)[:, : self._head.vocabulary]
        return self._head.logits(z, 0)


def _padded(
    tensor: torch.Tensor, rows: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A copy on `device` with zeros behind, or the tensor itself where that is the same."""
    if len(tensor) >= rows:
        return tensor.to(device, dtype)
    out = torch.zeros((rows, *tensor.shape[1:]), dtype=dtype, device=device)
    out[: len(tensor)].copy_(tensor)
    return out


def project_in_float32(lm_head: Any) -> None:
    """Gives an unquantized projection a float32 result, once."""
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    method = lm_head.quant_method
    if isinstance(method, Float32Projection):
        return
    if not isinstance(method, (UnquantizedEmbeddingMethod, UnquantizedLinearMethod)):
        raise ValueError(
            f"head dtype float32: the head is quantized ({type(method).__name__}): use model"
        )
    lm_head.quant_method = Float32Projection()


class Float32Projection:
    """`x @ weight.T + bias` with a float32 result."""

    # Entries whose weights are widened at a time: 7 MiB at a width of 896, inside a shared cache.
    _TILE = 2048

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        weight = layer.weight
        if x.is_cuda and x.dtype != torch.float32:
            z = torch.mm(x, weight.t(), out_dtype=torch.float32)
        else:
            # A float32 copy of the whole weight would be the largest thing in memory.
            z = x.new_empty((len(x), len(weight)), dtype=torch.float32)
            wide = x.float()
            with bf16_matmul(lends_bf16(x.dtype, x.device)):
                for low in range(0, len(weight), self._TILE):
                    tile = weight[low : low + self._TILE].float()
                    torch.mm(wide, tile.t(), out=z[:, low : low + len(tile)])
        return z if bias is None else z.add_(bias.float())

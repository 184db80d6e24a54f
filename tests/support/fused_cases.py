"""Layers and inputs for the tests of fused kernels, on CUDA or interpreted."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

pytest.importorskip("triton", reason="needs Triton")

from support.triton_interpreter import DEVICE

# Triton's interpreter cuts a number off where it should round it to bfloat16.
DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]


dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(DEVICE, dtype)


def layer(kind: type[LlamaDecoderLayer] = LlamaDecoderLayer) -> LlamaDecoderLayer:
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    module = kind(config, 0).to(DEVICE, torch.float16).eval()
    return module.requires_grad_(False)


def run(module: LlamaDecoderLayer) -> torch.Tensor:
    x = random(2, 6, 32, dtype=torch.float16)
    tables = tuple(random(2, 1, 6, 8, dtype=torch.float16, seed=3))
    return module(x, position_embeddings=tables)


class LyingRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * 1.01

"""A llama of one layer in one of ggml's types, from random bits alone: always the same file."""

import numpy as np
import torch
from gguf import GGMLQuantizationType
from support.gguf.blocks import PLACES, sizes, tame_blocks
from support.gguf.files import file, info

# Types whose rounding of inputs, and whose kernels in llama.cpp, differ.
KINDS = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ3_XXS", "IQ4_XS")
HIDDEN, HEADS, KEYS, VOCAB = 256, 4, 2, 96
# As many tokens at once as llama.cpp's attention computes in float32.
TOKENS = 64
SHAPES = {
    "token_embd": (VOCAB, HIDDEN),
    "output": (VOCAB, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_v": (HIDDEN // HEADS * KEYS, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (HIDDEN, HIDDEN),
    "blk.0.ffn_up": (HIDDEN, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, HIDDEN),
}
# A code's mean, with the sign by which a block's minimum is added.
_MIDDLE = {"Q4_1": -7.5, "Q4_K": 7.5, "Q2_K": 1.5}
NORMS = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
METADATA = {
    "general.architecture": "llama",
    "general.name": "one layer",
    "llama.context_length": TOKENS,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": HIDDEN,
    "llama.block_count": 1,
    "llama.vocab_size": VOCAB,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KEYS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": HIDDEN // HEADS,
    "tokenizer.ggml.model": "no_vocab",
}


def one_layer(kind: str) -> bytes:
    """The file, with all matrices in blocks of `kind`, or in F16."""
    infos, data = [], b""
    for name, shape in {**SHAPES, **dict.fromkeys(NORMS, (HIDDEN,))}.items():
        seed = len(infos)
        if name in NORMS:
            stored, content = "F32", 1 + _fractions(shape, seed)
        elif kind == "F16":
            stored, content = kind, (_fractions(shape, seed) / 4).astype(np.float16)
        else:
            stored = kind
            content = _centred(kind, tame_blocks(kind, shape[0], HIDDEN // sizes(kind)[0], seed))
        infos.append(info(f"{name}.weight", GGMLQuantizationType[stored], shape, len(data)))
        data += content.tobytes()
    return file(METADATA, infos, data)


def token_ids() -> np.ndarray:
    """int32 [TOKENS]."""
    return np.random.default_rng(99).integers(0, VOCAB, TOKENS, dtype=np.int32)


def _centred(kind: str, blocks: torch.Tensor) -> np.ndarray:
    """The blocks, with minimums by which their weights are about 0 and not all of one sign: with these
    every row would be nearly the same, and sums grow past what float16 holds."""
    found = blocks.numpy().reshape(-1, sizes(kind)[1])
    if kind in _MIDDLE:
        scale, minimum = PLACES[kind]
        half = found[:, scale : scale + 2].copy().view(np.float16) * np.float16(_MIDDLE[kind])
        found[:, minimum : minimum + 2] = half.view(np.uint8)
    return found


def _fractions(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 multiples of 2^-12 between ±1/2, which every machine draws alike."""
    drawn = np.random.default_rng(seed).integers(-2048, 2048, shape)
    return drawn.astype(np.float32) / 4096

"""GGUF files of random weights in the shapes and types of real ones: right for speed, meaningless for
quality."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import torch

# A type's number, values a block, bytes a block, and of its halves: where they begin, and what they
# are times the weights' size. ggml's `ggml-common.h`.
_TYPES: dict[str, tuple[int, int, int, tuple[tuple[int, float], ...]]] = {
    "Q4_0": (2, 32, 18, ((0, 1 / 4.6),)),
    "Q8_0": (8, 32, 34, ((0, 1 / 74),)),
    # Scale and minimum have factors of six bits beside, 32 to 63 as nearly all are.
    "Q4_K": (12, 256, 144, ((0, 1 / 223), (2, 8 / 223))),
    "Q6_K": (14, 256, 210, ((208, 1 / 1300),)),
}
_ALIGNMENT = 32
_UINT32, _FLOAT32, _STRING = 4, 6, 8


def write_llama(file: Path, shape: dict[str, int], mix: str, device: str, seed: int = 0) -> None:
    """A Llama as llama-quantize's `mix` has it: `Q4_K_M` (Q6_K for the head and for half of the layers'
    `attn_v` and `ffn_down`), or one type for all linears. Its file has no tokenizer."""
    hidden, inter, layers = (
        shape[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    kv = hidden // heads * kv_heads
    common = "Q4_K" if mix == "Q4_K_M" else mix
    tensors: list[tuple[str, str, tuple[int, ...]]] = [
        ("token_embd.weight", common, (shape["vocab_size"], hidden)),
        ("output_norm.weight", "F32", (hidden,)),
        ("output.weight", "Q6_K" if mix == "Q4_K_M" else mix, (shape["vocab_size"], hidden)),
    ]
    for i in range(layers):
        more = i < layers // 8 or i >= 7 * layers // 8 or (i - layers // 8) % 3 == 2
        better = "Q6_K" if mix == "Q4_K_M" and more else common
        linears = {
            "attn_q": (common, hidden, hidden),
            "attn_k": (common, kv, hidden),
            "attn_v": (better, kv, hidden),
            "attn_output": (common, hidden, hidden),
            "ffn_gate": (common, inter, hidden),
            "ffn_up": (common, inter, hidden),
            "ffn_down": (better, hidden, inter),
        }
        for name, (kind, out, wide) in linears.items():
            tensors.append((f"blk.{i}.{name}.weight", kind, (out, wide)))
        tensors += [(f"blk.{i}.{n}_norm.weight", "F32", (hidden,)) for n in ("attn", "ffn")]
    metadata: dict[str, str | int | float] = {
        "general.architecture": "llama",
        "llama.block_count": layers,
        "llama.context_length": 8192,
        "llama.embedding_length": hidden,
        "llama.feed_forward_length": inter,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": kv_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": hidden // heads,
        "llama.rope.freq_base": 500_000.0,
        "llama.vocab_size": shape["vocab_size"],
    }
    generator = torch.Generator(device=device).manual_seed(seed)
    file.parent.mkdir(exist_ok=True)
    with file.open("wb") as out:
        _write_header(out.write, metadata, tensors)
        for _, kind, size in tensors:
            out.write(b"\0" * (-out.tell() % _ALIGNMENT))
            if kind == "F32":
                out.write(torch.ones(size).numpy().tobytes())
            else:
                out.write(_random_blocks(kind, size, generator).cpu().numpy().tobytes())


def _write_header(
    write: Callable[[bytes], object],
    metadata: dict[str, str | int | float],
    tensors: list[tuple[str, str, tuple[int, ...]]],
) -> None:
    write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        write(_string(key))
        if isinstance(value, str):
            write(struct.pack("<I", _STRING) + _string(value))
        elif isinstance(value, int):
            write(struct.pack("<II", _UINT32, value))
        else:
            write(struct.pack("<If", _FLOAT32, value))
    at = 0
    for name, kind, size in tensors:
        number, values, bytes_ = (0, 1, 4) if kind == "F32" else _TYPES[kind][:3]
        dims = struct.pack(f"<{len(size)}Q", *reversed(size))
        write(_string(name) + struct.pack("<I", len(size)) + dims + struct.pack("<IQ", number, at))
        count = torch.Size(size).numel() // values * bytes_
        at += count + -count % _ALIGNMENT


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _random_blocks(kind: str, size: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """uint8 [blocks, bytes of one], whose weights are about as large as I^-0.5."""
    _, values, bytes_, halves = _TYPES[kind]
    count, device = torch.Size(size).numel() // values, generator.device
    blocks = torch.randint(
        0, 256, (count, bytes_), dtype=torch.uint8, device=device, generator=generator
    )
    scale = torch.empty(count, device=device).uniform_(0.5, 1.5, generator=generator)
    for begin, factor in halves:
        half = (scale * (size[-1] ** -0.5 * factor)).half()
        blocks[:, begin : begin + 2] = half[:, None].view(torch.uint8)
    if kind == "Q4_K":
        # Minimums of 8 times their scale: codes less 8, as those of the other formats here.
        blocks[:, 4:8] |= 0xA0
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = (blocks[:, 12:16] & 15) * 17
    return blocks

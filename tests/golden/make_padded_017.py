"""Writes padded_017.safetensors: words of 3, 5, 6 and 7 bits as compressed-tensors 0.17.0 packed them.

Since 0.18 values run on over words, so the meaning of the padded ones comes from the last release that
wrote them. Every case holds the stored tensors and, as `weight_dense`, the library's own dense weight;
the metadata holds the library's version and every case's settings.

    pip install torch==2.13.0 compressed-tensors==0.17.0 psutil
    python make_padded_017.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

OUT = Path(__file__).with_name("padded_017.safetensors")
# name: (rows, columns, bits, symmetric, group size, scale's dtype); group size -1 is one scale a
# channel. The first of each width has as many words as it would have now; the others more.
CASES = {
    f"w{bits}-{what}{'' if symmetric else '-asym'}": (rows, columns, bits, symmetric, size, dtype)
    for bits, same in ((3, 13), (5, 7), (6, 9), (7, 5))
    for symmetric in (True, False)
    for what, rows, columns, size, dtype in (
        ("same-width", 4, same, -1, torch.float32),
        ("g32", 11, 96, 32, torch.bfloat16),
        ("channel", 45, 61, -1, torch.float16),
    )
}


def main() -> None:
    assert version("compressed-tensors") == "0.17.0"
    torch.manual_seed(0)
    tensors, settings = {}, {}
    for name, (rows, columns, bits, symmetric, size, dtype) in CASES.items():
        args = QuantizationArgs(num_bits=bits, symmetric=symmetric, group_size=size)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weight = (torch.randn(rows, columns) + 0.3 * torch.randn(rows, 1)).to(dtype)
        by_scale = weight.reshape(rows, 1, -1) if size == -1 else weight.reshape(rows, -1, size)
        scale, zero_point = calculate_qparams(by_scale.amin(-1), by_scale.amax(-1), args)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
        stored = PackedQuantizationCompressor.compress(state, scheme)
        words, dense_words = -(-columns // (32 // bits)), -(-columns * bits // 32)
        assert stored["weight_packed"].shape == (rows, words)
        assert (words == dense_words) == ("same-width" in name)
        dense = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
        assert (dense.float() - weight.float()).abs().max() <= scale.float().max()
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in stored.items()}
        tensors[f"{name}.weight_dense"] = dense.contiguous()
        settings[name] = args.model_dump(mode="json", include=set(args.model_fields_set))
    about = {name: version(name) for name in ("compressed-tensors", "torch")} | {"cases": settings}
    # One entry: safetensors writes several in any order, and the file should come out the same.
    save_file(tensors, OUT, metadata={"about": json.dumps(about)})


if __name__ == "__main__":
    main()

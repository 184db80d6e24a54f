"""Writes pack_quantized_017.safetensors: what compressed-tensors 0.17.0 decompresses.

The newest releases refuse `actorder: group` and no longer read `weight_g_idx`, so its meaning comes
from the last release that did. Every case holds the stored tensors and the library's own dense
`weight`; the metadata holds the library's version and every case's settings.

    pip install torch==2.13.0 compressed-tensors==0.17.0 psutil
    python make_pack_quantized_017.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

OUT = Path(__file__).with_name("pack_quantized_017.safetensors")
# name: (rows, columns, bits, symmetric, group size, in activation order, scale's dtype);
# group size -1 is one scale a channel, None one a tensor.
CASES = {
    "w4-g32-actorder": (11, 96, 4, True, 32, True, torch.bfloat16),
    "w4-g32-asym-actorder": (11, 96, 4, False, 32, True, torch.bfloat16),
    "w4-g128-asym-actorder": (3, 256, 4, False, 128, True, torch.float16),
    "w8-g32-actorder": (5, 64, 8, True, 32, True, torch.float16),
    "w8-g32-asym-actorder": (5, 64, 8, False, 32, True, torch.float32),
    "w8-g8-asym-actorder": (1, 40, 8, False, 8, True, torch.bfloat16),
    "w4-g32-asym": (9, 64, 4, False, 32, False, torch.bfloat16),
    "w4-channel": (7, 45, 4, True, -1, False, torch.bfloat16),
    "w4-channel-asym": (7, 45, 4, False, -1, False, torch.float16),
    "w8-channel-asym": (6, 33, 8, False, -1, False, torch.bfloat16),
    "w4-tensor-asym": (5, 37, 4, False, None, False, torch.bfloat16),
    "w8-tensor": (5, 37, 8, True, None, False, torch.float32),
}


def main() -> None:
    assert version("compressed-tensors") == "0.17.0"
    torch.manual_seed(0)
    tensors, settings = {}, {}
    for name, (rows, columns, bits, symmetric, size, actorder, dtype) in CASES.items():
        args = QuantizationArgs(
            num_bits=bits,
            symmetric=symmetric,
            group_size=size,
            actorder="group" if actorder else None,
        )
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        weight = (torch.randn(rows, columns) + 0.3 * torch.randn(rows, 1)).to(dtype)
        state = {"weight": weight}
        in_order = weight
        if actorder:
            g_idx = (torch.arange(columns) // size)[torch.randperm(columns)]
            state["weight_g_idx"] = g_idx.int()
            in_order = weight[:, g_idx.argsort(stable=True)]
        by_scale = in_order.reshape(
            {-1: (rows, 1, -1), None: (1, 1, -1)}.get(size, (rows, -1, size))
        )
        scale, zero_point = calculate_qparams(by_scale.amin(-1), by_scale.amax(-1), args)
        if size is None:
            scale, zero_point = scale.reshape(1), zero_point.reshape(1)
        state |= {"weight_scale": scale, "weight_zero_point": zero_point}
        stored = PackedQuantizationCompressor.compress(state, scheme)
        dense = PackedQuantizationCompressor.decompress(stored, scheme)["weight"]
        assert dense.dtype == dtype
        assert (dense - weight).abs().max() <= scale.max()
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in stored.items()}
        tensors[f"{name}.weight"] = dense.contiguous()
        settings[name] = args.model_dump(mode="json", include=set(args.model_fields_set))
    about = {name: version(name) for name in ("compressed-tensors", "torch")} | {"cases": settings}
    # One entry: safetensors writes several in any order, and the file should come out the same.
    save_file(tensors, OUT, metadata={"about": json.dumps(about)})


if __name__ == "__main__":
    main()

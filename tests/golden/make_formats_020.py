"""Writes formats_020.safetensors: one module of each kind as compressed-tensors 0.20.0 stores it.

Every case holds the stored tensors and, as `weight_dense`, the library's own dense weight, so that a
format's meaning stays what it was when people's checkpoints were made; the metadata holds the library's
version and every case's group and format. Needs nothing but the library:

    pip install torch==2.13.0 compressed-tensors==0.20.0
    python make_formats_020.py
"""

import json
from importlib.metadata import version
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

OUT = Path(__file__).with_name("formats_020.safetensors")
# name: (scheme, format or the library's own choice, rows, columns, dtype)
INTEGERS = {
    f"w{bits}-g32{'' if symmetric else '-asym'}": (
        QuantizationArgs(num_bits=bits, group_size=32, symmetric=symmetric),
        None,
        11,
        96,
        torch.bfloat16,
    )
    for bits in (2, 3, 5, 6, 7)
    for symmetric in (True, False)
}
CASES = INTEGERS | {
    # As many words as in the padded layout of older releases: the version tells which it is.
    "w3-same-width": (QuantizationArgs(num_bits=3, group_size=-1), None, 4, 13, torch.float32),
    "w7-same-width": (QuantizationArgs(num_bits=7, group_size=-1), None, 4, 5, torch.float32),
    "int8-channel": ("W8A8", None, 9, 45, torch.bfloat16),
    "int8-tensor-asym": (
        QuantizationArgs(symmetric=False, strategy="tensor"),
        "int-quantized",
        9,
        45,
        torch.float16,
    ),
    "int4-group-activations": ("W4A8", None, 5, 128, torch.bfloat16),
    "naive-int8": (QuantizationArgs(strategy="channel"), "naive-quantized", 9, 45, torch.float32),
    "naive-float8": (
        QuantizationArgs(type="float", strategy="channel"),
        "naive-quantized",
        9,
        45,
        torch.bfloat16,
    ),
    "float8-tensor": ("FP8", None, 9, 45, torch.bfloat16),
    "float8-channel": ("FP8_DYNAMIC", None, 9, 45, torch.float32),
    "float8-block": ("FP8_BLOCK", None, 130, 256, torch.bfloat16),
    "nvfp4": ("NVFP4", None, 9, 80, torch.bfloat16),
    "nvfp4-a16": ("NVFP4A16", None, 9, 80, torch.float32),
    "mxfp4": ("MXFP4", None, 9, 96, torch.bfloat16),
    "mxfp6": ("MXFP6A16", None, 9, 96, torch.bfloat16),
    "mxfp6-a8": ("MXFP6A8", None, 9, 96, torch.float32),
    "mxfp8": ("MXFP8", None, 9, 96, torch.bfloat16),
}


def parts(weight: torch.Tensor, args: QuantizationArgs) -> torch.Tensor:
    """The elements that share a scale along the last dimension."""
    rows, columns = weight.shape
    if args.strategy == "block":
        height, width = args.block_structure
        padded = torch.nn.functional.pad(weight, (0, -columns % width, 0, -rows % height))
        return (
            padded.unflatten(1, (-1, width)).unflatten(0, (-1, height)).transpose(1, 2).flatten(2)
        )
    if args.strategy in ("group", "tensor_group"):
        return weight.unflatten(1, (-1, args.group_size))
    return weight.reshape((1, 1, -1) if args.strategy == "tensor" else (rows, 1, columns))


def main() -> None:
    assert version("compressed-tensors") == "0.20.0"
    torch.manual_seed(0)
    tensors, settings = {}, {}
    for name, (given, form, rows, columns, dtype) in CASES.items():
        scheme = (
            preset_name_to_scheme(given, ["Linear"])
            if isinstance(given, str)
            else QuantizationScheme(targets=["Linear"], weights=given)
        )
        args = scheme.weights
        form = form or infer_module_format(torch.nn.Linear, scheme).value
        compressor = BaseCompressor.get_value_from_registry(form)
        weight = (torch.randn(rows, columns) + 0.3 * torch.randn(rows, 1)).to(dtype)
        whole = generate_gparam(weight.min(), weight.max()) if "nvfp4" in form else None
        by_scale = parts(weight, args)
        scale, zero_point = calculate_qparams(
            by_scale.amin(-1), by_scale.amax(-1), args, global_scale=whole
        )
        if args.strategy == "tensor":
            scale, zero_point = scale.reshape(1), zero_point.reshape(1)
        state = {"weight": weight, "weight_scale": scale, "weight_zero_point": zero_point}
        if whole is not None:
            state["weight_global_scale"] = whole
        stored = compressor.compress(state, scheme)
        dense = compressor.decompress(stored, scheme)["weight"]
        relative = (dense.float() - weight.float()).norm() / weight.float().norm()
        assert relative < {2: 0.6, 3: 0.25, 4: 0.15}.get(args.num_bits, 0.1), (name, relative)
        inputs = scheme.input_activations
        if inputs and inputs.dynamic is False:
            stored["input_scale"] = torch.tensor([0.0371], dtype=dtype)
        elif inputs and inputs.dynamic == "local":
            stored["input_global_scale"] = torch.tensor([37.25])
        tensors |= {f"{name}.{key}": value.contiguous() for key, value in stored.items()}
        tensors[f"{name}.weight_dense"] = dense.contiguous()
        settings[name] = scheme.model_dump(mode="json") | {"format": form}
    about = {name: version(name) for name in ("compressed-tensors", "torch")} | {"cases": settings}
    # One entry: safetensors writes several in any order, and the file should come out the same.
    save_file(tensors, OUT, metadata={"about": json.dumps(about)})


if __name__ == "__main__":
    main()

"""Writes modelopt_047.safetensors: a tiny Llama as nvidia-modelopt 0.47.0 quantizes and exports it.

For each algorithm: the export's own tensors (`NVFP4/model.layers.0.mlp.up_proj.weight`), of some those
of two linears alone; the library's dense weight of the two (`NVFP4/dense/….bfloat16`); and the logits
of its own fake-quantized forward in float32 where a CPU can run it. The metadata holds what it wrote
to config.json and hf_quant_config.json.

A dense weight is that of the library's dequantizer where it has one for the layout. For the packed
integers of AWQ it has none: it is the weight that its quantizers simulate, before they are exported.
The logits are of the model as the export first changes it: q, k and v, gate and up have one scale, and
their factors are in the norm before them.

    pip install torch==2.13.0 nvidia-modelopt==0.47.0 transformers==5.23.0 accelerate
    python make_modelopt_047.py
"""

import copy
import json
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

OUT = Path(__file__).with_name("modelopt_047.safetensors")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
ALGORITHMS = {
    "FP8": mtq.FP8_DEFAULT_CFG,
    "FP8_PER_CHANNEL_PER_TOKEN": mtq.FP8_PER_CHANNEL_PER_TOKEN_CFG,
    "FP8_PB_WO": mtq.FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG,
    "MXFP8": mtq.MXFP8_DEFAULT_CFG,
    "NVFP4": mtq.NVFP4_DEFAULT_CFG,
    "W4A16_NVFP4": mtq.W4A16_NVFP4_CFG,
    "W4A16_AWQ": mtq.INT4_AWQ_CFG,
    "W4A8_AWQ": mtq.W4A8_AWQ_BETA_CFG,
}
# The second one is smoothed by itself: factors of q, k and v go into the norm before them.
SHOWN = ("self_attn.v_proj", "self_attn.o_proj")
WHOLE = ("FP8", "NVFP4", "W4A16_AWQ", "W4A8_AWQ")
IDS = torch.arange(24).view(2, 12) * 7 % 32


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        vocab_size=32,
        max_position_embeddings=64,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                # Channels of unlike sizes, so that smoothing has something to do.
                sizes = torch.exp(0.7 * torch.randn(parameter.shape[1]))
                parameter.copy_(torch.randn_like(parameter) * 0.1 * sizes)
    return model


def dense(algorithm: str, stored: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """By the library's dequantizer."""
    weight, scale = stored["weight"], stored["weight_scale"]
    if "NVFP4" in algorithm:
        shape = torch.Size((weight.shape[0], 2 * weight.shape[1]))
        packed = NVFP4QTensor(shape, dtype, weight)
        return packed.dequantize(
            dtype, scale=scale, double_scale=stored["weight_scale_2"], block_sizes={-1: 16}
        )
    if algorithm == "MXFP8":
        return MXFP8QTensor(weight.shape, dtype, weight).dequantize(dtype, scale=scale)
    codes = FP8QTensor(weight.shape, dtype, weight)
    if algorithm == "FP8_PB_WO":
        rows, columns = -(-weight.shape[0] // 128), -(-weight.shape[1] // 128)
        blocks = {-1: 128, -2: 128}
        return codes.dequantize(dtype, scale=scale.reshape(rows, columns), block_sizes=blocks)
    scale = scale.unsqueeze(1) if scale.dim() else scale
    return codes.dequantize(dtype, scale=scale)


def quantized(algorithm: str, settings: dict[str, Any]) -> LlamaForCausalLM:
    def calibrate(model: LlamaForCausalLM) -> None:
        torch.manual_seed(1)
        for _ in range(4):
            model(torch.randint(0, 32, (2, 16)))

    return mtq.quantize(tiny(), copy.deepcopy(settings), calibrate)


def main() -> None:
    assert version("nvidia-modelopt") == "0.47.0"
    tensors, configs = {}, {}
    for algorithm, settings in ALGORITHMS.items():
        model = quantized(algorithm, settings)
        if algorithm not in ("NVFP4", "MXFP8"):
            requantize_resmooth_fused_llm_layers(model)
        simulated = {}
        for name in SHOWN[1:] if "AWQ" in algorithm else ():
            linear = model.get_submodule(f"model.layers.0.{name}")
            for dtype in DTYPES:
                with torch.no_grad():
                    weight = linear.weight_quantizer(linear.weight.to(dtype))
                simulated[name, dtype] = weight.detach().clone()
        if "NVFP4" not in algorithm and algorithm in WHOLE:
            # That is simulated by a CUDA extension alone.
            with torch.no_grad():
                tensors[f"{algorithm}/logits"] = copy.deepcopy(model).float()(IDS).logits
        with tempfile.TemporaryDirectory() as folder:
            export_hf_checkpoint(model, export_dir=folder)
            stored = load_file(Path(folder) / "model.safetensors")
            config = json.loads((Path(folder) / "config.json").read_text())
            beside = json.loads((Path(folder) / "hf_quant_config.json").read_text())
        configs[algorithm] = json.dumps({"config": config, "hf_quant_config": beside})
        for name, tensor in stored.items():
            if algorithm in WHOLE or any(f".{shown}." in name for shown in SHOWN):
                tensors[f"{algorithm}/{name}"] = tensor
        for name in SHOWN[1:] if "AWQ" in algorithm else SHOWN:
            prefix = f"model.layers.0.{name}."
            own = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
            for dtype in DTYPES if own["weight"].numel() <= 4096 else DTYPES[:1]:
                weight = simulated.get((name, dtype))
                if weight is None:
                    weight = dense(algorithm, own, dtype)
                assert weight.dtype == dtype
                kept = str(dtype).removeprefix("torch.")
                tensors[f"{algorithm}/dense/{prefix}{kept}"] = weight
    tensors["ids"] = IDS
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(tensors, OUT, metadata={"modelopt": "0.47.0"} | configs)


if __name__ == "__main__":
    main()

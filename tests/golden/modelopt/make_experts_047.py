"""Writes experts_047.safetensors: tiny Llama 4 and gpt-oss as nvidia-modelopt 0.47.0 exports them.

Those two are the models whose experts it stores as one. For each and each algorithm: the export's own
tensors (`gpt_oss/NVFP4/model.layers.0.mlp.experts.gate_up_proj`); the experts' dense weights by its
dequantizers, as the library's parameters lie (`gpt_oss/NVFP4/dense/….gate_up_proj`); and the weights
that it was given (`gpt_oss/given/….gate_up_proj`). The metadata holds what it wrote to config.json and
hf_quant_config.json.

    pip install torch==2.13.0 nvidia-modelopt==0.47.0 transformers==5.23.0 accelerate
    python make_experts_047.py
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
from modelopt.torch.quantization.qtensor import FP8QTensor, NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

OUT = Path(__file__).with_name("experts_047.safetensors")
ALGORITHMS = {
    "FP8": mtq.FP8_DEFAULT_CFG,
    "NVFP4": mtq.NVFP4_DEFAULT_CFG,
    "W4A16_NVFP4": mtq.W4A16_NVFP4_CFG,
}
# Inputs and outputs of each projection differ.
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "num_local_experts": 3,
}
MODELS = {
    "llama4_text": {
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 32,
        "interleave_moe_layer_step": 1,
    },
    "gpt_oss": {"num_experts_per_tok": 2},
}
PARTS = ("gate_up_proj", "down_proj")


def tiny(name: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **SHAPE, **MODELS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model.config.architectures = [type(model).__name__]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model


def dense(algorithm: str, stored: dict[str, torch.Tensor], part: str) -> torch.Tensor:
    """bfloat16 [E, I, O], each expert [O, I] by the library's dequantizer."""
    weight, scale = stored[part], stored[f"{part}_weight_scale"]
    made = []
    for expert, own in enumerate(weight):
        own = own.T.contiguous()
        if algorithm == "FP8":
            codes = FP8QTensor(own.shape, torch.bfloat16, own)
            made.append(codes.dequantize(torch.bfloat16, scale=scale))
            continue
        packed = NVFP4QTensor(torch.Size((len(own), 2 * own.shape[1])), torch.bfloat16, own)
        made.append(
            packed.dequantize(
                torch.bfloat16,
                scale=scale[expert].T.contiguous(),
                double_scale=stored[f"{part}_weight_scale_2"],
                block_sizes={-1: 16},
            )
        )
    return torch.stack(made).transpose(1, 2)


def main() -> None:
    assert version("nvidia-modelopt") == "0.47.0"
    tensors, configs = {}, {}
    for name in MODELS:
        given = tiny(name).state_dict()
        home = next(n.rpartition(".")[0] for n in given if n.endswith("experts.down_proj"))
        tensors |= {f"{name}/given/{home}.{part}": given[f"{home}.{part}"] for part in PARTS}
        for algorithm, settings in ALGORITHMS.items():
            prefix = f"{name}/{algorithm}"

            def calibrate(model: Any) -> None:
                torch.manual_seed(1)
                for _ in range(4):
                    model(torch.randint(0, 32, (2, 16)))

            model = mtq.quantize(tiny(name), copy.deepcopy(settings), calibrate)
            with tempfile.TemporaryDirectory() as folder:
                export_hf_checkpoint(model, export_dir=folder)
                stored = load_file(Path(folder) / "model.safetensors")
                config = json.loads((Path(folder) / "config.json").read_text())
                beside = json.loads((Path(folder) / "hf_quant_config.json").read_text())
            configs[prefix] = json.dumps({"config": config, "hf_quant_config": beside})
            tensors |= {f"{prefix}/{key}": tensor for key, tensor in stored.items()}
            own = {
                key.removeprefix(f"{home}."): tensor
                for key, tensor in stored.items()
                if key.startswith(f"{home}.")
            }
            for part in PARTS:
                tensors[f"{prefix}/dense/{home}.{part}"] = dense(algorithm, own, part)
    tensors = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
    save_file(tensors, OUT, metadata={"modelopt": "0.47.0"} | configs)


if __name__ == "__main__":
    main()

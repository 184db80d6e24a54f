"""A published config's model: shrunk, random, saved as the library saves it, and quantized variants."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from scoremode.demo.quantize import VARIANTS, quantize_weight

__all__ = ["library_class", "library_config", "make_model", "quantize"]

# Encoders that the library makes of its own sizes where a published config has none, or other names.
_LLAMA4_ENCODER = {
    "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
}  # fmt: skip
_KIMI_ENCODER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip

# Whether a module's weight may be quantized: linears of decoder layers, by how their names end.
_LINEARS = (
    "_proj", ".w1", ".w2", ".w3", ".up", ".down", "out_proj", "in_proj", "wq_a", "wq_b", "wkv", "wo_a", "wo_b",
)  # fmt: skip
_NOT = ("conv1d", "gate.weight", "router")


def library_config(fields: dict[str, Any]) -> Any:
    """The library's own config of a file's fields, as far as it reads them, without the file's code."""
    fields = {key: value for key, value in fields.items() if key != "auto_map"}
    model_type = fields.pop("model_type")
    if model_type == "kimi_k2":
        # As the library has it within kimi_k25.
        model_type = "deepseek_v3"
    if model_type == "step3p7" and "text_config" not in fields:
        # The library reads nothing that is not in it.
        fields = {"text_config": fields, "vision_config": {"layers": 2, "width": 16, "heads": 2}}
    if model_type == "llama4":
        fields["vision_config"] = _LLAMA4_ENCODER
    if model_type == "kimi_k25":
        fields["vision_config"] = fields["vision_config"] | _KIMI_ENCODER
    return transformers.AutoConfig.for_model(model_type, **fields)


def library_class(config: Any, architecture: str) -> Any:
    """The class that `architectures` names, or the library's own for that config."""
    named = getattr(transformers, architecture, None)
    if named is not None:
        return named
    for kind in ("CausalLM", "ImageTextToText"):
        auto_class = getattr(transformers, f"AutoModelFor{kind}")
        if type(config) in auto_class._model_mapping:
            return auto_class._model_mapping[type(config)]
    raise AssertionError(f"no class for {architecture}")


def make_model(folder: Path, fields: dict[str, Any], config: Any) -> Any:
    """The library's model of `config` with random weights that matter, saved beside `fields`."""
    torch.manual_seed(0)
    with torch.device("meta"):
        pass
    cls = library_class(config, fields["architectures"][0])
    model = cls._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
            elif "bias" in name:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0, 0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(fields))
    return model


def quantize(source: Path, folder: Path, name: str) -> Path:
    """Two checkpoints of `source`'s: quantized, and with the same values dense. Returns the second."""
    variant = next(v for v in VARIANTS if v.name == name)
    tensors = load_file(source / "model.safetensors")
    packed, dense = {}, {}
    for key, tensor in tensors.items():
        module = key.removesuffix(".weight")
        if not _is_quantized(key, tensor):
            packed[key] = dense[key] = tensor
            continue
        stored = quantize_weight(tensor, variant)
        packed |= {f"{module}.{suffix}": value for suffix, value in stored.items()}
        dense[key] = _dequantized(stored, variant.name, tensor.shape)
    config = json.loads((source / "config.json").read_text())
    said = variant.config() | {"ignore": ["lm_head", "re:.*(visual|vision|embed|router|gate$).*"]}
    assert len(packed) > len(dense), "nothing was quantized"
    for target, values, fields in (
        (folder / "quantized", packed, config | {"quantization_config": said}),
        (folder / "dense", dense, config),
    ):
        target.mkdir(parents=True)
        save_file(values, target / "model.safetensors", metadata={"format": "pt"})
        (target / "config.json").write_text(json.dumps(fields))
    return folder / "dense"

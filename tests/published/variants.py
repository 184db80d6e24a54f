"""A published config's model: shrunk, random, saved as the library saves it, and quantized variants."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from scoremode.demo.quantize import VARIANTS, Variant, quantize_weight

__all__ = ["library_class", "library_config", "make_model", "quantize"]

# Encoders that the library makes of its own sizes where a published config has none, or other names.
_LLAMA4_ENCODER = {
    "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
}  # fmt: skip
_KIMI_ENCODER = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip

# Weights that a quantizer takes: of linears in decoder layers, but routers and what isn't text's.
_LINEAR = re.compile(
    r"\.layers\.\d+\..*(_proj|_proj_with_mqa|\.w[123]|\.fc[12]|wq_[ab]|wo_[ab])\.weight$"
)
_FUSED = (".experts.gate_up_proj", ".experts.down_proj")
_NOT_LINEAR = re.compile(r"visual|vision|audio|mm_projector|conv1d|router")


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
    cls = library_class(config, fields["architectures"][0])
    model = cls._from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
            elif "bias" in name:
                parameter.normal_(0, 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0, 0.1)
    model.save_pretrained(folder)
    if fields["model_type"] == "kimi_k25":
        # The library takes the language model's layers for an encoder's blocks when it saves them.
        path = folder / "model.safetensors"
        tensors = {
            k.replace("model.blocks.", "model.layers."): v for k, v in load_file(path).items()
        }
        save_file(tensors, path, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields))
    return model


def quantize(source: Path, folder: Path, name: str, *, interleaved: bool) -> None:
    """Two checkpoints of `source`'s in `folder`: `quantized`, and `dense` with the same values.

    Experts that are stored fused are quantized one by one, as llm-compressor writes them, with gate and
    up `interleaved` or one after the other.
    """
    variant = next(v for v in VARIANTS if v.name == name)
    tensors = load_file(source / "model.safetensors")
    packed, dense = {}, {}
    for key, tensor in tensors.items():
        if key.endswith(_FUSED) and not _NOT_LINEAR.search(key):
            linears, whole = _quantize_fused(key, tensor, tensors, interleaved, variant)
            packed |= linears
            dense[key] = whole
        elif _is_quantized(key, tensor):
            module = key.removesuffix(".weight")
            stored = quantize_weight(tensor, variant)
            packed |= {f"{module}.{suffix}": value for suffix, value in stored.items()}
            dense[key] = _dequantized(stored, tensor.shape)
        else:
            packed |= _unrolled_bias(key, tensor, interleaved)
            dense[key] = tensor
    assert len(packed) > len(dense), "nothing was quantized"
    config = json.loads((source / "config.json").read_text())
    ignored = [k.removesuffix(".weight") for k in packed if k.endswith(".weight") and k in tensors]
    said = variant.config() | {"ignore": [m for m in ignored if f"{m}.weight_scale" not in packed]}
    for kind, values, fields in (
        ("quantized", packed, config | {"quantization_config": said}),
        ("dense", dense, config),
    ):
        (folder / kind).mkdir(parents=True)
        save_file(values, folder / kind / "model.safetensors", metadata={"format": "pt"})
        (folder / kind / "config.json").write_text(json.dumps(fields))


def _is_quantized(name: str, tensor: torch.Tensor) -> bool:
    """Groups are of 32 columns."""
    if not _LINEAR.search(name) or _NOT_LINEAR.search(name):
        return False
    return tensor.dim() == 2 and tensor.shape[1] % 32 == 0


def _dequantized(stored: Mapping[str, torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """float32 values of one linear's tensors: by brute force, and not by any Scheme of ours."""
    scale = stored["weight_scale"].float()
    if "weight" in stored:
        return stored["weight"].float() * scale
    # Eight codes a word, lowest bits first, with 8 as their zero.
    words = stored["weight_packed"].long() & 0xFFFFFFFF
    codes = ((words.unsqueeze(2) >> torch.arange(0, 32, 4)) & 15).flatten(1)[:, : shape[1]] - 8
    return (codes.unflatten(1, (scale.shape[1], -1)) * scale.unsqueeze(2)).flatten(1).float()


def _quantize_fused(
    key: str,
    tensor: torch.Tensor,
    tensors: Mapping[str, torch.Tensor],
    interleaved: bool,
    variant: Variant,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of each expert's linears, and the same values as they are stored fused [E, …]."""
    experts, _, name = key.rpartition(".")
    # [E, O, I] or transposed: of `gate_up_proj` the outputs are the more.
    _, rows, columns = tensors[f"{experts}.gate_up_proj"].shape
    packed, whole = {}, torch.empty_like(tensor)
    for e, weight in enumerate(tensor):
        values = []
        for part, linear in _parts(name, weight.T if rows < columns else weight, interleaved):
            stored = quantize_weight(linear.contiguous(), variant)
            packed |= {f"{experts}.{e}.{part}.{suffix}": v for suffix, v in stored.items()}
            values.append(_dequantized(stored, linear.shape))
        together = _together(values, interleaved)
        whole[e] = together.T if rows < columns else together
    return packed, whole


def _unrolled_bias(key: str, tensor: torch.Tensor, interleaved: bool) -> dict[str, torch.Tensor]:
    """A bias of all experts as one for each of their linears; anything else as it is."""
    experts, _, name = key.rpartition(".")
    if not key.endswith(tuple(f"{fused}_bias" for fused in _FUSED)):
        return {key: tensor}
    return {
        f"{experts}.{e}.{part}.bias": values.contiguous()
        for e, bias in enumerate(tensor)
        for part, values in _parts(name.removesuffix("_bias"), bias, interleaved)
    }


def _parts(name: str, values: torch.Tensor, interleaved: bool) -> list[tuple[str, torch.Tensor]]:
    """One expert's linears in a fused projection, by their outputs."""
    if name == "down_proj":
        return [(name, values)]
    gate, up = (values[0::2], values[1::2]) if interleaved else values.chunk(2)
    return [("gate_proj", gate), ("up_proj", up)]


def _together(parts: list[torch.Tensor], interleaved: bool) -> torch.Tensor:
    return torch.stack(parts, 1).flatten(0, 1) if interleaved else torch.cat(parts)

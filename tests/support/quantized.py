"""Linears quantized by compressed-tensors itself, by the name of a preset."""

import json
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.quantization import QuantizationScheme, QuantizationStatus
from compressed_tensors.quantization.lifecycle.initialize import initialize_module_for_quantization
from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.base import FactoredScheme
from scoremode.schemes.resolve import resolve

PRESETS = sorted(set(PRESET_SCHEMES) - {"UNQUANTIZED"})
ACTIVATION_PRESETS = [n for n in PRESETS if PRESET_SCHEMES[n].get("input_activations")]


class LibraryLinear:
    """A linear that compressed-tensors quantizes: its fake-quantized forward, and what it stores.

    Static input scales come from `calibration` [N, I].
    """

    def __init__(self, weight: torch.Tensor, scheme: QuantizationScheme, calibration: torch.Tensor):
        rows, columns = weight.shape
        self.scheme = scheme
        self.format = infer_module_format(torch.nn.Linear, scheme).value
        self.linear = torch.nn.Linear(columns, rows, bias=False, dtype=weight.dtype)
        self.linear.weight.data = weight.clone()
        initialize_module_for_quantization(self.linear, scheme)
        args = scheme.weights
        whole = None
        if args.strategy == "tensor_group":
            whole = generate_gparam(weight.min(), weight.max())
            self._set("weight_global_scale", whole)
        by_scale = _by_scale(weight, args)
        scale, zero = calculate_qparams(by_scale.amin(2), by_scale.amax(2), args, whole)
        self._set("weight_scale", scale.view(1) if args.strategy == "tensor" else scale)
        if not args.symmetric:
            self._set("weight_zero_point", zero.view(1) if args.strategy == "tensor" else zero)
        inputs = scheme.input_activations
        low, high = calibration.min(), calibration.max()
        if inputs is not None and inputs.dynamic is False:
            scale, zero = calculate_qparams(low, high, inputs)
            self._set("input_scale", scale)
            if not inputs.symmetric:
                self._set("input_zero_point", zero)
        if inputs is not None and inputs.strategy == "tensor_group":
            self._set("input_global_scale", generate_gparam(low, high))
        self.linear.quantization_status = QuantizationStatus.FROZEN

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, O] of `x` [N, I]. As one batch: of two dimensions the library takes a scale a tensor
        where it means one a token."""
        return self.linear(x[None])[0]

    def stored(self) -> dict[str, torch.Tensor]:
        """Tensors by suffix as the library compresses the module."""
        compressor = BaseCompressor.get_value_from_registry(self.format)
        state = {name: p.data for name, p in self.linear.named_parameters()}
        compressed = compressor.compress(state, self.scheme)
        return {name: tensor.data.contiguous() for name, tensor in compressed.items()}

    def decompressed(self) -> torch.Tensor:
        """The dense weight that the library makes of what it stores."""
        compressor = BaseCompressor.get_value_from_registry(self.format)
        return compressor.decompress(self.stored(), self.scheme)["weight"]

    def config(self) -> dict[str, Any]:
        """The `quantization_config` of a checkpoint with such linears."""
        return _config(self.scheme, self.format)

    def resolved(self, folder: Path) -> tuple[FactoredScheme, dict[str, torch.Tensor]]:
        """Our Scheme of it, and its tensors, through a checkpoint in `folder`."""
        stored = self.stored()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"quantization_config": self.config()}))
        save_file({f"m.{k}": v for k, v in stored.items()}, folder / "model.safetensors")
        return resolve(open_checkpoint(str(folder))).quantized["m"], stored

    def _set(self, name: str, value: torch.Tensor) -> None:
        self.linear.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))


def config_of(name: str) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint whose linears have a preset's format."""
    scheme = preset(name)
    return _config(scheme, infer_module_format(torch.nn.Linear, scheme).value)


def _config(scheme: QuantizationScheme, form: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": scheme.model_dump(mode="json") | {"format": form}},
        "version": "0.20.0",
    }


def preset(name: str) -> QuantizationScheme:
    return preset_name_to_scheme(name, ["Linear"])


def _by_scale(weight: torch.Tensor, args: Any) -> torch.Tensor:
    """[…, …, values that share a scale]."""
    if args.strategy in ("group", "tensor_group"):
        return weight.unflatten(1, (-1, args.group_size))
    if args.strategy == "channel":
        return weight.unsqueeze(1)
    if args.strategy == "tensor":
        return weight.reshape(1, 1, -1)
    high, wide = args.block_structure
    padded = torch.nn.functional.pad(
        weight, (0, -weight.shape[1] % wide, 0, -weight.shape[0] % high)
    )
    return padded.unflatten(1, (-1, wide)).unflatten(0, (-1, high)).permute(0, 2, 1, 3).flatten(2)

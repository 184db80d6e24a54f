"""Quantization of activations: what a config declares, what the chosen kernels do.

A release's kernels for a device without the wanted instructions may take the weights alone (Marlin for
NVFP4 before Blackwell), or quantize activations that nobody declared (vLLM's CPU kernel for 4-bit
weights on a CPU with AMX). Either way the result is that of another model, so it has to be said. What
vLLM's classes do is told by their names and fields; read in 0.24 and 0.32.
"""

from collections.abc import Mapping
from typing import Any

# Kernels that leave activations alone under schemes that would quantize them.
_WEIGHT_ONLY = (
    "Marlin",
    "MARLIN",
    "WeightOnly",
    "CPUFp8BlockScaledMMKernel",
    "CPUFp8PerTensorScaledMMLinearKernel",
    "EmulationMxfp8LinearKernel",
    "HummingFP8ScaledMM",
    "_BF16",
)
# Schemes and methods by what their names say of activations.
_QUANTIZING = ("A8", "A4", "Fp8Linear", "FBGEMMFp8", "NvFp4", "Fp8MoE", "Mxfp8", "MxFp8", "Int8")
_PLAIN = ("A16", "WNA16", "AWQ", "GPTQ", "BitsAndBytes", "GGUF")


def layer_activations(
    scheme: str, kernel: str | None, *, act_bits: int | None = None, is_w4a8: bool = False
) -> str | None:
    """Returns what one layer does with its input: "quantized", "not quantized", "unknown", or None for
    a layer that is not quantized at all.

    - `scheme`, `kernel`: class names.
    - `act_bits`: of the activation type the kernel was configured for, where it says.
    - `is_w4a8`: the layer was packed for 8-bit activations, whatever its scheme says.
    """
    if scheme.startswith("Unquantized"):
        return None
    if is_w4a8 or act_bits == 8:
        return "quantized"
    # Rounds its activations itself, before a kernel for 16-bit ones.
    if "O8" in scheme or "WNA8" in scheme or "WNA4" in scheme:
        return "quantized"
    if any(word in (kernel or "") for word in _WEIGHT_ONLY):
        return "not quantized"
    if act_bits is not None or any(word in scheme for word in _PLAIN):
        return "not quantized"
    return "quantized" if any(word in scheme for word in _QUANTIZING) else "unknown"


def ran(counts: Mapping[str, int]) -> str | None:
    """Sums up layers by `layer_activations`: "quantized", "not quantized", "mixed", "not known"; None
    where no layer is quantized."""
    seen = {kind for kind, count in counts.items() if count}
    if not seen:
        return None
    if "unknown" in seen:
        return "not known"
    return seen.pop() if len(seen) == 1 else "mixed"


def declared_activations(config: Mapping[str, Any]) -> str | None:
    """Says what a `quantization_config` declares, in its own words; None where it declares nothing."""
    groups = config.get("config_groups")
    if isinstance(groups, Mapping):
        chosen = [g for g in groups.values() if isinstance(g, Mapping)]
        formats = [g.get(k) for g in chosen for k in ("input_activations", "output_activations")]
        words = sorted({f"{f.get('type', '')}{f.get('num_bits', '')}" for f in formats if f})
        return ", ".join(words) or None
    method = str(config.get("quant_method") or "")
    if scheme := config.get("activation_scheme"):
        return f"{method} {scheme}"
    if method == "fbgemm_fp8":
        return "float8"
    whole = config.get("global_quant_config")
    if isinstance(whole, Mapping) and isinstance(inputs := whole.get("input_tensors"), Mapping):
        return str(inputs.get("dtype") or "quantized")
    nested = config.get("quantization")
    algorithm = config.get("quant_algo") or (
        nested.get("quant_algo") if isinstance(nested, Mapping) else None
    )
    if algorithm and "A16" not in str(algorithm) and "WEIGHT_ONLY" not in str(algorithm):
        return str(algorithm)
    return None

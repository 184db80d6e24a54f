"""Weights in compressed-tensors' formats.

pack-quantized: integers of 2 to 8 bits in int32 words, with scales and optional zero points.

Layout (compressed-tensors, `pack_to_int32`): values are stored plus 2^(bits-1) to be unsigned, and fill
a row's words from the lowest bits. Zero points are packed the same way along the output dimension,
except one per tensor, which is stored plain. Up to release 0.17 a word holds `32 // bits` values and
its top bits are padding; since 0.18 values run on over words. For 3, 5, 6 and 7 bits that differs, and
the width of what is stored tells which it is; where both widths coincide, the config's `version` does.

int-quantized, float-quantized and naive-quantized: one int8 or float8 an element, with scales.

- Integers of 2 to 8 bits, one in each int8. compressed-tensors stores them where inputs are quantized
  too (W8A8, W4A8, W4AFP8), and older releases for any integer weights. Zero points are int8 of the
  scales' shape, not packed.
- Floats of 8 bits (e4m3) with scales a tensor, a row, a group or a block.
- naive-quantized is what the library falls back to: either of them, by the type of the weights.

nvfp4-pack-quantized: e2m1 pairs in bytes under float8 scales of 16, under one global scale.

The first element of a pair is in the low nibble. The stored global scale divides: a weight is
e2m1 · (scale / global), the quotient and the product in float32, rounded to bfloat16 once, as
compressed-tensors decompresses it. An element times its float8 scale has at most 6 significant bits, so
it is exact in bfloat16, and the global scale is left for the product's epilogue.
Source: compressed-tensors' NVFP4PackedCompressor.

mxfp4-pack-quantized, mxfp6-pack-quantized, mxfp8-quantized: small floats under powers of two.

OCP Microscaling: groups of 32 elements, e2m1, e2m3 or e4m3, share a scale 2^(code - 127), one byte
(E8M0). Elements and scales are exact in bfloat16 and so is their product, but for the smallest of its
subnormals, where it is rounded to bfloat16 as compressed-tensors rounds it. Two e2m1 share a byte, the
first in the low nibble; four e2m3 share three bytes, the first in the lowest bits.
Source: compressed-tensors' MXFP4PackedCompressor, MXFP6PackedCompressor, MXFP8QuantizationCompressor;
OCP Microscaling Formats 1.0.
"""

from typing import Any

import torch

from scoremode.schemes.activations.inputs import Inputs
from scoremode.schemes.decoding.codes import Codes, Scaling
from scoremode.schemes.decoding.unpack import FLOATS, SIGNED_BYTES, Elements
from scoremode.schemes.packed import Packed


def pack_quantized(
    scaling: Scaling,
    bits: int,
    has_zero_point: bool = False,
    has_g_idx: bool = False,
    dense: bool = True,
    *,
    inputs: Inputs | None = None,
) -> Packed:
    """Integers of `bits`, symmetric or not.

    - `dense`: whether values run on over words.
    - `has_g_idx`: whether columns were quantized in order of their activations, so that
      `weight_g_idx[i]` is the group of input `i`.
    """
    limit = (1 << bits) - 1 if has_zero_point else 1 << (bits - 1)
    if has_zero_point and scaling.strategy == "tensor":
        # That zero point is not packed and may be any int8.
        limit = 255
    return Packed(
        scaling=scaling,
        elements=Elements(bits, layout="dense" if dense else "padded"),
        label=integers_label(bits, inputs, scaling, has_zero_point) + " g_idx" * has_g_idx,
        codes=Codes("int", limit, scaling.columns_of_one),
        inputs=inputs,
        weight="weight_packed",
        zero_point="weight_zero_point" if has_zero_point else None,
        g_idx="weight_g_idx" if has_g_idx else None,
    )


def integers_label(
    bits: int, inputs: Inputs | None, scaling: Scaling, asymmetric: bool = False
) -> str:
    """Such as `W4A16 g128`, `W8AFP8 channel`, `W4A8 tensor asym g128`."""
    by = "A16"
    if inputs is not None:
        f = inputs.format
        usual = "" if f.strategy == "token" else f.strategy
        how = {False: "static", "local": "local"}.get(f.dynamic, usual)
        words = (f"A{'FP' if f.type == 'float' else ''}{f.bits}", how, "asym" * (not f.symmetric))
        by = " ".join(filter(None, words))
    return f"W{bits}{by} {scaling.label}{' asym' if asymmetric else ''}"


def int_quantized(
    scaling: Scaling,
    bits: int,
    has_zero_point: bool = False,
    *,
    inputs: Inputs | None = None,
    **others: Any,
) -> Packed:
    """Integers of `bits` in int8, symmetric or not."""
    return Packed(
        scaling=scaling,
        elements=SIGNED_BYTES,
        label=integers_label(bits, inputs, scaling, has_zero_point),
        # The range of int8, less a zero point of int8: a value of more than `bits` is decoded as well.
        codes=Codes("int", 255 if has_zero_point else 128, scaling.columns_of_one),
        inputs=inputs,
        zero_point="weight_zero_point" if has_zero_point else None,
        **others,
    )


_FLOAT8_PRESETS = {
    ("tensor", "float8 tensor static"): "FP8",
    ("channel", "float8 token"): "FP8_DYNAMIC",
    ("block", "float8 group 128"): "FP8_BLOCK",
}


def float_quantized(scaling: Scaling, *, inputs: Inputs | None = None, **others: Any) -> Packed:
    """Weights of one float8 an element."""
    if inputs is None:
        label = f"FP8 W8A16 {scaling.label}"
    else:
        usual = f"FP8 {scaling.label}, inputs {inputs.label}"
        label = _FLOAT8_PRESETS.get((scaling.strategy, inputs.label), usual)
    rows = scaling.block[0] if scaling.block else 1
    settings: dict[str, Any] = {
        "label": label,
        "codes": Codes("float8", None, scaling.columns_of_one, rows),
    }
    return Packed(scaling=scaling, elements=FLOATS[8], inputs=inputs, **settings | others)


def nvfp4(scaling: Scaling, *, inputs: Inputs | None = None, **others: Any) -> Packed:
    """Groups of e2m1 under a local and a global scale."""
    label = "NVFP4A16"
    if inputs is not None:
        own = inputs.format.strategy == "tensor_group"
        label = "NVFP4" if own else f"NVFP4, inputs {inputs.label}"
    settings: dict[str, Any] = {
        "label": label,
        "weight": "weight_packed",
        "whole": "weight_global_scale",
        "rounded": torch.bfloat16,
    }
    elements, codes = FLOATS[4], Codes("float")
    return Packed(
        scaling=scaling, elements=elements, codes=codes, inputs=inputs, **settings | others
    )


def mx(scaling: Scaling, bits: int, *, inputs: Inputs | None = None, **others: Any) -> Packed:
    """Elements of 4, 6 or 8 bits in groups of 32."""
    label = f"MXFP{bits}"
    if inputs is None:
        label += "A16"
    elif inputs.format.is_mx:
        label += "" if inputs.format.bits == bits else f"A{inputs.format.bits}"
    elif inputs.label == "float8 group 128":
        label += "xFP8"
    else:
        label += f", inputs {inputs.label}"
    settings: dict[str, Any] = {
        "label": label,
        "weight": "weight" if bits == 8 else "weight_packed",
    }
    elements, codes = FLOATS[bits], Codes("float")
    return Packed(
        scaling=scaling, elements=elements, codes=codes, inputs=inputs, **settings | others
    )

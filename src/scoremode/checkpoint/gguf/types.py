"""The types of ggml's tensors: ids, and how many values a block of how many bytes holds.

https://github.com/ggml-org/ggml/blob/master/include/ggml.h (`enum ggml_type`); sizes are those of the
structs in its src/ggml-common.h.
"""

from typing import NamedTuple

__all__ = ["FLOATS", "TYPES", "TYPES_BY_ID", "UNREAD", "GgmlType"]


class GgmlType(NamedTuple):
    """A type; of one that has no blocks `values` is 1."""

    name: str
    id: int
    values: int
    bytes: int

    @property
    def is_packed(self) -> bool:
        return self.values > 1


_ALL = (
    *(("F32", 0, 1, 4), ("F16", 1, 1, 2), ("BF16", 30, 1, 2), ("F64", 28, 1, 8)),
    *(("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8)),
    *(("Q4_0", 2, 32, 18), ("Q4_1", 3, 32, 20), ("Q5_0", 6, 32, 22), ("Q5_1", 7, 32, 24)),
    *(("Q8_0", 8, 32, 34), ("Q2_K", 10, 256, 84), ("Q3_K", 11, 256, 110), ("Q4_K", 12, 256, 144)),
    *(("Q5_K", 13, 256, 176), ("Q6_K", 14, 256, 210)),
    *(("IQ1_S", 19, 256, 50), ("IQ1_M", 29, 256, 56), ("IQ2_XXS", 16, 256, 66)),
    *(("IQ2_XS", 17, 256, 74), ("IQ2_S", 22, 256, 82), ("IQ3_XXS", 18, 256, 98)),
    *(("IQ3_S", 21, 256, 110), ("IQ4_NL", 20, 32, 18), ("IQ4_XS", 23, 256, 136)),
    *(("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66), ("Q1_0", 41, 128, 18)),
    *(("MXFP4", 39, 32, 17), ("NVFP4", 40, 64, 36)),
)
TYPES = {name: GgmlType(name, *numbers) for name, *numbers in _ALL}
TYPES_BY_ID = {kind.id: kind for kind in TYPES.values()}
# As safetensors spells them, too.
FLOATS = {"F32", "F16", "BF16"}
# Names of ids that no file is read with: gone from llama.cpp, of activations alone, or newer than the
# gguf package that decoders are held to.
UNREAD = {
    **{9: "Q8_1", 15: "Q8_K"},
    **{4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"},
    **{36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 42: "Q2_0"},
}

"""Makes rows.npz: what llama.cpp's CPU build makes of rows of inputs, and its own dot products.

    python tools/llama_cpp.py FOLDER
    python make_rows.py FOLDER/build/bin

Its functions are called by ctypes, on an x86 CPU with AVX2 at least.

- `x` float32 [7, 512]: of many magnitudes; half zeros; so small that scales are subnormal; so large;
  the largest magnitude with both signs; with halves between two codes.
- `Q8_0`, `Q8_1`, `Q8_K` uint8 [7, bytes]: `x` in that tool's blocks.
- `weight.TYPE` uint8 [8, bytes]: a random weight [8, 512] in each type's blocks, quantized by that
  tool; `dots.TYPE` float32 [7, 8]: its `ggml_vec_dot_…` of them with `x` in the blocks that the type
  meets.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

# The blocks that each type's inputs are put in.
MEETS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "MXFP4", "NVFP4"), "q8_0"),
    **dict.fromkeys(("Q4_1", "Q5_1"), "q8_1"),
    **dict.fromkeys(("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0"), "q8_K"),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"), "q8_K"),
    **dict.fromkeys(("IQ3_XXS", "IQ3_S", "IQ4_XS"), "q8_K"),
}
INPUTS = {"q8_0": (32, 34), "q8_1": (32, 36), "q8_K": (256, 292)}
COLUMNS, OUTPUTS = 512, 8


def main() -> None:
    libraries = Path(sys.argv[1])
    base = ctypes.CDLL(str(libraries / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    cpu = ctypes.CDLL(str(libraries / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    cpu.ggml_cpu_init()
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, *[ctypes.c_int64] * 3,
                                         pointer]  # fmt: skip
    random = np.random.default_rng(0)
    x = random.standard_normal((7, COLUMNS)) * np.exp(2 * random.standard_normal((7, COLUMNS)))
    x[1, : COLUMNS // 2] = 0
    x[2] *= 1e-7
    x[3] *= 10
    x[4, ::37] = np.where(np.arange(0, COLUMNS, 37) % 2, 99, -99)
    x[5] = np.round(x[5].clip(-60, 60)) + 0.5
    x[5, ::32] = 127
    x = x.astype(np.float32)
    weight = (random.standard_normal((OUTPUTS, COLUMNS)) / 20).astype(np.float32)
    importance = np.ones(COLUMNS, np.float32)
    found = {"x": x}
    for name, (values, width) in INPUTS.items():
        out = np.zeros((len(x), COLUMNS // values * width), np.uint8)
        quantize = getattr(cpu, f"quantize_row_{name}")
        quantize.argtypes, quantize.restype = [pointer, pointer, ctypes.c_int64], None
        for row, into in zip(x, out, strict=True):
            quantize(row.ctypes.data, into.ctypes.data, COLUMNS)
        found[name.replace("q", "Q", 1)] = out
    for name, meets in MEETS.items():
        kind = GGMLQuantizationType[name]
        values, width = GGML_QUANT_SIZES[kind]
        packed = np.zeros((OUTPUTS, COLUMNS // values * width), np.uint8)
        base.ggml_quantize_chunk(
            int(kind), weight.ctypes.data, packed.ctypes.data, 0, OUTPUTS, COLUMNS,
            importance.ctypes.data,
        )  # fmt: skip
        # q4_K, but iq4_xs.
        lower = name[:-1].lower() + "K" if name.endswith("_K") else name.lower()
        dot = getattr(cpu, f"ggml_vec_dot_{lower}_{meets}")
        dot.argtypes = [ctypes.c_int, pointer, size, pointer, size, pointer, size, ctypes.c_int]
        dot.restype = None
        dots = np.zeros((len(x), OUTPUTS), np.float32)
        inputs = found[meets.replace("q", "Q", 1)]
        for i, row in enumerate(inputs):
            for o, blocks in enumerate(packed):
                place = dots[i, o:].ctypes.data
                dot(COLUMNS, place, 0, blocks.ctypes.data, 0, row.ctypes.data, 0, 1)
        found[f"weight.{name}"], found[f"dots.{name}"] = packed, dots
    np.savez_compressed(Path(__file__).with_name("rows.npz"), **found)


if __name__ == "__main__":
    main()

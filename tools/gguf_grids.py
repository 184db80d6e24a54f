"""Prints the codebooks of ggml's I-quants as `schemes/gguf_i_quants.py` has them, by the gguf package.

python tools/gguf_grids.py
"""

import base64
import zlib

import numpy as np
from gguf import quants

# IQ1_M has IQ1_S's.
TYPES = ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
WIDTH = 88


def main() -> None:
    for name in TYPES:
        kind = getattr(quants, name)
        kind.init_grid()
        levels = np.array(kind.grid_map)
        digits = np.searchsorted(levels, kind.grid.reshape(kind.grid_shape))
        base, dimensions = len(levels), digits.shape[1]
        numbers = digits @ base ** np.arange(dimensions)
        # So their order need not be stored.
        assert (np.diff(numbers) > 0).all(), name
        present = np.zeros(base**dimensions, bool)
        present[numbers] = True
        bits = np.packbits(present, bitorder="little").tobytes()
        text = base64.b64encode(zlib.compress(bits, 9)).decode()
        print(f'    "{name}": (')
        for begin in range(0, len(text), WIDTH):
            print(f'        "{text[begin : begin + WIDTH]}"')
        print("    ),")


if __name__ == "__main__":
    main()

"""Makes nodes.npz: what llama.cpp's CPU build computes inside models of one layer, type by type.

    python tools/llama_cpp.py FOLDER
    python make_nodes.py FOLDER

The models are those of tests/support/gguf/one_layer.py, of random bits. `nodes.cpp`, compiled here with
g++ against that folder's libraries, writes the graph's nodes; of each the last token's row is kept,
float32: `TYPE.NODE`, with llama.cpp's names, and `TYPE.sha256` of the file's bytes.
"""

import hashlib
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from support.gguf.one_layer import KINDS, TOKENS, one_layer, token_ids  # noqa: E402
from support.llama_cpp.nodes import compiled, read_nodes, run_nodes  # noqa: E402

NODES = (
    "kqv_out", "attn_out", "ffn_norm", "ffn_gate", "ffn_up", "ffn_swiglu", "ffn_out", "result_norm",
    "result_output",
)  # fmt: skip


def main() -> None:
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = compiled(Path(sys.argv[1]), folder)
        for kind in KINDS:
            model = folder / f"{kind}.gguf"
            model.write_bytes(one_layer(kind))
            sha256 = hashlib.sha256(model.read_bytes()).digest()
            found[f"{kind}.sha256"] = np.frombuffer(sha256, np.uint8)
            pattern = "|".join(f"{node}(-0)?" for node in NODES)
            out = run_nodes(program, model, token_ids().reshape(1, TOKENS), pattern, folder)
            for node, values in read_nodes(out):
                key = f"{kind}.{node.removesuffix('-0')}"
                found[key] = values.reshape(-1, values.shape[-1])[-1]
    np.savez_compressed(HERE / "nodes.npz", allow_pickle=False, **found)
    print((HERE / "nodes.npz").stat().st_size, "bytes")


if __name__ == "__main__":
    main()

"""llama.cpp files: the tool's own, and small ones."""

from pathlib import Path

import numpy as np

from scoremode.reference.llama_cpp_writer import LogitsFileWriter

GOLDEN = Path(__file__).parent / "golden" / "llama_cpp" / "base.kld"
CONTEXT, TEXT_BYTES = 64, 1500  # golden/make_llama_cpp.py


def small(path: Path, chunks=2, n_ctx=9, entries=5, nats=16) -> tuple[np.ndarray, np.ndarray]:
    """Writes a file; its tokens and logits."""
    rng = np.random.default_rng(chunks * n_ctx)
    tokens = rng.integers(entries, size=chunks * n_ctx, dtype=np.int32)
    rows = chunks * (n_ctx - 1 - n_ctx // 2)
    logits = rng.normal(0, 8, (rows, entries)).astype(np.float32)
    with LogitsFileWriter(path, n_ctx, entries, tokens, nats) as writer:
        for part in np.array_split(logits, 3):
            writer.write(part)
    return tokens, logits

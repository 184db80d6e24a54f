"""A kept reference as a llama.cpp file: its logits made again, some rows at a time, and encoded."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from scoremode.errors import ProtocolError
from scoremode.head.project import Logits, tile_of, tiles
from scoremode.head.rows import RowSums
from scoremode.llama_cpp.rows import Nats
from scoremode.llama_cpp.writer import LogitsFileWriter
from scoremode.reference.replay import compare_base
from scoremode.reference.stored import StoredReference
from scoremode.results.scores import expected
from scoremode.text.protocol import Protocol

__all__ = ["check_exportable", "export_llama_cpp"]

# float32 logits that exist at a time, over the whole vocabulary: 128 MiB.
_BLOCK = 1 << 25


def check_exportable(protocol: Protocol) -> None:
    """Raises ProtocolError unless a `_logits_` file can hold what `protocol` scores."""
    is_chunks = protocol.stride in (None, protocol.context_length) and protocol.tail == "drop"
    if (protocol.scored, protocol.bos_at, is_chunks) != ("second-half", "windows", True):
        raise ProtocolError(
            f"protocol {protocol.name}: a llama.cpp file holds what protocol llama.cpp scores, the "
            "second halves of windows side by side"
        )


def export_llama_cpp(
    reference: StoredReference,
    path: Path,
    *,
    nats: Nats = 16,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> None:
    """Writes `reference` to `path`, whole or not at all, as llama-perplexity reads it.

    - `nats`: how far below a row's largest entry it reaches.
    - `progress`: called with the rows done since the last call, and how many there are in all.

    All of the reference is read and compared with its hashes, and every row's log-probability of its
    target with the stored one. Raises ProtocolError, ReferenceUnusable.
    """
    plan = reference.plan()
    check_exportable(plan.protocol)
    reference.check_files()
    n_ctx, entries = plan.protocol.context_length, reference.vocabulary
    assert n_ctx is not None
    most, width = tile_of(device)
    rows = min(most, max(1, _BLOCK // entries))
    targets = expected(plan, range(len(plan)))["target"].astype(np.int64)
    tokens = plan.tokens[: len(plan) * n_ctx]
    with LogitsFileWriter(path, n_ctx, entries, tokens, nats) as writer:
        for begin in range(0, plan.scored, rows):
            end = min(begin + rows, plan.scored)
            logits = reference.logits([(begin, end)], device, (rows, width))
            z = _whole(logits, end - begin, entries, (rows, width), device)
            sums = RowSums(end - begin, device)
            sums.absorb(slice(None), z, torch.from_numpy(targets[begin:end]).to(device), 0)
            compare_base(reference, begin, sums.finish().logprob.cpu().numpy(), "float32")
            writer.write(z.cpu().numpy())
            progress(end - begin, plan.scored)


def _whole(
    logits: Logits, rows: int, entries: int, tile: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """float32 [rows, entries]."""
    z = torch.empty((rows, entries), dtype=torch.float32, device=device)
    for begin, blocks in tiles(rows, entries, tile, logits):
        for block in blocks:
            z[block, begin : begin + tile[1]] = logits(block)
    return z

"""llama.cpp files: the tool's own, and small ones; and its printed blocks against ours."""

import re
from pathlib import Path

import numpy as np

from scoremode.llama_cpp.export import LogitsFileWriter
from scoremode.llama_cpp.file import LogitsFile
from scoremode.llama_cpp.reference import KLD_CUT
from scoremode.llama_cpp.rows import codes_of, spans

GOLDEN = Path(__file__).parents[2] / "golden" / "llama_cpp" / "base.kld"
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


def decode(rows: np.ndarray, begin: int, end: int) -> np.ndarray:
    """float32 [R, end - begin]: log-probabilities of entries of `rows`, as llama.cpp decodes them."""
    scale, low = spans(rows)
    return scale[:, None] * codes_of(rows, begin, end).astype(np.float32) + low[:, None]


def logprobs(
    file: LogitsFile, begin_row: int, end_row: int, begin_entry: int, end_entry: int
) -> np.ndarray:
    """float32 [R, E]: the log-probabilities of a tile of `file`, as llama.cpp decodes them."""
    codes, scale, low = file.codes(begin_row, end_row, begin_entry, end_entry)
    return scale[:, None] * codes.astype(np.float32) + low[:, None]


def kld_llama_cpp(base_logprob: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """float64 [R]: llama-perplexity's KLD (`sums.py` has its formula) of whole rows, float32 [R, V]
    each: the base's log-probabilities, decoded, and the model's logits."""
    lp, z = base_logprob.astype(np.float64), logits.astype(np.float64)
    high = z.max(1, keepdims=True)
    log_sum = high + np.log(np.exp(z - high).sum(1, keepdims=True))
    terms = np.exp(lp) * (lp - z + log_sum)
    return np.where(lp > KLD_CUT, terms, 0.0).sum(1)


def compare_blocks(ours: str, printed: str, *, is_itself: bool = False) -> None:
    """Our block against the tool's output, for two forwards in float32 of the same weights.

    Perplexities are held to 1e-6 of themselves, printed KLDs to 3 units of their last digit, shares in
    percent to 1. `is_itself`: both are of the file's own model, whose ± is of roundings alone.
    """
    title, ppl_line, *_ = ours.splitlines()
    printed = printed[printed.index(title) :].rstrip("\n")
    ppl = float(ppl_line.split()[3])
    number = re.compile(r"-?\d+\.\d+|nan")
    # But for the digits, and the room that they take, they are one text.
    shape = re.compile(rf" *({number.pattern})")
    assert shape.sub("#", ours.rstrip("\n")) == shape.sub("#", printed)
    for line, theirs in zip(ours.splitlines(), printed.splitlines(), strict=True):
        allowed = _tolerance(line, ppl, is_itself=is_itself)
        pairs = zip(number.findall(line), number.findall(theirs), strict=True)
        for place, (a, b) in enumerate(pairs):
            # A square root of about 0, or of less: another CPU rounds it to something else.
            if (is_itself and "(Q)" in line and "(base)" in line and place == 1) or "nan" in (a, b):
                assert is_itself and "±" in line
                scale = ppl if "-PPL(base)" in line else 1
                assert max(float(x) for x in (a, b) if x != "nan") < 1e-4 * scale
            else:
                assert abs(float(a) - float(b)) <= allowed, (line, theirs)


def _tolerance(line: str, ppl: float, *, is_itself: bool) -> float:
    if line.startswith("Cor"):
        return 0.011
    if "KLD" in line:
        return 3.01e-6
    if "PPL" in line:
        relative = 5e-6 if is_itself else 1e-6
        return max(2.01e-6, relative * (1 if "/" in line else ppl))
    return 1.01e-3

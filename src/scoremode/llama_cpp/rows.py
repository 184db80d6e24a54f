"""A row of llama.cpp's `_logits_` file: how it is encoded, decoded, and set against a model's logits.

Log-probabilities are kept as 16-bit steps between a row's largest and its smallest; what lies further
than a number of nats below the largest is cut to that border. llama.cpp cuts at 16 nats, ik_llama.cpp
at 24; a row carries its own scale, so decoding needs to know neither.

    row    = f32 scale | f32 min_lp | u16 code for every entry, and one of 0 if they are odd in number
    decode : lp = scale · code + min_lp

Read from llama.cpp 0c1e57098 and ik_llama.cpp 3cea15190, both tools/perplexity. All arithmetic is
float32 but for the sum of exponentials, and repeated here to the bit. A compiler that fuses multiply
and add (none does for baseline x86-64; on Arm they do) may decode to another last bit than this.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Nats = Literal[16, 24]

_HEADER = 4  # u16 words: two float32
_LARGEST = np.float32(65535)
# float64 entries at a time: 32 MiB.
_BLOCK = 1 << 22


def row_words(entries: int) -> int:
    """u16 words of a row of so many entries."""
    return _HEADER + entries + entries % 2


def encode(logits: NDArray[np.float32], nats: Nats = 16) -> NDArray[np.uint16]:
    """Logits or log-probabilities [R, V] → rows, uint16 [R, row_words(V)].

    -inf is cut like everything far below the largest. Each row's largest must be finite, and none NaN.
    """
    rows, entries = logits.shape
    out = np.zeros((rows, row_words(entries)), "<u2")
    step = max(1, _BLOCK // entries)
    for begin in range(0, rows, step):
        _encode(logits[begin : begin + step], out[begin : begin + step], nats)
    return out


def _encode(z: NDArray[np.float32], out: NDArray[np.uint16], nats: Nats) -> None:
    high = z.max(1, keepdims=True)
    low = np.maximum(z.min(1, keepdims=True), high - np.float32(nats))
    # expf of a C library is all but always the rounded float64 one, which numpy's float32 isn't.
    powers = np.exp((z - high).astype(np.float64)).astype(np.float32)
    log_sum = np.log(powers.sum(1, keepdims=True, dtype=np.float64)).astype(np.float32)
    scale = (high - low) / _LARGEST
    header = out[:, :_HEADER].view("<f4")
    header[:, :1] = scale
    header[:, 1:] = (low - high) - log_sum
    # A row of equal entries has no steps: all codes stay 0.
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = inverse * (np.maximum(z, low) - low)
    # To the nearest, a half to the even one.
    out[:, _HEADER : _HEADER + z.shape[1]] = np.rint(steps)


def spans(rows: NDArray[np.uint16]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The scale and the smallest log-probability of `rows` [R, at least 4], float32 [R] each."""
    header = np.ascontiguousarray(rows[:, :_HEADER]).view("<f4").astype(np.float32)
    return header[:, 0], header[:, 1]


def codes_of(rows: NDArray[np.uint16], begin: int, end: int) -> NDArray[np.uint16]:
    """The codes [R, end - begin] of entries `begin … end` of `rows`, as a view."""
    return rows[:, _HEADER + begin : _HEADER + end]


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums that probabilities of rows add up to, and what they may; float64 [R] each.

    - `total`: the sum of a row's probabilities, as they are stored.
    - `least`, `most`: the smallest and the largest sum that the encoding of a distribution can have.
    - `has_ends`: bool [R], whether a row's largest and smallest code are those that every encoding has.
    """

    total: NDArray[np.float64]
    least: NDArray[np.float64]
    most: NDArray[np.float64]
    has_ends: NDArray[np.bool_]


def sums(rows: NDArray[np.uint16], entries: int) -> Sums:
    """Sums of `rows`, uint16 [R, row_words(entries)], whose scales and minimums are sound.

    The encoder computes in float32:

        scale = (high - low) / 65535    min_lp = (low - high) - log Σ exp(z - high)
        code = round((z - low) / scale)

    So the largest entry has code 65535 and is exact, any other is off by at most half a step h =
    scale / 2, and one that was cut, whose code is 0, may have been anywhere below. Since the
    distribution adds up to 1, and q are the stored probabilities, high's among them:

        1 ≤ q_high + e^h Σ_others q        1 ≥ q_high + e^-h Σ_others that are not cut q

    but for roundings of float32, six of relative size 2⁻²⁴ on the row's width W = 65535 · scale, two on
    min_lp, at most W + log V, and two on the sum of V exponentials: less than 2⁻²¹ (W + log V + 1). A
    row narrower than the 16 nats at which llama.cpp cuts has no entry that was cut.
    """
    scale, low = (each.astype(np.float64) for each in spans(rows))
    codes = codes_of(rows, 0, entries)
    width, half = float(_LARGEST) * scale, scale / 2
    room = 2.0**-21 * (width + np.log(entries) + 1)
    # What a damaged header makes infinite is not within any bounds.
    with np.errstate(over="ignore", invalid="ignore"):
        others = _others(codes, scale)
        cut = np.where(width < 16 - 1e-3, 0, (codes == 0).sum(1)) * np.exp(-width)
        return Sums(
            np.exp(width + low) * (1 + others),
            np.exp(-room) * (1 + others) / (1 + others * np.exp(half)),
            np.exp(room) * (1 + others) / (1 + np.maximum(others - cut, 0) * np.exp(-half)),
            (codes.max(1) == np.where(scale > 0, 65535, 0)) & (codes.min(1) == 0),
        )


def floors(rows: NDArray[np.uint16], entries: int) -> NDArray[np.float32]:
    """float32 [R]: the log-probability of entries whose code is 0, so that a row adds up to 1.

    Where the encoder raised all that lay deeper to the border, tens of thousands of entries add up to
    as much as 1 % there. What they had is what the others leave of 1, which is known within those
    entries' steps: at least that much they get, at most what they have at the border, and each alike.
    Of a row that ends before a border it is the smallest log-probability, as it is stored.
    """
    scale, low = (each.astype(np.float64) for each in spans(rows))
    codes = codes_of(rows, 0, entries)
    width = float(_LARGEST) * scale
    cut = (codes == 0).sum(1)
    high = np.exp(width + low)
    others = high * (_others(codes, scale) - cut * np.exp(-width))
    # 1e-6: float32 has the largest of a row within that.
    least = others * np.expm1(scale / 2) + 1e-6
    left = np.minimum(np.maximum(1 - high - others, least), cut * np.exp(low))
    is_cut = (np.abs(width - 16) < 1e-3) | (np.abs(width - 24) < 1e-3)
    found = np.log(left, where=is_cut, out=np.zeros_like(left)) - np.log(np.maximum(cut, 1))
    return np.where(is_cut, found, low).astype(np.float32)


def _others(codes: NDArray[np.uint16], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """float64 [R]: the sum of each row's probabilities but the largest, relative to that, so that the
    heavy ones are exact."""
    powers = codes.astype(np.float32)
    powers -= _LARGEST
    powers *= scale.astype(np.float32)[:, None]
    return np.exp(powers, out=powers).sum(1, dtype=np.float64) - 1


def decode_each(
    rows: NDArray[np.uint16], numbers: NDArray[np.integer], entries: NDArray[np.integer]
) -> NDArray[np.float32]:
    """float32 [N]: the log-probability of entry `entries[i]` in `rows[numbers[i]]`.

    They are not renormalized: a row's probabilities add up to 1 within about a step.
    """
    scale, low = spans(rows[numbers, :_HEADER])
    return scale * rows[numbers, _HEADER + entries].astype(np.float32) + low

"""Readers of flags' values, from text: each raises argparse's error for what is none."""

import math
import re
from argparse import ArgumentTypeError
from typing import TYPE_CHECKING, Any

from scoremode.errors import ProtocolError, UsageError

if TYPE_CHECKING:
    import datetime

__all__ = [
    "Limit",
    "bytes_of",
    "cache_of",
    "count_of",
    "date_of",
    "finite",
    "label_of",
    "margin_of",
    "nats_of",
    "object_of",
    "probability_of",
    "ratio_of",
    "rule_of",
    "shard_of",
    "share_of",
    "title_of",
    "tokens_of",
    "whole",
]

# Nothing that is counted here (tokens, windows, rows, devices) comes near it, and anything beyond it
# would overflow somewhere in a library.
_LARGEST = 2**31 - 1
# A gate's limit, and how the user wrote it.
Limit = tuple[float, str]


def whole(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a whole number") from None
    if abs(number) > _LARGEST:
        raise ArgumentTypeError(f"{text} is out of range: at most {_LARGEST:,}")
    return number


def finite(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is not a finite number")
    return number


def label_of(text: str) -> str:
    """What a model is called: one printable line that fits a table."""
    return _line(text, 100)


def title_of(text: str) -> str:
    return _line(text, 200)


def _line(text: str, most: int) -> str:
    if not (line := text.strip()):
        raise ArgumentTypeError(f"{text!r} is empty")
    if not line.isprintable():
        raise ArgumentTypeError(f"{text!r} has characters that can't be printed")
    if len(line) > most:
        raise ArgumentTypeError(f"{line[:20]!r}… has {len(line)} characters, more than {most}")
    return line


def count_of(text: str) -> int:
    """A number of targets."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= 1_000_000:
        raise ArgumentTypeError(f"{text!r} is not a number of targets, 1 or more")
    return int(text)


def probability_of(text: str) -> float:
    """`0.9`, `90%` → a probability below 1."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"{text!r} is not a probability below 1, such as 0.9")
    return value


def draft_of(text: str) -> float:
    """A temperature at which a draft is sampled, from 1e-6 to 1e6."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value == 0:
        raise ArgumentTypeError("0 is greedy drafting, whose acceptance is the same top-1")
    if not 1e-6 <= value <= 1e6:
        # Logits over it are no float32 numbers, or all alike.
        raise ArgumentTypeError(f"{text!r} is not a temperature above 0 (1e-6 to 1e6), such as 0.7")
    return value


def margin_of(text: str) -> float:
    """`0.01`, `1%` → a share above 0 and below 1."""
    try:
        value = share_of(text)[0]
    except ArgumentTypeError:
        value = math.nan
    if not 0 < value < 1:
        raise ArgumentTypeError(f"{text!r} is not a margin such as 0.01 or 1%")
    return value


def tokens_of(text: str) -> int:
    """`2048`, `32k`, `8K` (1,024 each) → tokens."""
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})([kK]?)\s*", text, re.ASCII)
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a number of tokens such as 2048 or 32k")
    tokens = int(match[1]) * (1024 if match[2] else 1)
    if tokens >= 2**31:
        raise ArgumentTypeError(f"{text}: is more tokens than any text here has")
    return tokens


def bytes_of(text: str) -> int:
    """`8GiB`, `500MB`, `1e9` → bytes."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(?:([kmgt])(i?)b?)?\s*", text.lower())
    if not match:
        raise ArgumentTypeError(f"{text!r} is not a size such as 8GiB or 500MB")
    number, prefix, binary = match.groups()
    power = " kmgt".index(prefix) if prefix else 0
    try:
        size = int(float(number) * (1024 if binary else 1000) ** power)
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a size such as 8GiB") from None
    if size < 1:
        raise ArgumentTypeError(f"{text!r} is no memory at all")
    return size


def date_of(text: str) -> "datetime.date":
    """`2025-01-31` → that day."""
    import datetime

    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a day such as 2025-01-31") from None


def object_of(text: str) -> dict[str, Any]:
    """An object in JSON."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ArgumentTypeError(f'{text!r} is not an object in JSON, such as {{"a": 1}}')
    return value


def nats_of(text: str) -> Limit:
    return _limit(text, "a number of nats such as 0.05", "a KLD is in nats, and has no percent")


def half_life_of(text: str) -> Limit:
    return _limit(
        text, "a number of tokens such as 500", "a half-life is in tokens, not in percent"
    )


def ratio_of(text: str) -> Limit:
    not_percent = "a ratio is a number such as 1.02, not a percentage"
    return _limit(text, "a ratio such as 1.02", not_percent)


def share_of(text: str) -> Limit:
    """`0.9` or `90%`."""
    number, percent, rest = text.strip().partition("%")
    if rest:
        raise ArgumentTypeError(f"{text!r} is not a share such as 0.9 or 90%")
    value, _ = _limit(number, "a share such as 0.9 or 90%")
    # Rounded to the decimal that is meant, since 0.999 of all meets 99.9%.
    return float(f"{value / 100:.15g}") if percent else value, text.strip()


def _limit(text: str, wanted: str, not_percent: str = "") -> Limit:
    if text.rstrip().endswith("%"):
        raise ArgumentTypeError(f"{text}: {not_percent}")
    try:
        return float(text), text.strip()
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not {wanted}") from None


def rule_of(text: str) -> str:
    """A rule to stop by, as it is written in a protocol's name."""
    from scoremode.text.stopping import stop_rule

    try:
        return str(stop_rule(text))
    except ProtocolError as error:
        raise ArgumentTypeError(str(error)) from None


def shard_of(text: str) -> str:
    from scoremode.results.shards import Shard

    try:
        return str(Shard.parsed(text))
    except UsageError as error:
        raise ArgumentTypeError(str(error).removeprefix("--shard ")) from None


def cache_of(text: str) -> str:
    """A cache's formats by the one name that each has. Raises UsageError."""
    from scoremode.engines.kv_formats import AS_DECLARED, AS_IT_IS, parse_kv_cache

    return text if text in (AS_DECLARED, AS_IT_IS) else str(parse_kv_cache(text))

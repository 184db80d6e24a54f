"""A text through a tokenizer in a process of its own, before it goes through it here.

A tokenizer.json brings regular expressions, and a bad one takes for ever or ends in a panic of the
library, which nothing can stop or silence from within. So one that isn't known from published models is
rehearsed: the same library, the same text, in a child that can be ended. Nothing is taken from it but
that it came to an end; a tokenizer of known patterns alone, as nearly all are, does without.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scoremode.errors import TokenizerError

if TYPE_CHECKING:
    import tokenizers

__all__ = ["has_unknown_pattern", "rehearse"]

# Seconds for a text of no length, and bytes for one more; ten times what a slow machine needs.
_START, _RATE = 20.0, 50_000
# Those of GPT-2, GPT-4 and Llama 3, Qwen, DeepSeek, GPT-4o. None takes long for any text: no repeated
# group, and a retry gives up within the run of one kind of character.
_KNOWN = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"\s+",
    r" ",
}
_CHILD = """
import struct, sys, tokenizers
data = sys.stdin.buffer
def part():
    (length,) = struct.unpack("<Q", data.read(8))
    return data.read(length)
backend = tokenizers.Tokenizer.from_buffer(part())
for _ in range(int(sys.argv[1])):
    backend.encode_batch_fast([part().decode()], add_special_tokens=False)
"""


def has_unknown_pattern(backend: "tokenizers.Tokenizer") -> bool:
    """Tells whether it splits or normalizes texts by a regular expression not known to be harmless."""
    parts: tuple[Any, ...] = (backend.normalizer, backend.pre_tokenizer)
    states = [json.loads(part.__getstate__()) for part in parts if part is not None]
    return not _KNOWN.issuperset(_patterns(states))


def rehearse(tokenizer: str, texts: Sequence[str], source: str) -> None:
    """Raises TokenizerError where encoding `texts` by that tokenizer.json fails or takes too long."""
    parts = [part.encode() for part in (tokenizer, *texts)]
    size = sum(map(len, parts[1:]))
    limit = _START + size / _RATE
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(len(texts))],
            input=b"".join(struct.pack("<Q", len(part)) + part for part in parts),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"RUST_BACKTRACE": "0"},
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TokenizerError(
            f"{source}: its regular expressions take more than {limit:.0f} s for a text of "
            f"{size:,} bytes"
        ) from None
    if done.returncode:
        # The library's last words.
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise TokenizerError(f"{source}: cannot encode the text: {lines[-1][:300]}")


def _patterns(part: Any) -> Iterator[str]:
    """All regular expressions in a part of a tokenizer.json."""
    if isinstance(part, dict):
        if isinstance(pattern := part.get("Regex"), str):
            yield pattern
        part = list(part.values())
    if isinstance(part, list):
        for value in part:
            yield from _patterns(value)

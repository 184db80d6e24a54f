"""Tells what each token id stands for: how many bytes of text, and which kind of text.

Bytes make perplexities of different tokenizers comparable (bits per byte). Kinds tell where a
quantized model is wrong: in the middle of words, in numbers, in layout. Both are read off the
tokenizer's own decoder, token by token, so they are properties of the token alone and not of the
text around it. The bytes of a text's tokens then add up to the text, as the tokenizer sees it:

- a normalizer may have changed it before (Unicode normal form, lower case);
- SentencePiece's kind puts a space in front of a text, and of what follows an added token;
- a special token counts 0 bytes, also where the text itself spells it;
- an added token that strips the white space beside it counts its own bytes only;
- the token for unknown text counts 0 bytes too, or its name's where it is not special.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import regex
from numpy.typing import NDArray

from scoremode.errors import TokenizerError
from scoremode.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

__all__ = ["TOKEN_CLASSES", "TokenTable", "token_table"]

TOKEN_CLASSES = (
    "word start",
    "word inside",
    "number",
    "punctuation",
    "white space",
    "special",
    "other",
)
_SPECIAL, _OTHER = TOKEN_CLASSES.index("special"), TOKEN_CLASSES.index("other")

# What Python's decoder makes of bytes that are no character.
_LONE = regex.compile("[\udc80-\udcff]")
_KIND = regex.compile(
    r"(?P<space>\s+)"
    r"|\s*(?:(?P<punctuation>[\p{P}\p{S}]+)|(?P<number>\p{N}+)|(?P<word>[\p{L}\p{M}'’]+))\s*"
)


@dataclass(frozen=True, eq=False)
class TokenTable:
    """All ids of a tokenizer; V is its largest id plus one.

    - `pieces`: what each id stands for in a text, a special token by its name; None for an id that
      no token has.
    - `byte_counts` uint16 [V]: bytes of text, 0 for special tokens and ids without one.
    - `classes` uint8 [V]: places in TOKEN_CLASSES:
      - `word start`: letters (with their marks and apostrophes) behind white space in the same
        token; `word inside`: letters without. By the token alone a word at the start of a line or
        behind a bracket is "inside", and so are all words of a script without spaces.
      - `number`, `punctuation` (Unicode's symbols too): nothing else, but for white space around.
      - `white space`: only that.
      - `special`: added as special, or an id that no token has.
      - `other`: a mixture, or not a whole character.
    """

    pieces: tuple[bytes | None, ...]
    byte_counts: NDArray[np.uint16]
    classes: NDArray[np.uint8]

    def text(self, ids: Iterable[int]) -> str:
        """Returns what `ids` spell together, for people: broken characters at the ends become U+FFFD,
        and an id that no token has (a head may be wider than its tokenizer) is called by its number."""
        spelled = []
        for i in ids:
            piece = self.pieces[i] if 0 <= i < len(self.pieces) else None
            spelled.append(f"<id {i}>".encode() if piece is None else piece)
        return b"".join(spelled).decode(errors="replace")

    def texts(self, ids: NDArray[np.int32]) -> NDArray[np.object_]:
        """str [N]: what each of `ids` spells alone. A byte that is no whole character by itself stands
        as `<0xE2>`, as SentencePiece writes one, and an id that no token has as `<id 7>`."""
        found, places = np.unique(ids, return_inverse=True)
        spelled = [self._alone(i) for i in found.tolist()]
        return np.array(spelled, dtype=object)[places]

    def _alone(self, i: int) -> str:
        piece = self.pieces[i] if 0 <= i < len(self.pieces) else None
        if piece is None:
            return f"<id {i}>"
        text = piece.decode(errors="surrogateescape")
        return _LONE.sub(lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", text)


def token_table(tokenizer: Tokenizer) -> TokenTable:
    """Raises TokenizerError where the tokenizer's decoder doesn't say what a token stands for."""
    backend = tokenizer.backend
    decode = _Decoder(tokenizer.source, backend)
    pieces: list[bytes | None] = [None] * tokenizer.size
    for token, i in backend.get_vocab(with_added_tokens=False).items():
        pieces[i] = decode(token)
    special = set()
    # Added tokens are found in the text as they are, before anything is spelled in the model's way.
    for i, added in backend.get_added_tokens_decoder().items():
        pieces[i] = added.content.encode()
        if added.special:
            special.add(i)
    counts = np.array([len(p) if p is not None else 0 for p in pieces], np.int64)
    classes = np.array([_class(p) for p in pieces], np.uint8)
    for i in special:
        counts[i], classes[i] = 0, _SPECIAL
    if counts.max() > np.iinfo(np.uint16).max:
        longest = int(counts.argmax())
        raise TokenizerError(
            f"{tokenizer.source}: token {longest} has {counts[longest]} bytes, and at most "
            f"{np.iinfo(np.uint16).max} are counted"
        )
    return TokenTable(tuple(pieces), counts.astype(np.uint16), classes)


class _Decoder:
    """Maps one token of the model's vocabulary to its bytes, as the tokenizer's own decoder has it."""

    def __init__(self, source: str, backend: "tokenizers.Tokenizer"):
        decoder: Any = backend.decoder
        steps = [] if decoder is None else list(_steps(json.loads(decoder.__getstate__())))
        kinds = [step["type"] for step in steps]
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._replaced = []
        for step in steps:
            if step["type"] == "Metaspace":
                self._replaced.append((step["replacement"], " "))
            elif step["type"] == "Replace" and "String" in step["pattern"]:
                self._replaced.append((step["pattern"]["String"], step["content"]))
        # `Strip` behind `Fuse` takes the space from the front of a whole text; a token keeps it.
        own = kinds[: kinds.index("Fuse")] if "Fuse" in kinds else kinds
        unknown = set(own) - {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}
        unknown |= {"Replace by a pattern" for s in steps if "Regex" in s.get("pattern", ())}
        if not own or unknown:
            raise TokenizerError(
                f"{source}: a token's bytes of text are not known with its decoder "
                f"({', '.join(sorted(unknown)) or 'none'})"
            )

    def __call__(self, token: str) -> bytes:
        if self._byte_level:
            try:
                return bytes(map(_BYTE_OF.__getitem__, token))
            except KeyError:  # a piece that is not spelled byte by byte stands for itself
                return token.encode()
        if self._byte_fallback and (byte := _FALLBACK.fullmatch(token)):
            return bytes.fromhex(byte[1])
        for mark, content in self._replaced:
            token = token.replace(mark, content)
        return token.encode()


_FALLBACK = regex.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_characters() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes of Latin-1 are themselves, others follow from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_characters()


def _steps(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a decoder's step, which may be a sequence of them."""
    if step["type"] != "Sequence":
        yield step
    else:
        for part in step["decoders"]:
            yield from _steps(part)


def _class(piece: bytes | None) -> int:
    if piece is None:
        return _SPECIAL
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return _OTHER
    found = _KIND.fullmatch(text)
    if found is None:
        return _OTHER
    name = found.lastgroup
    if name == "space":
        name = "white space"
    elif name == "word":
        name = "word start" if found.start("word") else "word inside"
    return TOKEN_CLASSES.index(name)

"""Tokenizers: `tokenizer.json` as it is, minus truncation and padding.

Uses the `tokenizers` library alone (transformers would pull in torch), and applies the two settings
of `tokenizer_config.json` that change ids: `add_bos_token` and `add_eos_token`. Each decides its side
where it is set; otherwise the file's own post-processor does. (transformers 5 obeys them only where
there is no `tokenizer.json`; the two differ for a file whose post-processor contradicts its config.)
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoremode.errors import ScoremodeError, TokenizerError, words_of
from scoremode.lib.files import MOST_JSON, read_regular
from scoremode.lib.json import json_digest
from scoremode.text.plan import Plan, make_plan
from scoremode.text.protocol import Protocol

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Tokenizer", "adopt", "difference", "load_tokenizer", "naming", "sides_of", "tokenize"]


# The largest vocabularies have 300,000 entries.
_MOST_IDS = 1 << 22
# Settings that make a model draw its tokens, which is for training: of byte pairs and of Unigram.
_DRAWN = ("dropout", "alpha")


@contextmanager
def naming(source: str, what: str) -> Iterator[None]:
    """Turns whatever the tokenizers library raises in a block into a TokenizerError: `source: what: …`.

    It raises nothing narrower than Exception, and its panics (a damaged `Precompiled`, a regular
    expression that gives up) aren't even that.
    """
    try:
        yield
    except (ScoremodeError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001
        raise TokenizerError(f"{source}: {what}: {words_of(error, named=False)}") from None


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer and the special tokens it would add.

    - `size`: its largest id plus one, added tokens included.
    - `bos`: the id it calls BOS, None if it has none.
    - `sha256`: of the tokenizer file, and of the settings that change ids.
    - `notes`: lines for the user, of what may be wrong with it.
    """

    source: str
    backend: "tokenizers.Tokenizer" = field(repr=False)
    bos: int | None
    sha256: str

    notes: tuple[str, ...] = ()

    @cached_property
    def size(self) -> int:
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        token, largest = max(vocabulary.items(), key=itemgetter(1))
        if largest >= _MOST_IDS:
            raise TokenizerError(
                f"{self.source}: token {token!r} has id {largest}, and no vocabulary has more than "
                f"{_MOST_IDS:,} entries"
            )
        return 1 + largest

    @cached_property
    def added(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The ids that it puts before and behind every text by itself."""
        bare = self.encode("a", special_tokens=False).tolist()
        full = self.encode("a", special_tokens=True).tolist()
        if not bare:
            raise TokenizerError(f"{self.source}: has no token for the text 'a'")
        if (sides := sides_of(bare, full)) is None:
            raise TokenizerError(f"{self.source}: its special tokens change the text's own tokens")
        return tuple(sides[0]), tuple(sides[1])

    @property
    def adds_bos(self) -> bool:
        return self.added[0][:1] == (self.bos,)

    def encode(self, text: str, *, special_tokens: bool) -> NDArray[np.int32]:
        """int32 [N]: the ids of `text`, with or without the special tokens it adds."""
        with naming(self.source, "cannot encode the text"):
            # A batch, and of ids alone: the same ids in less time, and other threads run meanwhile.
            (found,) = self.backend.encode_batch_fast([text], add_special_tokens=special_tokens)
            return np.array(found.ids, dtype=np.int32)

    def decode(self, ids: Sequence[int]) -> str:
        """The text that `ids` stand for, special tokens included."""
        with naming(self.source, "cannot decode tokens"):
            return self.backend.decode(list(ids), skip_special_tokens=False)

    def decoded_one_by_one(self, ids: Sequence[int]) -> list[str]:
        """What each of `ids` adds to the text of those before it: nothing, where bytes of a character
        are still to come."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        with naming(self.source, "cannot decode tokens"):
            return [stream.step(self.backend, i) or "" for i in ids]

    def encode_with_spans(self, text: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """int32 [N], the ids of `text` without special tokens that it adds, and int64 [N, 2], the
        characters of each, begin and end."""
        with naming(self.source, "cannot encode the text"):
            found = self._with_whole_spans.encode(text, add_special_tokens=False)
        spans = np.array(found.offsets, np.int64).reshape(-1, 2)
        return np.array(found.ids, dtype=np.int32), spans

    @cached_property
    def _with_whole_spans(self) -> "tokenizers.Tokenizer":
        """The backend without its post-processor, which may leave blanks out of a token's
        characters."""
        import tokenizers
        from tokenizers.processors import ByteLevel

        made = tokenizers.Tokenizer.from_str(self.backend.to_str())
        made.post_processor = ByteLevel(trim_offsets=False)  # pyright: ignore[reportAttributeAccessIssue]
        return made

    def to_json(self) -> dict[str, Any]:
        front, behind = self.added
        return {
            "source": self.source,
            "sha256": self.sha256,
            "size": self.size,
            "bos": self.bos,
            "adds": {"front": list(front), "behind": list(behind)},
        }


def sides_of(bare: list[int], full: list[int]) -> tuple[list[int], list[int]] | None:
    """The ids before and behind a text's own ids among those with special tokens; None where the
    latter change them."""
    for front in range(len(full) - len(bare) + 1):
        if full[front : front + len(bare)] == bare:
            return full[:front], full[front + len(bare) :]
    return None


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder` (or the `tokenizer.json` file given). Raises TokenizerError."""
    import tokenizers

    path = folder / "tokenizer.json" if folder.is_dir() or folder.suffix != ".json" else folder
    try:
        data = read_regular(path, MOST_JSON)
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}") from None
    with naming(str(path), "not a tokenizer"):
        backend = tokenizers.Tokenizer.from_buffer(data)
    if not backend.get_vocab_size(with_added_tokens=True):
        raise TokenizerError(f"{path}: its vocabulary is empty")
    backend.no_truncation()
    backend.no_padding()
    settings = _settings(path.parent)
    return adopt(backend, settings, source=str(folder), digest=sha256(data).hexdigest())


def adopt(
    backend: "tokenizers.Tokenizer", settings: dict[str, Any], *, source: str, digest: str
) -> Tokenizer:
    """A `Tokenizer` of a loaded backend; `settings` are those of `tokenizer_config.json`."""
    for name in _DRAWN:
        if value := getattr(backend.model, name, None):
            raise TokenizerError(
                f"{source}: its tokens are drawn at random, as for training: its model has "
                f"{name} {value:g}, and must have none"
            )
    bos, eos = (_token_id(backend, settings, key, source) for key in ("bos_token", "eos_token"))
    # With null for a token there is nothing to add or to leave out: the file decides, as it does for
    # transformers.
    adds = {
        f"add_{key}": settings[f"add_{key}"]
        for key in ("bos_token", "eos_token")
        if f"add_{key}" in settings and not (settings[f"add_{key}"] and settings.get(key) is None)
    }
    own = Tokenizer(source, backend, bos, digest).added
    # A setting that is not there leaves its side to the file.
    front = _side(adds.get("add_bos_token"), bos, own[0])
    behind = _side(adds.get("add_eos_token"), eos, own[1])
    if (front, behind) != own:
        _set_special_tokens(backend, front, behind)
    digest = json_digest([digest, adds, bos, eos])
    bos = front[0] if bos is None and front else bos
    return Tokenizer(source, backend, bos, digest)


def tokenize(text: str, tokenizer: Tokenizer, protocol: Protocol) -> Plan:
    """Encodes `text` by the protocol's BOS rule and cuts it into windows.

    Raises TokenizerError where a BOS is demanded and the tokenizer has none.
    """
    if protocol.bos == "always" and tokenizer.bos is None:
        raise TokenizerError(f"{tokenizer.source}: BOS demanded, and the tokenizer has none")
    uses_bos = protocol.bos == "always" or (protocol.bos == "auto" and tokenizer.adds_bos)
    if protocol.bos == "auto" and protocol.bos_at == "special-tokens":
        tokens = tokenizer.encode(text, special_tokens=True)
    else:
        tokens = tokenizer.encode(text, special_tokens=False)
        if uses_bos:
            tokens = np.concatenate([np.array([tokenizer.bos], np.int32), tokens])
    bos = tokenizer.bos if uses_bos else None
    at_windows = protocol.bos_at == "windows"
    return make_plan(tokens, protocol, stream_bos=bos, window_bos=bos if at_windows else None)


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, its BOS and EOS from `special_tokens_map.json` where it names none."""
    settings = _read_object(folder / "tokenizer_config.json")
    named = _read_object(folder / "special_tokens_map.json")
    for key in ("bos_token", "eos_token"):
        token = settings.get(key, named.get(key))
        if isinstance(token, dict):
            token = token.get("content")
        if not isinstance(token, str | None):
            raise TokenizerError(f"{folder}: {key} is {token!r}, not text")
        settings[key] = token
    return settings


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path, MOST_JSON))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TokenizerError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not readable JSON: {error}") from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _token_id(
    backend: "tokenizers.Tokenizer", settings: dict[str, Any], key: str, source: str
) -> int | None:
    token = settings.get(key)
    if token is None:
        return None
    with naming(source, f"{key} {token!r}"):
        token_id = backend.token_to_id(token)
    if token_id is None and settings.get(f"add_{key}"):
        raise TokenizerError(
            f"{source}: is to add {key}, and {key} {token!r} is not in its vocabulary"
        )
    return token_id


def _side(adds: bool | None, token: int | None, own: tuple[int, ...]) -> tuple[int, ...]:
    """The ids at one side of a text: the token, nothing, or what the file's own rule puts."""
    if adds is None:
        return own
    return (token,) if adds and token is not None else ()


def _set_special_tokens(
    backend: "tokenizers.Tokenizer", front: tuple[int, ...], behind: tuple[int, ...]
) -> None:
    from tokenizers.processors import TemplateProcessing

    special = [(backend.id_to_token(i), i) for i in {*front, *behind}]
    pieces = [*map(backend.id_to_token, front), "$A", *map(backend.id_to_token, behind)]
    backend.post_processor = TemplateProcessing(single=pieces, special_tokens=special)  # pyright: ignore[reportAttributeAccessIssue]


def difference(
    ours: Tokenizer, own: NDArray[Any], theirs: Tokenizer, other: NDArray[Any]
) -> str | None:
    """`token 17 is 262 ('Ġthe') and not 5 ('x')`, by `ours` whose ids are `own`; None for the same."""
    shorter = min(len(own), len(other))
    differing = np.flatnonzero(own[:shorter] != other[:shorter])
    if not len(differing) and len(own) == len(other):
        return None
    at = int(differing[0]) if len(differing) else shorter
    one, two = _token(ours, own, at), _token(theirs, other, at)
    return f"token {at:,} is {one} and not {two}; {len(own):,} tokens and not {len(other):,}"


def _token(tokenizer: Tokenizer, ids: NDArray[Any], at: int) -> str:
    if at >= len(ids):
        return "none"
    return f"{ids[at]} ({tokenizer.backend.id_to_token(int(ids[at]))!r})"

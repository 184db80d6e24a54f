"""Tokenizers of a checkpoint: of a folder, a GGUF file, and those that only transformers can read.

**AutoTokenizer compared.** transformers 5 rebuilds a tokenizer of a class that it knows: vocabulary and
merges are the file's, normalizer and pre-tokenizer the class's own. SmolLM2's tokenizer.json splits
digits, and its tokenizer_config.json says GPT2Tokenizer, which doesn't: two spaces before a number
become other ids, token 238,941 of WikiText-2 among them. A file declared LlamaTokenizer loses its
normalizer. And `add_bos_token` counts for nothing beside a tokenizer.json. A run scores the files as
they are, as llama.cpp and the tokenizers library read them; where AutoTokenizer gives something else, a
perplexity by it is another, so the run says so and its record keeps it.
"""

import logging
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from scoremode.checkpoint.config import read_json
from scoremode.checkpoint.gguf.names import is_gguf
from scoremode.checkpoint.model_files import (
    SLOW_FILES,
    TOKENIZER_FILES,
    ModelFiles,
    resolve_tokenizer,
)
from scoremode.errors import TokenizerError, words_of
from scoremode.lib.files import MOST_JSON, check_regular
from scoremode.lib.tasks import importing
from scoremode.text.protocol import Protocol
from scoremode.text.tokenizer import Tokenizer, adopt, load_tokenizer, naming, sides_of

# Tokenizers that no library here reads; of a folder with such a file alone transformers makes one of
# five tokens, or runs the model's own code.
_UNREAD_FILES = ("tekken.json", "*tiktoken*", "*.model*", "*.vocab", "rwkv_vocab*")
# Characters for a tokenizer written in Python: it takes minutes for what Rust does in a second.
_MOST_SLOW = 100_000
# Model types of Mistral's, whose tokenizers transformers mends when it is asked to.
_MISTRAL = {"mistral", "mistral3", "voxtral", "ministral", "pixtral"}


def checkpoint_tokenizer(place: ModelFiles | Path | str) -> Tokenizer:
    """The tokenizer among a model's files, or of a path, which may be a `tokenizer.json`.

    Raises TokenizerError, CheckpointError.
    """
    path = resolve_tokenizer(place).path
    if is_gguf(path):
        from scoremode.checkpoint.gguf.open import gguf_metadata
        from scoremode.checkpoint.gguf.tokenizer import tokenizer_of

        return tokenizer_of(gguf_metadata(path), str(path))
    if path.is_file() or (path / "tokenizer.json").exists():
        return load_tokenizer(path)
    if any((path / name).exists() for name in SLOW_FILES):
        return _converted(path)
    unread = sorted({file.name for pattern in _UNREAD_FILES for file in path.glob(pattern)})
    beside = f", only {' and '.join(unread[:3])}, which can't be read here" if unread else ""
    raise TokenizerError(
        f"{path}: has no {', '.join(TOKENIZER_FILES[:-1])} or {TOKENIZER_FILES[-1]}{beside}; give a "
        "tokenizer.json of the same tokenizer, or its folder, by --tokenizer"
    )


def has_tokenizer(place: ModelFiles | Path | str) -> bool:
    """Tells whether `checkpoint_tokenizer` finds any file of one. Raises CheckpointError."""
    path = resolve_tokenizer(place).path
    if is_gguf(path):
        from scoremode.checkpoint.gguf.open import gguf_metadata
        from scoremode.checkpoint.gguf.tokenizer import has_vocabulary

        return has_vocabulary(gguf_metadata(path))
    return path.is_file() or any((path / f).exists() for f in TOKENIZER_FILES)


def _check_files(path: Path) -> None:
    """Raises TokenizerError where transformers would read something that is no file."""
    for file in path.iterdir():
        try:
            if file.suffix in (".json", ".txt", ".model"):
                check_regular(file, MOST_JSON)
        except OSError as error:
            raise TokenizerError(f"{file}: {error.strerror}") from None


def _converted(path: Path) -> Tokenizer:
    _check_files(path)
    with importing():
        from transformers import AutoTokenizer

    with naming(str(path), "has no tokenizer.json, and none can be made"):
        fast = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        backend = fast.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    settings_file = path / "tokenizer_config.json"
    settings = read_json(settings_file) if settings_file.exists() else {}
    # transformers has already applied the settings that change ids; only the names are still needed.
    named = {k: str(getattr(fast, k)) for k in ("bos_token", "eos_token") if getattr(fast, k)}
    named = {k: v for k, v in settings.items() if not k.startswith("add_")} | named
    digest = sha256(backend.to_str().encode()).hexdigest()
    return adopt(backend, named, source=str(path), digest=digest)


def compare_tokens(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    """Compares what AutoTokenizer, of the same folder, makes of `text` with what `tokenizer` does.

    - `version` of transformers, `class` of its tokenizer.
    - `tokens`: its count and `tokenizer`'s; `first_difference`: the position, None where all ids are
      the same. Both without special tokens.
    - `adds`: what it puts before and behind a text, as `Tokenizer.to_json` has it; `bos`: its id.
    - `wrong_pattern`: whether it says that the file has the pattern which Mistral's models were
      published with by mistake, and doesn't mend it unless asked by `fix_mistral_regex`. It says so of
      any tokenizer without a config, too; here the config must name one of Mistral's model types.
    - `characters`: how many of the text's were compared.
    - `refused` alone, beside `version`: why it can't be loaded from these files.
    """
    with importing():
        import transformers
        from transformers import AutoTokenizer

    # It writes its warning for every tokenizer that it loads; ours is a line of the run.
    logging.getLogger("transformers.tokenization_utils_tokenizers").addFilter(_is_ours_to_say)
    version = {"version": transformers.__version__}
    try:
        # Its classes are imported by name when they are asked for.
        with importing():
            theirs = AutoTokenizer.from_pretrained(
                tokenizer.source, local_files_only=True, trust_remote_code=False
            )
        if not theirs.is_fast:
            text = text[:_MOST_SLOW]
        ids = _encode(theirs, text, special_tokens=False)
        sides = sides_of(*(_encode(theirs, "a", special_tokens=s).tolist() for s in (False, True)))
    except (KeyboardInterrupt, SystemExit):
        raise
    # Anything may come from a tokenizer's own code, Rust's panics too, which are no Exceptions; and it
    # is the finding: nothing depends on it.
    except BaseException as error:  # noqa: BLE001
        return version | {"refused": words_of(error, 200)}
    ours = tokenizer.encode(text, special_tokens=False)
    return version | {
        "class": type(theirs).__name__,
        "tokens": [len(ids), len(ours)],
        "first_difference": _first_difference(ids, ours),
        "adds": None if sides is None else {"front": sides[0], "behind": sides[1]},
        "bos": theirs.bos_token_id,
        "wrong_pattern": theirs.is_fast
        and getattr(theirs._tokenizer, "fix_mistral_regex", None) is False
        and _model_type(Path(tokenizer.source)) in _MISTRAL,
        "characters": len(text),
    }


def difference_lines(
    found: Mapping[str, Any], tokenizer: Tokenizer, protocol: Protocol, read: int
) -> list[str]:
    """A line for each way in which AutoTokenizer would have had other tokens scored; none if none.

    - `read`: how many tokens of the text the windows reach.
    """
    name = f"transformers {found['version']}'s AutoTokenizer"
    if "refused" in found:
        return [
            f"{name} can't load {tokenizer.source}; its ids weren't compared: {found['refused']}"
        ]
    name += f" ({found['class']})"
    lines = []
    first = found["first_difference"]
    if first is not None and first < read:
        theirs, ours = found["tokens"]
        lines.append(
            f"{name} splits this text otherwise than tokenizer.json, which is scored, from token "
            f"{first:,} on ({theirs:,} and {ours:,} tokens); its save_pretrained writes a folder for "
            "--tokenizer"
        )
    ours = tokenizer.to_json()["adds"]
    if protocol.bos == "auto" and found["adds"] not in (ours, None):
        lines.append(
            f"{name} puts {_sides(found['adds'])} a text; the tokenizer's files, which are obeyed, "
            f"{_sides(ours)}"
        )
    if protocol.bos == "always" and found["bos"] != tokenizer.bos:
        lines.append(f"{name} has BOS {found['bos']}; the tokenizer's files have {tokenizer.bos}")
    if found["wrong_pattern"]:
        lines.append(
            f"{name} finds a pattern in {tokenizer.source} that Mistral's published files have wrong: "
            "the model may have been trained with the one of its fix_mistral_regex=True"
        )
    return lines


def _is_ours_to_say(warning: logging.LogRecord) -> bool:
    return "fix_mistral_regex" not in warning.getMessage()


def _model_type(folder: Path) -> Any:
    """The model type that the folder's config names, None without one."""
    file = folder / "config.json"
    return read_json(file).get("model_type") if file.is_file() else None


def _encode(theirs: Any, text: str, *, special_tokens: bool) -> np.ndarray:
    encoded = theirs(
        text,
        add_special_tokens=special_tokens,
        truncation=False,
        padding=False,
        return_attention_mask=False,
        verbose=False,
    )
    return np.array(encoded["input_ids"], dtype=np.int64)


def _first_difference(ids: np.ndarray, others: np.ndarray) -> int | None:
    shorter = min(len(ids), len(others))
    different = np.flatnonzero(ids[:shorter] != others[:shorter])
    if len(different):
        return int(different[0])
    return None if len(ids) == len(others) else shorter


def _sides(adds: Mapping[str, list[int]]) -> str:
    """`[1] before and nothing behind`."""
    return f"{adds['front'] or 'nothing'} before and {adds['behind'] or 'nothing'} behind"

"""A model's config and the other JSON files of a checkpoint: parsed strictly, and sizes checked.

The library builds whatever it is told to: a million layers, or none. Only values that no model has are
refused here; whether the rest fits the tensors is found when they are mapped.

JSON is UTF-8, with every name once and nothing nested beyond reason. Python's reader takes more:
another encoding, a name written twice, of which the last counts here and the first elsewhere, half a
surrogate pair that nothing can print.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scoremode.errors import CheckpointError
from scoremode.lib.files import MOST_JSON, read_regular

# Words in names of fields that say that weights were changed together with their inputs: whoever
# doesn't change the inputs too measures another model.
TRANSFORM = re.compile(
    r"hadamard|walsh|rotat(e|ion)|spin_?quant|quarot|flat_?quant|du_?quant|ost_?quant|kronecker|"
    r"givens|incoheren|butterfly|transform(?!er)",
    re.IGNORECASE,
)
_MOST_LAYERS = 10_000
_MOST = 100_000_000
# transformers makes a name of each when it reads any config, that of a vision tower too.
_MOST_LABELS = 100_000
# Where configs of models of text and images or sound have the text's: transformers, InternVL,
# DeepSeek-VL2, Qwen-Omni (whose thinker has a text_config in turn).
_LANGUAGE = ("text_config", "llm_config", "language_config", "thinker_config")
# compressed-tensors' older one, and that of MLX' configs, whose newer ones have it twice.
_QUANTIZATIONS = ("quantization_config", "compression_config", "quantization")
# Beginnings of the names of a language model's modules in a model that holds others, too.
_OUTER = re.compile(r"^((model|language_model|text_model|thinker)\.)+")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_POSITIVE = {
    *_LAYERS,
    *("hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "n_heads", "vocab_size"),
}
# Factors and bounds of logits.
_FACTORS = {"logits_scaling", "logit_scale", "final_logit_softcapping", "attn_logit_softcapping"}
_SIZE = re.compile(
    r"(?:size|dim|heads?|layers?|positions|embeddings|experts|rank|length|embd|ctx)$"
)
# JSON nested deeper than this is refused.
_DEEPEST = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder, checked. Raises CheckpointError."""
    config = read_json(path / "config.json")
    check_config(path / "config.json", config)
    return config


def check_config(file: Path, config: Mapping[str, Any]) -> None:
    """Raises CheckpointError, naming the field, for a value that no model has, and where two
    quantizations are declared that differ."""
    for _, part in _language_parts(config):
        for key in (*_LANGUAGE, "quantization_config", "compression_config"):
            if not isinstance(part.get(key), dict | None):
                raise CheckpointError(f"{file}: its {key} is not an object")
        for name, value in part.items():
            _check(file, name, value)
    for part in _objects(config):
        labels = part.get("num_labels")
        if type(labels) is int and labels > _MOST_LABELS:
            raise CheckpointError(
                f"{file}: num_labels is {_shown(labels)}, and no model has more than {_MOST_LABELS:,}"
            )
        kind = part.get("model_type")
        if part is not config and not isinstance(kind, str | None):
            raise CheckpointError(f"{file}: the model_type {_shown(kind)} of a part is no name")
    (first, one), *others = quantizations(config) or [("", {})]
    for where, other in others:
        for name, *values in _differences(one, where, other):
            raise CheckpointError(
                f"{file}: its {first} and its {where} differ in {_shown(name)}: "
                f"{' and '.join(map(_shown, values))}; remove the one that its weights don't follow"
            )


def quantizations(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The quantizations that a config declares, at its top or beside the language model's, each with
    its field's name; the one that describes the tensors first."""
    found = [
        (f"{place}{key}", part[key])
        for place, part in _language_parts(config)
        for key in _QUANTIZATIONS
        if part.get(key) and isinstance(part[key], Mapping)
    ]
    return sorted(found, key=lambda said: _is_of_mlx_by_others(said[1]))


def _is_of_mlx_by_others(said: Mapping[str, Any]) -> bool:
    """Tells whether AutoRound says, in its own words, that it exported to MLX, whose own words stand
    beside them as `quantization`."""
    return said.get("quant_method") is not None and "mlx" in str(said.get("packing_format"))


def _differences(
    one: Mapping[str, Any], where: str, other: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    """Fields by which the quantization `other`, which stands at `where`, contradicts `one`."""
    names = sorted({*one, *other})
    if _is_of_mlx_by_others(other):
        names = ["bits", "group_size"]
    elif "." in where and where.endswith(".quantization"):
        # MLX's of the language model: names begin there, and it may name fewer modules.
        one, other = ({_OUTER.sub("", k): v for k, v in said.items()} for said in (one, other))
        names = sorted(other)
    for name in names:
        values = one.get(name), other.get(name)
        # Of MLX's two one alone may name the method.
        if values[0] != values[1] and not (name == "quant_method" and None in values):
            yield name, *values


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes its language model: itself, or one nested in it."""
    for key in _LANGUAGE:
        nested = config.get(key)
        if nested and isinstance(nested, Mapping):
            return language_config(nested)
    return config


def dtype_of(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config says, its language model's first; None where it says none, or `auto`."""
    for part in (language_config(config), config):
        for name in ("dtype", "torch_dtype"):
            said = str(part.get(name) or "auto").removeprefix("torch.")
            if said != "auto":
                return said
    return None


def positions_of(config: Mapping[str, Any]) -> int | None:
    """A model's number of positions by its config; None where it has no limit or says none."""
    # Older architectures' names for it; models without position tables have none of them.
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def longest_of(config: Mapping[str, Any]) -> int | None:
    """Tokens of the longest window that a model's positions reach, by its config; None as above.

    Linear, dynamic and yarn's scaling may stand beside the length before it, and reach further by their
    factor, as vLLM takes them; Gemma 3's positions count it already.
    """
    positions = positions_of(config)
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if positions is None or not isinstance(scaling, Mapping):
        return positions
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    counted = "gemma3" in str(config.get("model_type"))
    if kind not in ("linear", "dynamic", "yarn") or counted:
        return positions
    if not isinstance(factor, (int, float)):
        return positions
    base = scaling.get("original_max_position_embeddings")
    base = base if isinstance(base, int) else positions
    # A factor that is no number, or beyond all reason, is no promise.
    reached = base * factor if 1 < factor < 1 << 16 else 0
    return max(positions, int(reached))


def layers_of(config: Mapping[str, Any]) -> int:
    """The number of decoder layers by the config, 0 where it says none."""
    parts = (part for _, part in _language_parts(config))
    found = (part[name] for part in parts for name in _LAYERS if part.get(name))
    return max(found, default=0)


def _language_parts(
    config: Mapping[str, Any], place: str = ""
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The config and those nested in it, each with what stands before its fields' names."""
    yield place, config
    for key in _LANGUAGE:
        if isinstance(config.get(key), dict):
            yield from _language_parts(config[key], f"{place}{key}.")


def _objects(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The config and all objects that its fields are."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _objects(value)


def _check(file: Path, name: str, value: Any) -> None:
    if name in _POSITIVE and value is not None and (type(value) is not int or value < 1):
        raise CheckpointError(f"{file}: {name} is {_shown(value)}, not a whole number above 0")
    if name in _FACTORS and value is not None and (type(value) not in (int, float) or not value):
        raise CheckpointError(f"{file}: {name} is {_shown(value)}, not a number other than 0")
    if type(value) is not int:
        return
    most = _MOST_LAYERS if name in _LAYERS else _MOST
    if _SIZE.search(name) and value > most:
        raise CheckpointError(
            f"{file}: {name} is {_shown(value)}, and no model has more than {most:,}"
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def parse_json(content: bytes, *, has_constants: bool) -> Any:
    """The value that `content` holds; with `has_constants`, NaN and Infinity may be in it.

    Raises ValueError with what is wrong, in one line.
    """
    try:
        value = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=float if has_constants else _no_constant,
        )
    except UnicodeDecodeError:
        raise ValueError("not in UTF-8") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _SURROGATE.search(content):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError("holds half a surrogate pair") from None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises CheckpointError."""
    try:
        # Python writes them, and models' limits are written by Python.
        value = parse_json(read_regular(path, MOST_JSON), has_constants=True)
        # Whoever writes it anew, or looks through it, would run into Python's own limit.
        if is_deep(value):
            raise ValueError("nested too deeply")
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"{twice[:200]!r} is written twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def is_deep(value: Any) -> bool:
    """Tells whether `value` is nested deeper than any real file."""
    level = [value]
    for _ in range(_DEEPEST):
        nodes = [node for node in level if isinstance(node, (dict, list))]
        level = [c for n in nodes for c in (n.values() if isinstance(n, dict) else n)]
        if not level:
            return False
    return True

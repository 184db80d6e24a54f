"""A GGUF file's metadata and tensors, described as transformers would store the model.

Nothing that may move a number is left to a default of the library's: it comes from the file, or from
what llama.cpp does where the file says nothing, or the file is refused.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from scoremode.checkpoint.gguf.deepseek import DEEPSEEK
from scoremode.checkpoint.gguf.dense import DENSE, GEMMA
from scoremode.checkpoint.gguf.facts import (
    FACTOR_TENSORS,
    Facts,
    flag,
    integer,
    rope_parameters,
    shown,
)
from scoremode.checkpoint.gguf.header import TYPES, GgufHeader, GgufTensor
from scoremode.checkpoint.gguf.mixtures import MIXTURES, SHARED_EXPERTS
from scoremode.checkpoint.gguf.plain import PLAIN
from scoremode.checkpoint.gguf.table import Architecture, Layout
from scoremode.errors import CheckpointError, UnsupportedModel

# By what files have as `general.architecture`.
ARCHITECTURES: dict[str, Architecture] = {**DENSE, **GEMMA, **PLAIN}
# And of files that have an `expert_count`.
OF_EXPERTS: dict[str, Architecture] = {**MIXTURES, **DEEPSEEK, **SHARED_EXPERTS}
# Types of dense tensors, and what configs call them.
_FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TOKENS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
# Old converters' notes, and what only other ways to run a model use.
_IGNORED = ("tensor_data_layout", "pooling_type")
# Of which llama.cpp looks up rows as they are.
_TABLE = "token_embd"
# What NVFP4's linears have as well; the second one llama.cpp reads, and uses nowhere.
_BESIDE_BLOCKS = ("scale", _UNUSED := "input_scale")
_BLOCK = re.compile(r"blk\.(\d+)\.")


class Described(NamedTuple):
    """A model as transformers would have it.

    - `config`: a config.json.
    - `names`: ggml's name of each tensor → the library's, which ends in `weight`, `bias` or the name of
      a parameter. Tensors that the config has taken up are not in it.
    - `layouts`: of those, by the library's name, that lie otherwise.
    """

    config: dict[str, Any]
    names: dict[str, str]
    layouts: dict[str, Layout]


def describe(header: GgufHeader) -> Described:
    """Describes the model of a file, or of all files of a split together.

    Raises UnsupportedModel for an architecture, a key or a setting that is not known here,
    CheckpointError for what is missing or contradicts itself. Both name it.
    """
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"general.architecture is {shown(name)}, no name")
    facts = Facts(header, name, {tensor.name: tensor for tensor in header.tensors})
    # Mixtral's is Llama's, too.
    count = facts.get(integer("expert_count", 0))
    table = (OF_EXPERTS if count else ARCHITECTURES).get(name)
    if table is None:
        read = ", ".join(sorted(ARCHITECTURES | OF_EXPERTS))
        own = f" with {count} experts" if count else ""
        raise UnsupportedModel(f"GGUF architecture {shown(name)}{own} is not supported: {read} are")
    _fill(facts, table)
    names = _names(facts, table)
    layouts = {}
    for tensor, library in names.items():
        # One of a weight alone says so.
        make = table.layouts.get(_BLOCK.sub("blk.*.", tensor)) or table.layouts.get(
            _pattern(tensor)
        )
        if make is not None and not library.endswith(".scale"):
            layouts[library] = make(facts.config)
    return Described(facts.config, names, layouts)


def _fill(facts: Facts, table: Architecture) -> None:
    """Fills `facts.config`; refuses keys of the architecture that are not known."""
    config = facts.config
    config |= {"model_type": table.model_type, "architectures": [table.model]}
    config |= {field: facts.get(key) for field, key in table.fields.items()}
    config |= _heads(facts, table) if table.heads is None else table.heads(facts)
    config["vocab_size"] = _vocabulary(facts)
    if (positions := facts.get(integer("context_length", 1))) < 1:
        raise CheckpointError(f"{facts.architecture}.context_length is {positions}")
    config["tie_word_embeddings"] = "output.weight" not in facts.tensors
    for field, key in _TOKENS.items():
        token = facts.header.metadata.get(key)
        within = type(token) is int and token < config["vocab_size"]
        config[field] = token if within else None
    config["dtype"] = _dtype(facts)
    config |= table.settings(facts)
    facts.expect(flag("attention.causal"), True)
    if not facts.get(integer("expert_count", 0)):
        facts.expect(integer("expert_used_count"), 0)
    facts.ignore((*_IGNORED, *table.ignored))
    if unknown := facts.unasked():
        values = facts.header.metadata
        listed = ", ".join(f"{key} ({shown(values[key])})" for key in unknown[:20])
        raise UnsupportedModel(
            f"metadata that is not known, and might move every number: {listed}; what moves none, "
            "gguf-new-metadata --remove-metadata KEY takes out"
        )


def _heads(facts: Facts, table: Architecture) -> dict[str, Any]:
    """The fields of heads, and of how they rotate."""
    heads = facts.get(integer("attention.head_count"))
    keys = facts.get(integer("attention.head_count_kv", heads))
    if heads < 1 or keys < 1 or heads % keys:
        raise CheckpointError(
            f"{facts.architecture}.attention.head_count is {heads}, and head_count_kv {keys}"
        )
    found: dict[str, Any] = {table.keys: keys}
    head_dim = _head_dim(facts, heads)
    if table.head_dim:
        found["head_dim"] = head_dim
    elif head_dim * heads != facts.get(integer("embedding_length")):
        raise UnsupportedModel(
            f"{facts.architecture}.attention.key_length is {head_dim}, and {heads} heads of that are "
            "not the hidden size: not supported"
        )
    if table.rope:
        found["rope_parameters"] = rope_parameters(facts, head_dim, partial=table.partial)
    return found


def _head_dim(facts: Facts, heads: int) -> int:
    hidden = facts.get(integer("embedding_length"))
    head_dim = facts.get(integer("attention.key_length", hidden // heads))
    values = facts.get(integer("attention.value_length", head_dim))
    if head_dim < 1:
        raise CheckpointError(f"{facts.architecture}.attention.key_length is {head_dim}")
    if values != head_dim:
        raise UnsupportedModel(
            f"heads of {head_dim} for keys and {values} for values: not supported"
        )
    return head_dim


def _vocabulary(facts: Facts) -> int:
    """The number of rows that the embedding has."""
    table = facts.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise CheckpointError("there is no tensor token_embd.weight, of two dimensions")
    rows = table.shape[0]
    if (said := facts.get(integer("vocab_size", rows))) != rows:
        raise CheckpointError(
            f"{facts.architecture}.vocab_size is {said}, and {table.name} has {rows} rows"
        )
    tokens = facts.header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != rows:
        # llama.cpp doesn't load it either.
        raise CheckpointError(
            f"tokenizer.ggml.tokens are {len(tokens):,}, and {table.name} has {rows:,} rows"
        )
    return rows


def _dtype(facts: Facts) -> str:
    """The dtype of `--dtype auto`: the dense matrices' type, bfloat16 where any is packed."""
    matrices: list[GgufTensor] = [t for t in facts.tensors.values() if len(t.shape) > 1]
    types = Counter(tensor.type for tensor in matrices)
    if not types or set(types) - set(_FLOATS):
        return "bfloat16"
    return _FLOATS[types.most_common(1)[0][0]]


def _pattern(tensor: str) -> str:
    """`blk.*.attn_q` of `blk.7.attn_q.weight`."""
    return _BLOCK.sub("blk.*.", tensor).rpartition(".")[0]


def _names(facts: Facts, table: Architecture) -> dict[str, str]:
    known = table.names(facts) if callable(table.names) else table.names
    found: dict[str, str] = {}
    for tensor in facts.tensors.values():
        if tensor.name in FACTOR_TENSORS:
            continue
        library = _library(tensor.name, known)
        home, _, suffix = tensor.name.rpartition(".")
        beside = facts.tensors.get(f"{home}.weight")
        if suffix in _BESIDE_BLOCKS and (home == _TABLE or not _is_packed(beside)):
            library = None
        if library is None:
            raise CheckpointError(
                f"{tensor.file}: tensor {tensor.name} is none that architecture "
                f"{facts.architecture} has here: not supported"
            )
        if suffix != _UNUSED:
            found[tensor.name] = library
    return found


def _is_packed(tensor: GgufTensor | None) -> bool:
    return tensor is not None and TYPES[tensor.type].is_packed


def _library(tensor: str, names: Mapping[str, str]) -> str | None:
    """The library's name, None for a tensor that has none: by the whole of its name, or a module's."""
    block = _BLOCK.match(tensor)
    number = block[1] if block else ""
    pattern = _pattern(tensor)
    suffix = tensor.rpartition(".")[2]
    if (whole := names.get(f"{pattern}.{suffix}")) is not None:
        return whole.replace("*", number)
    module = names.get(pattern)
    if module is None or suffix not in ("weight", "bias", *_BESIDE_BLOCKS):
        return None
    return f"{module.replace('*', number)}.{suffix}"

"""Suspects in a quantized model's own files: linears out of line with their peers, scales that lie a
group off, fields of the config and special tokens that are not the base's.

A quantization changes every weight, by about as much in one layer as in the next. What is wrong in the
files is told by what no quantization does: a linear several times as far from the base's as the others
of its kind, or groups whose size is that of their neighbor in the base. A model whose scales or
rotations were moved from module to module (AWQ, SmoothQuant, QuaRot) is none of these: factors of a
linear's inputs and outputs are fitted before it is compared, and what a rotation does to one linear it
does to all of its kind.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

import torch

from scoremode.checkpoint.files import Checkpoint
from scoremode.checkpoint.safetensors_files import FLOATS
from scoremode.checkpoint.tokenizer import checkpoint_tokenizer, has_tokenizer
from scoremode.engines.torch.builder import is_gguf_checkpoint
from scoremode.engines.torch.model.architecture import find_architecture
from scoremode.engines.torch.weights.slot import Source, decoded
from scoremode.schemes.base import Dense, Scheme, Scratch
from scoremode.schemes.resolve import Schemes, dense_of, resolve
from scoremode.text.tokenizer import Tokenizer

Kind = Literal["linear", "scales", "config", "tokenizer"]
# Of a linear's relative error: to the median of its peers, and by itself. Rounding to 4 bits leaves
# 0.1, to 3 bits 0.2, to 8 bits less than 0.03.
_TIMES, _LEAST, _PEERS = 3.0, 0.08, 3
# Of logarithms of groups' factors: with those of the neighbor's size to their own; their spread; and
# how many there are at least.
_CORRELATION, _SPREAD, _FEWEST = 0.8, 0.05, 16
# Of a linear's size, in median deviations of its peers'.
_SPREADS = 10
# A layer's or an expert's number.
_NUMBER = re.compile(r"\.\d+(?=\.|$)")
# Fields of a config that move scores, and are no size of a tensor.
_MOVING = (
    *("rope_theta", "rope_parameters", "rope_scaling", "partial_rotary_factor", "rotary_pct"),
    *(
        "rope_local_base_freq",
        "rotary_emb_base",
        "no_rope_layers",
        "alibi",
        "position_embedding_type",
    ),
    *("sliding_window", "use_sliding_window", "max_window_layers", "layer_types"),
    *("sliding_window_pattern", "attention_chunk_size", "attn_temperature_tuning", "attn_scale"),
    *("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"),
    *("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *(
        "logit_scale",
        "scale_attn_weights",
        "scale_embedding",
        "scale_emb",
        "scale_depth",
        "use_qk_norm",
    ),
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
    *(
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "swiglu_limit",
        "tie_word_embeddings",
    ),
    *(
        "num_experts_per_tok",
        "norm_topk_prob",
        "routed_scaling_factor",
        "scoring_func",
        "topk_method",
    ),
    *("n_group", "topk_group", "moe_topk", "moe_k", "use_parallel_residual"),
)


@dataclass(frozen=True)
class Suspect:
    """Something in the model's files that may be wrong.

    - `kind`: `linear`, one out of line; `scales`, those of groups off; `config`, `tokenizer`.
    - `name`: of the module or the field; `words`: what is the matter, with its value and the base's.
    """

    kind: Kind
    name: str
    words: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Deviation:
    """How far a linear is from the base's.

    - `error`: ‖W − rBs‖ / ‖W‖ of its weight W and the base's B, r and s the factors of its outputs and
      inputs that fit best. `size`: ‖W‖ / ‖B‖.
    - `neighbor`: whose size its groups have: `before`, `after`, or None, which is right; `along`:
      `columns`, or `rows`.
    """

    name: str
    kind: str
    label: str
    error: float
    size: float
    neighbor: str | None = None
    along: str | None = None


def suspects(
    model: Checkpoint, base: Checkpoint, *, trust_remote_code: bool = False
) -> list[Suspect]:
    """All of `model` beside `base`, of which it is a quantization. Each weight of both is read once."""
    return [
        *odd_fields(model, base, trust_remote_code=trust_remote_code),
        *odd_tokens(model, base),
        *odd_linears(list(deviations(model, base))),
    ]


def odd_fields(
    model: Checkpoint, base: Checkpoint, *, trust_remote_code: bool = False
) -> list[Suspect]:
    """Fields of the config that move scores and are not the base's, as the library reads both: what one
    config leaves to a default and the other one writes is the same.

    A GGUF file has keys of its own, of which its config is made: what only one of both says, or says in
    another form (Phi 3's `attention_factor`, Mistral's window that no layer uses), is no suspect."""
    ours, theirs = (
        find_architecture(c, trust_remote_code=trust_remote_code).config.get_text_config().to_dict()
        for c in (model, base)
    )
    made = is_gguf_checkpoint(model) != is_gguf_checkpoint(base)
    if made:
        ours, theirs = _of_one_rope(ours, theirs), _of_one_rope(theirs, ours)
    return [
        Suspect("config", name, f"{name} is {_shown(own)}, and the base's {_shown(other)}")
        for name, own, other in _differing(ours, theirs)
        if not made or type(own) is type(other)
    ]


def _of_one_rope(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The config without its rotary parameters where the other one's are of another type: one may say
    as a base what the other one scales (Hunyuan's `alpha`)."""
    rope = [(c.get("rope_parameters") or {}).get("rope_type") for c in (config, other)]
    return {k: v for k, v in config.items() if k != "rope_parameters" or rope[0] == rope[1]}


def _differing(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], inside: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    names = _MOVING if not inside else sorted({*ours, *theirs})
    for name in names:
        own, other = ours.get(name), theirs.get(name)
        if isinstance(own, Mapping) and isinstance(other, Mapping):
            yield from _differing(own, other, f"{inside}{name}.")
        elif own != other:
            yield f"{inside}{name}", own, other


def odd_tokens(model: Checkpoint, base: Checkpoint) -> list[Suspect]:
    """Another BOS than the base's, and other tokens that are put around every text."""
    if not (has_tokenizer(model.path) and has_tokenizer(base.path)):
        return []
    ours, theirs = (checkpoint_tokenizer(c.path) for c in (model, base))

    def named(tokenizer: Tokenizer, ids: Sequence[int | None]) -> str:
        said = [f"{i} ({tokenizer.backend.id_to_token(i)!r})" for i in ids if i is not None]
        return ", ".join(said) or "none"

    found = []
    for name, own, other in (
        ("BOS", [ours.bos], [theirs.bos]),
        ("before a text", *(t.added[0] for t in (ours, theirs))),
        ("behind a text", *(t.added[1] for t in (ours, theirs))),
    ):
        if (said := named(ours, own)) != (base_said := named(theirs, other)):
            what = "its BOS is" if name == "BOS" else f"its tokenizer puts {name}"
            found.append(Suspect("tokenizer", name, f"{what} {said}, and the base's {base_said}"))
    return found


def odd_linears(found: Sequence[Deviation]) -> list[Suspect]:
    """Linears whose groups have their neighbor's size, and those out of line with their peers: all of
    their kind and format, or of their format where these are few."""
    by_kind: dict[tuple[str, str], list[Deviation]] = defaultdict(list)
    by_format: dict[str, list[Deviation]] = defaultdict(list)
    for each in found:
        by_kind[each.kind, each.label].append(each)
        by_format[each.label].append(each)
    odd = []
    for each in found:
        if each.neighbor:
            unit = "group" if each.along == "columns" else "row"
            words = f"its scales are those of the {unit} {each.neighbor}"
            odd.append(Suspect("scales", each.name, f"{words} (relative error {each.error:.2g})"))
            continue
        peers = by_kind[each.kind, each.label]
        peers = peers if len(peers) > _PEERS else by_format[each.label]
        if len(peers) > _PEERS and (words := _out_of_line(each, peers)):
            odd.append(Suspect("linear", each.name, words))
    return odd


def _out_of_line(one: Deviation, peers: Sequence[Deviation]) -> str | None:
    usual = median(peer.error for peer in peers)
    if one.error > max(_LEAST, _TIMES * usual):
        return f"relative error {one.error:.2g}, and the median of its peers is {usual:.2g}"
    sizes = [math.log(max(peer.size, 1e-9)) for peer in peers]
    size = median(sizes)
    # Where scales were moved from module to module, all have other sizes.
    spread = median(abs(each - size) for each in sizes)
    if abs(math.log(max(one.size, 1e-9)) - size) > max(_SPREAD, _SPREADS * spread):
        peers_size = f"the median of its peers is {math.exp(size):.3g}"
        return f"{one.size:.3g} times the base's size, and {peers_size}"
    return None


def deviations(model: Checkpoint, base: Checkpoint) -> Iterator[Deviation]:
    """Of every matrix that both have under one name, in one shape; in float32, one at a time."""
    ours, theirs = resolve(model), resolve(base)
    scratch = Scratch()
    for parameter, source in _matrices(model, ours).items():
        other = _matrix(base, theirs, parameter)
        if other is None or parameter in {*model.layouts, *base.layouts}:
            continue
        shape = tuple(source.scheme.shape)
        if tuple(other.scheme.shape) != shape:
            continue
        own, wanted = (
            decoded(s, role, {n: c.read(n) for n in s.tensor_names().values()}, _FLOAT, scratch)
            for s, role, c in ((source, "own", model), (other, "base", base))
        )
        module, columns = parameter.removesuffix(".weight"), shape[-1]
        own, wanted = (t.reshape(-1, columns) for t in (own, wanted))
        error, size = _distance(own, wanted)
        blocks = _blocks(source.scheme, columns)
        found = next(filter(None, (_neighbor(own, wanted, *block) for block in blocks)), None)
        neighbor, along = found or (None, None)
        kind = _NUMBER.sub("", module).rpartition(".")[2]
        yield Deviation(module, kind, source.scheme.label, error, size, neighbor, along)


_FLOAT = torch.empty(0)


def _matrices(checkpoint: Checkpoint, schemes: Schemes) -> dict[str, Source]:
    """Parameter → what it is decoded from, of all that are matrices."""
    found = {
        schemes.parameter_of(module): Source(schemes.home_of(module), scheme)
        for module, scheme in schemes.quantized.items()
    }
    for name, info in checkpoint.tensors.items():
        if name.endswith(".weight") and len(info.shape) == 2 and info.dtype in FLOATS:
            found.setdefault(name, Source(name.rpartition(".")[0], dense_of(info)))
    return found


def _matrix(checkpoint: Checkpoint, schemes: Schemes, parameter: str) -> Source | None:
    module = schemes.module_of(parameter)
    if module is not None:
        return Source(schemes.home_of(module), schemes.quantized[module])
    info = checkpoint.tensors.get(parameter)
    if info is None or info.dtype not in FLOATS or len(info.shape) < 2:
        return None
    return Source(parameter.rpartition(".")[0], dense_of(info))


def _blocks(scheme: Scheme, columns: int) -> list[tuple[int, int]]:
    """Rows × columns that may share a scale in this format; none of a format without scales."""
    codes = getattr(scheme, "codes", None)
    if codes is None or isinstance(scheme, Dense):
        return []
    if codes.group is None and codes.type == "float":
        # NVFP4 and MXFP4, whose codes have their groups' scales in them.
        return [(1, 16), (1, 32)]
    return [(codes.rows, codes.group or columns)]


def _distance(weight: torch.Tensor, base: torch.Tensor) -> tuple[float, float]:
    """`Deviation.error` and `size` of float32 [O, I]."""
    size, base_size = float(weight.norm()), float(base.norm())
    if not (size > 0 and base_size > 0):
        return float(size != base_size), float(size == base_size)
    fitted = base
    for axis in (0, 1, 0):
        power = (fitted * fitted).sum(axis, keepdim=True)
        fitted = fitted * ((weight * fitted).sum(axis, keepdim=True) / power.clamp(min=1e-30))
    return float((weight - fitted).norm()) / size, size / base_size


def _neighbor(
    weight: torch.Tensor, base: torch.Tensor, rows: int, columns: int
) -> tuple[str, str] | None:
    """Whose size a weight's blocks have: of those before or after, along its columns or its rows."""
    whole = [size - size % step for size, step in zip(base.shape, (rows, columns), strict=True)]
    own, other = (
        t[: whole[0], : whole[1]].unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
        for t in (weight, base)
    )
    # [blocks, rows, blocks, columns]
    factor = (own * other).sum((1, 3)) / (other * other).sum((1, 3)).clamp(min=1e-30)
    height = other.abs().amax((1, 3))
    there = (factor > 0) & (height > 0)
    level, height = (x.clamp(min=1e-30).log() for x in (factor, height))
    if there.sum() < _FEWEST or not there.float().mean() > 0.9 or level[there].std() < _SPREAD:
        return None
    for axis, along in ((1, "columns"), (0, "rows")):
        for step, name in ((1, "before"), (-1, "after")):
            moved = (height.roll(step, axis) - height)[there]
            both = torch.stack([level[there], moved])
            if moved.std() > 0 and torch.corrcoef(both)[0, 1] > _CORRELATION:
                return name, along
    return None


def _shown(value: Any) -> str:
    return "not there" if value is None else f"{value!r}"

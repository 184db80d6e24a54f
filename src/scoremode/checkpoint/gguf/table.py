"""An architecture's table: what a GGUF file's metadata and tensors are in the library's terms.

Layouts: how a GGUF file stores a tensor otherwise than the library's parameter has it.

llama.cpp's converter moves rows for its own kernels, and a row keeps its blocks, so that moving them
back is exact on packed rows as on dense ones. Source: `conversion/` of llama.cpp, by architecture.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scoremode.checkpoint.gguf.facts import Facts, Key, flag, integer, real
from scoremode.errors import CheckpointError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layout:
    """The changes to a stored tensor [O, …] that are undone, first the order of its outputs.

    - `turns`: of so many heads the halves that a rotation pairs take turns, row by row; the library has
      one half after the other. 0 for none.
    - `groups`: queries, keys and values lie one after the other; the library has them in so many
      groups, of queries and then a key's and a value's head each of `head_dim` rows. 0 for none.
    - `less`: what values are stored plus: norms that the library adds one to hold the sum. Exact for
      any weight that one was added to in float32.
    - `transposed`: whether the library's parameter is [I, O].
    - `row`: whether it is [1, I], of which llama.cpp's tools keep [I] alone.
    """

    turns: int = 0
    groups: int = 0
    head_dim: int = 0
    less: float = 0.0
    transposed: bool = False
    row: bool = False

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The library's shape of what is stored in this one. Raises ValueError where it can't be."""
        if self.turns and (not stored or stored[0] % (2 * self.turns)):
            raise ValueError(f"{list(stored)} has no pairs of halves for {self.turns} heads")
        if self.groups and (not stored or stored[0] % (self.groups * self.head_dim)):
            raise ValueError(
                f"{list(stored)} is not {self.groups} groups of heads of {self.head_dim}"
            )
        if self.row and len(stored) == 1:
            return (1, *stored)
        return tuple(reversed(stored)) if self.transposed else stored

    def apply(self, stored: "torch.Tensor") -> "torch.Tensor":
        """The rows of `stored` [O, …], packed bytes or values, in the library's order.

        Moves whole rows alone: `less` and `transposed` are of values, and for who has decoded them.
        """
        import torch

        if self.turns:
            halves = stored.view(self.turns, -1, 2, *stored.shape[1:])
            return halves.transpose(1, 2).reshape(stored.shape)
        if self.groups:
            heads = stored.view(-1, self.head_dim, *stored.shape[1:])
            queries, keys, values = heads.split(
                (len(heads) - 2 * self.groups, self.groups, self.groups)
            )
            queries = queries.view(self.groups, -1, *heads.shape[1:])
            grouped = torch.cat((queries, keys.unsqueeze(1), values.unsqueeze(1)), dim=1)
            return grouped.reshape(stored.shape)
        return stored[None] if self.row and stored.dim() == 1 else stored


Names = Mapping[str, str] | Callable[[Facts], Mapping[str, str]]


@dataclass(frozen=True)
class Architecture:
    """An architecture that llama.cpp calls one thing, and transformers another.

    - `model_type`, `model`: the config's, and its class.
    - `fields`: the config's fields that are a key of the metadata each. Found for all besides are
      `vocab_size`, `tie_word_embeddings`, special tokens, and what the next ones say.
    - `names`: ggml's tensors → the library's modules or parameters, `*` for a layer's number; where
      other tensors decide, by them.
    - `layouts`: of ggml's tensors that lie otherwise, by the config.
    - `head_dim`: whether the config has it; if not, heads share the hidden size.
    - `keys`: what the config calls the number of heads of keys and values.
    - `rope`: whether positions rotate, and the config has `rope_parameters`; `partial`: whether the
      library's model may rotate a part of each head. Many ignore that they are asked to.
    - `heads`: the fields of heads and rotation, where they are others than those.
    - `constants`: further fields, the same for every file; `biases`: fields that say whether there is
      such a tensor; `settings`: fields by what else the file says, which overrule.
    - `ignored`: keys of the metadata without an effect.
    """

    model_type: str
    model: str
    fields: Mapping[str, Key]
    names: Names
    layouts: Mapping[str, Callable[[Mapping[str, Any]], Layout]] = field(default_factory=dict)
    head_dim: bool = False
    keys: str = "num_key_value_heads"
    rope: bool = True
    partial: bool = False
    heads: Callable[[Facts], Mapping[str, Any]] | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    settings: Callable[[Facts], Mapping[str, Any]] = lambda _: {}
    ignored: frozenset[str] = frozenset()


# What transformers calls what nearly all have.
SIZES = {
    "max_position_embeddings": integer("context_length"),
    "hidden_size": integer("embedding_length"),
    "intermediate_size": integer("feed_forward_length"),
    "num_hidden_layers": integer("block_count"),
    "num_attention_heads": integer("attention.head_count"),
}
NORMS = SIZES | {"layer_norm_eps": real("attention.layer_norm_epsilon")}
RMS = SIZES | {"rms_norm_eps": real("attention.layer_norm_rms_epsilon")}
MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = "model.layers.*"


def blocks(home: str, names: Mapping[str, str]) -> dict[str, str]:
    """Names of each block's tensors → the library's below `home`, a layer's place with its number."""
    return {f"blk.*.{tensor}": f"{home}.{module}" for tensor, module in names.items()}


ATTENTION = blocks(
    LAYER,
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
    },
)
GATED = blocks(
    LAYER,
    {
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
)
LLAMA = MODEL | ATTENTION | GATED
QK_NORMS = blocks(LAYER, {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})
SILU = {"hidden_act": "silu"}
BIAS = {"attention_bias": "attn_q.bias"}
BIASES = BIAS | {"mlp_bias": "ffn_up.bias"}
# Where llama.cpp rotates neighbours and the library halves.
TURNS = {
    "blk.*.attn_q": lambda config: Layout(turns=config["num_attention_heads"]),
    "blk.*.attn_k": lambda config: Layout(turns=config["num_key_value_heads"]),
}


def plus_one(names: Iterable[str]) -> dict[str, Callable[[Mapping[str, Any]], Layout]]:
    """The layouts of norms among `names`: they are stored plus the one that the library adds."""
    layout = Layout(less=1.0)
    return {name: lambda _: layout for name in names if name.endswith("_norm")}


def window(facts: Facts, default: int | None = None) -> int:
    """The positions of a sliding window; `default`: where the file says none, None if it has to.

    A default of 0 stands for no window, and the file may say that, too. Raises CheckpointError.
    """
    key = "attention.sliding_window"
    found = facts.get(integer(key) if default is None else integer(key, default))
    if found < (1 if default != 0 else 0):
        raise CheckpointError(f"{facts.architecture}.{key} is {found}")
    return found


def layer_types(facts: Facts, period: int) -> list[str]:
    """The kinds of layers, which attend to a sliding window or not: all but each last of `period`, if
    the file doesn't say it, by a period or layer by layer."""
    key = "attention.sliding_window_pattern"
    if facts.is_list(key):
        slides = facts.per_layer(flag(key)) or []
    else:
        period = facts.get(integer(key, period))
        slides = [period == 0 or n % period < period - 1 for n in range(facts.layers)]
    return ["sliding_attention" if one else "full_attention" for one in slides]

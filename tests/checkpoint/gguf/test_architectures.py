"""Descriptions of GGUF files: every parameter by the gguf package's own names, and what is refused."""

import gguf
import numpy as np
import pytest
import torch
from support.gguf.headers import HEADS, KEYS, LLAMA, header
from support.gguf.tiny_settings import SAID, TINY
from transformers import AutoConfig, AutoModelForCausalLM

from scoremode.checkpoint.gguf.header import GgufHeader
from scoremode.checkpoint.gguf.open import ARCHITECTURES, describe
from scoremode.checkpoint.gguf.table import Layout
from scoremode.errors import CheckpointError, UnsupportedModel

_SUFFIXES = (".weight", ".bias")


@pytest.mark.parametrize("architecture", sorted(TINY))
def test_every_parameter_has_the_name_that_the_gguf_package_gives_it(architecture):
    config = AutoConfig.for_model(ARCHITECTURES[architecture].model_type, **TINY[architecture])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert type(model).__name__ == ARCHITECTURES[architecture].model
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    parameters = dict(model.named_parameters())

    def named(name: str) -> str:
        # llama.cpp's converter takes Bloom's first part away.
        found = (names.get_name(n, _SUFFIXES) for n in (name, name.removeprefix("transformer.")))
        return next(filter(None, found), "")

    stored = {named(name): name for name in parameters}
    assert "" not in stored and len(stored) == len(parameters)
    tensors = {name: tuple(parameters[own].shape) for name, own in stored.items()}
    assert describe(header(architecture, SAID.get(architecture), tensors)).names == stored


def test_llama():
    found = describe(header())
    assert found.config == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "rms_norm_eps": 1e-5,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "vocab_size": 80,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    assert found.names["blk.0.ffn_down.weight"] == "model.layers.0.mlp.down_proj.weight"
    assert found.layouts == {
        "model.layers.0.self_attn.q_proj.weight": Layout(turns=HEADS),
        "model.layers.0.self_attn.k_proj.weight": Layout(turns=KEYS),
    }


def test_what_tensors_alone_say():
    more = {
        "output.weight": (80, 64),
        "blk.0.attn_q.bias": (64,),
        "blk.0.ffn_up.bias": (96,),
    }
    found = describe(header(tensors=LLAMA | more, types={"output.weight": "F16"}))
    assert not found.config["tie_word_embeddings"]
    assert found.config["attention_bias"] and found.config["mlp_bias"]
    assert found.config["dtype"] == "float32"
    assert found.layouts["model.layers.0.self_attn.q_proj.bias"] == Layout(turns=HEADS)
    packed = describe(header(types={"blk.0.ffn_up.weight": "Q4_K"}))
    assert packed.config["dtype"] == "bfloat16"


def test_special_tokens_are_those_of_the_vocabulary():
    head = header()
    metadata = {
        **head.metadata,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.eos_token_id": 80,
    }
    config = describe(head._replace(metadata=metadata)).config
    assert (config["bos_token_id"], config["eos_token_id"]) == (3, None)


def test_architectures_that_are_not_read():
    with pytest.raises(
        UnsupportedModel, match=r"GGUF architecture 'rwkv7' is not supported: .*llama"
    ):
        describe(header("rwkv7"))
    with pytest.raises(CheckpointError, match=r"general.architecture is None"):
        describe(header()._replace(metadata={}))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"attention.unheard_of": 3}, r"not known.*llama.attention.unheard_of \(3\)"),
        ({"attention.causal": False}, "attention.causal is False"),
        ({"expert_used_count": 8}, "expert_used_count is 8"),
        ({"attention.value_length": 8}, "heads of 16 for keys and 8 for values"),
        ({"attention.head_count": np.array([4, 2]), "block_count": 2}, "is a list"),
    ],
)
def test_settings_that_are_refused(said, words):
    with pytest.raises(UnsupportedModel, match=words):
        describe(header(metadata=said))


def test_files_that_contradict_themselves():
    for said, words in (
        ({"block_count": None}, "the metadata has no llama.block_count"),
        ({"attention.head_count": 0}, "attention.head_count is 0"),
        ({"attention.head_count_kv": 3}, "attention.head_count is 4, and head_count_kv 3"),
        ({"attention.key_length": 0, "attention.value_length": 0}, "key_length is 0"),
        ({"context_length": 0}, "llama.context_length is 0"),
        ({"vocab_size": 81}, "llama.vocab_size is 81, and token_embd.weight has 80 rows"),
        ({"attention.layer_norm_rms_epsilon": "x"}, "not a number"),
    ):
        with pytest.raises(CheckpointError, match=words):
            describe(header(metadata=said))
    head = header()
    tokens = {**head.metadata, "tokenizer.ggml.tokens": ["a"] * 79}
    with pytest.raises(CheckpointError, match=r"tokens are 79, and token_embd\.weight has 80 rows"):
        describe(head._replace(metadata=tokens))
    with pytest.raises(CheckpointError, match=r"no tensor token_embd\.weight"):
        describe(header(tensors={}))
    for unknown in ("blk.0.attn_magic.weight", "blk.0.attn_q.scale", "v.blk.0.attn_q.weight"):
        with pytest.raises(
            CheckpointError, match=f"tensor {unknown} is none that architecture llama"
        ):
            describe(header(tensors=LLAMA | {unknown: (4, 4)}))


def test_factors_beside_blocks():
    """NVFP4's: one of a linear's is read, one of its input isn't; of a dense linear neither."""
    beside = {f"blk.0.attn_q.{name}": (1,) for name in ("scale", "input_scale")}
    packed = {"blk.0.attn_q.weight": "NVFP4"}
    found, plain = describe(header(tensors=LLAMA | beside, types=packed)), describe(header())
    name = "model.layers.0.self_attn.q_proj.scale"
    assert found.names == plain.names | {"blk.0.attn_q.scale": name}
    assert found.layouts == plain.layouts
    for suffix in ("scale", "input_scale"):
        with pytest.raises(CheckpointError, match=rf"tensor blk.0.attn_q.{suffix} is none that"):
            describe(header(tensors=LLAMA | {f"blk.0.attn_q.{suffix}": (1,)}))
    packed = {"token_embd.weight": "NVFP4"}
    with pytest.raises(CheckpointError, match=r"tensor token_embd.scale is none that"):
        describe(header(tensors=LLAMA | {"token_embd.scale": (1,)}, types=packed))


def test_heads_that_share_the_hidden_size_where_the_config_has_no_size_of_theirs():
    said = {"attention.key_length": 32, "attention.value_length": 32}
    with pytest.raises(UnsupportedModel, match=r"qwen2.attention.key_length is 32, and 4 heads"):
        describe(header("qwen2", said))
    assert describe(header("qwen3", said)).config["head_dim"] == 32


_WILD = [
    *(0, 1, -1, 7, 2**63 - 1, 2**64 - 1, 0.0, -1.5, 1e-300, 1e300, float("nan"), float("-inf")),
    *(True, False, "", "linear", "yarn", "x" * 5000, [], ["a"] * 5000, [np.arange(3)]),
    *(np.arange(0), np.ones(1, int), np.arange(5000.0), np.array([True])),
]


_SAID = {
    "rope.freq_base": 1e4,
    "rope.dimension_count": 16,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": 2,
    "logit_scale": 1.0,
}


def is_described(metadata) -> bool:
    """Whether a file of this metadata is; if not, an error of ours says why."""
    embedding = [tensor for tensor in header().tensors if tensor.name == "token_embd.weight"]
    try:
        describe(GgufHeader(metadata, embedding))
    except (CheckpointError, UnsupportedModel) as error:
        assert 10 < len(str(error)) <= 1010
        return False
    return True


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_no_value_of_the_metadata_is_believed(architecture):
    known = dict(header(architecture, SAID.get(architecture)).metadata)
    assert is_described(known)
    for key, value in _SAID.items():
        more = known | {f"{architecture}.{key}": value}
        if is_described(more):
            known = more
    assert len(known) > 10 or architecture in ("bloom", "gpt2", "starcoder")
    for key in known:
        for value in _WILD:
            is_described(known | {key: value})

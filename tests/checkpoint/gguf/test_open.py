"""GGUF files as checkpoints: names, shapes and config."""

import pytest
import torch
from support.gguf.files import HEADS, SHAPES, contents, llama, split

from scoremode.checkpoint.files import open_checkpoint
from scoremode.checkpoint.gguf.open import gguf_config, gguf_metadata
from scoremode.errors import CheckpointError, ScoremodeError, UnsupportedFormat, UnsupportedModel

TYPES = {
    "token_embd.weight": "Q8_0",
    "blk.0.attn_q.weight": "Q4_0",
    "blk.0.ffn_down.weight": "TQ2_0",
    "output.weight": "BF16",
}


def opened(folder, content: bytes):
    (folder / "x.gguf").write_bytes(content)
    return open_checkpoint(str(folder / "x.gguf"))


def refusal(folder, content: bytes, kind: type[ScoremodeError] = CheckpointError) -> str:
    with pytest.raises(kind) as error:
        opened(folder, content)
    assert str(error.value).count(f"{folder}/x.gguf") == 1
    return str(error.value).removeprefix(f"{folder}/x.gguf: ")


def test_tensors_have_the_librarys_names(tmp_path):
    checkpoint = opened(tmp_path, llama(TYPES))
    tensors = checkpoint.tensors
    assert len(tensors) == len(SHAPES)
    found = tensors["model.embed_tokens.Q8_0"]
    assert (found.dtype, found.shape) == ("U8", (80, 68))
    found = tensors["model.layers.0.self_attn.q_proj.Q4_0"]
    assert (found.dtype, found.shape, found.bytes) == ("U8", (64, 36), 64 * 36)
    assert (tensors["lm_head.weight"].dtype, tensors["lm_head.weight"].shape) == ("BF16", (80, 64))
    assert tensors["model.layers.0.input_layernorm.weight"].dtype == "F32"
    assert checkpoint.layouts["model.layers.0.self_attn.q_proj.weight"].turns == HEADS
    assert checkpoint.config["quantization_config"] == {"quant_method": "gguf"}
    assert checkpoint.quantization == {"quant_method": "gguf"}
    assert checkpoint.weight_files == [tmp_path / "x.gguf"]
    assert checkpoint.bytes == (tmp_path / "x.gguf").stat().st_size
    assert checkpoint.config_file == checkpoint.path == tmp_path / "x.gguf"
    assert not checkpoint.is_folder


def test_a_dense_file_has_no_quantization(tmp_path):
    checkpoint = opened(tmp_path, llama())
    assert checkpoint.quantization is None
    assert checkpoint.config["dtype"] == "float32"
    assert checkpoint.config == gguf_config(tmp_path / "x.gguf")


def test_a_split_is_one_checkpoint(tmp_path, tmp_path_factory):
    types = {"token_embd.weight": "Q8_0"}
    for name, content in split(types).items():
        (tmp_path / name).write_bytes(content)
    one, other = (
        open_checkpoint(str(tmp_path)),
        opened(tmp_path_factory.mktemp("one"), llama(types)),
    )
    assert one.path.name == "x-00001-of-00003.gguf"
    assert {name: t.shape for name, t in one.tensors.items()} == {
        name: t.shape for name, t in other.tensors.items()
    }
    assert all(torch.equal(one.read(name), other.read(name)) for name in one.tensors)
    assert one.config == other.config
    assert sorted(one.hash_files()) == [f"x-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert len(one.weight_files) == 2 and len(one.opened) == 3
    (tmp_path / "x-00001-of-00003.gguf").touch()
    with pytest.raises(CheckpointError, match=r"00001-of-00003\.gguf: was changed or replaced"):
        one.check_unchanged()


def test_a_changed_file_is_read_anew(tmp_path):
    opened(tmp_path, llama())
    assert gguf_metadata(tmp_path / "x.gguf")["general.name"] == "tiny"
    opened(tmp_path, llama({}, {"general.name": "another"}))
    assert gguf_metadata(tmp_path / "x.gguf")["general.name"] == "another"


def test_what_holds_no_model(tmp_path):
    words = refusal(tmp_path, llama({}, {"general.type": "adapter"}), UnsupportedFormat)
    assert words == "general.type is adapter: it holds no model"


def test_an_architecture_that_is_not_known(tmp_path):
    words = refusal(tmp_path, llama({}, {"general.architecture": "rwkv6"}), UnsupportedModel)
    assert words.startswith("GGUF architecture 'rwkv6' is not supported")


def test_sizes_that_no_model_has(tmp_path):
    assert "num_hidden_layers" in refusal(tmp_path, llama({}, {"llama.block_count": 1 << 31}))


def test_packed_values_that_are_no_matrix(tmp_path):
    words = refusal(tmp_path, llama({"output_norm.weight": "Q8_0"}), UnsupportedFormat)
    assert words == (
        "tensor output_norm.weight (model.norm.weight) is Q8_0 [64]: only matrices are decoded from "
        "blocks"
    )


def test_contents_are_those_of_the_file(tmp_path):
    checkpoint = opened(tmp_path, llama({"blk.0.attn_q.weight": "Q4_0"}))
    raw = contents({"blk.0.attn_q.weight": "Q4_0"})["blk.0.attn_q.weight"]
    assert checkpoint.read_bytes("model.layers.0.self_attn.q_proj.Q4_0") == raw

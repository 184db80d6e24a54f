"""Reads of GGUF files, and what tells them apart."""

import numpy as np
import pytest
import torch
from support.gguf.files import (
    METADATA,
    SHAPES,
    STRING,
    U32,
    U64,
    array,
    contents,
    file,
    info,
    llama,
    value,
)

from scoremode.checkpoint.files import open_checkpoint
from scoremode.errors import CheckpointError

TYPES = {"token_embd.weight": "Q8_0", "output.weight": "F16", "blk.0.attn_v.weight": "BF16"}
V = "model.layers.0.self_attn.v_proj.weight"


def opened(folder, content: bytes, name: str = "x.gguf"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return open_checkpoint(str(folder / name))


def test_tensors_are_the_files_bytes(tmp_path):
    checkpoint = opened(tmp_path, llama(TYPES))
    found = contents(TYPES)
    for name, dtype, theirs in (
        ("model.embed_tokens.Q8_0", torch.uint8, "token_embd.weight"),
        ("lm_head.weight", torch.float16, "output.weight"),
        (V, torch.bfloat16, "blk.0.attn_v.weight"),
        ("model.norm.weight", torch.float32, "output_norm.weight"),
    ):
        tensor = checkpoint.read(name)
        assert tensor.dtype == dtype
        assert tensor.shape == checkpoint.tensors[name].shape
        assert tensor.view(torch.uint8).numpy().tobytes() == found[theirs]
        assert checkpoint.read_bytes(name) == found[theirs]


def test_reads_are_views_of_one_mapping(tmp_path):
    checkpoint = opened(tmp_path, llama(TYPES))
    one, other = (checkpoint.read(name) for name in (V, "lm_head.weight"))
    apart = checkpoint.tensors["lm_head.weight"].begin - checkpoint.tensors[V].begin
    assert other.data_ptr() - one.data_ptr() == apart
    assert checkpoint.read(V).data_ptr() == one.data_ptr()
    # Written to, the file stays what it is.
    one.zero_()
    assert opened(tmp_path / "again", (tmp_path / "x.gguf").read_bytes()).read(V).any()


def test_values_at_odd_bytes_are_copied(tmp_path):
    infos, data = [], b""
    for name, raw in contents({}).items():
        infos.append(info(name, 0, SHAPES[name], len(data)))
        data += raw
    metadata = METADATA | {"general.alignment": 1}
    for extra in range(4):
        whole = file(metadata | {"general.name": "a" * extra}, infos, data, alignment=1)
        checkpoint = opened(tmp_path, whole)
        assert torch.equal(
            checkpoint.read("model.norm.weight"),
            torch.from_numpy(np.frombuffer(contents({})["output_norm.weight"], np.float32).copy()),
        )


def test_a_file_that_becomes_shorter(tmp_path):
    checkpoint = opened(tmp_path, llama(TYPES))
    file = checkpoint.path
    with file.open("r+b") as open_file:
        open_file.truncate(checkpoint.tensors["lm_head.weight"].begin + 7)
    for read in (checkpoint.read, checkpoint.read_bytes):
        with pytest.raises(
            CheckpointError, match=r"tensor lm_head\.weight: the file has become shorter"
        ):
            read("lm_head.weight")
    with pytest.raises(CheckpointError, match="was changed or replaced"):
        checkpoint.check_unchanged()
    file.unlink()
    fresh = opened(tmp_path, llama(TYPES))
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file}: No such file"):
        fresh.read(V)


def test_metadata_in_words(tmp_path):
    more = {"general.b": 3, "general.c": True, "general.d": array(U32, [1])}
    checkpoint = opened(tmp_path, llama({}, more))
    found = checkpoint.metadata()
    assert (found["general.name"], found["general.b"], found["general.c"]) == ("tiny", "3", "True")
    assert "general.d" not in found


def test_the_fingerprint_sees_all_metadata(tmp_path):
    tokens = array(STRING, ["a", "b"])
    variants = [
        {"general.t": tokens},
        {"general.t": array(STRING, ["ab"])},
        {"general.t": array(U32, [1, 2])},
        {"general.t": array(U64, [1, 2])},
        {"general.t": array(U32, [2, 1])},
        {"general.t": "a"},
        {"general.t": 1},
        {"general.t": 1.0},
        {"general.t": True},
        {"general.u": tokens},
        {"general.t": tokens, "general.name": "other"},
    ]
    prints = [
        opened(tmp_path / str(n), llama(TYPES, more)).fingerprint for n, more in enumerate(variants)
    ]
    assert len({*prints}) == len(variants)
    assert opened(tmp_path, llama(TYPES, {"general.t": tokens})).fingerprint == prints[0]


def test_the_fingerprint_sees_types(tmp_path):
    one = opened(tmp_path / "0", llama({"output.weight": "Q4_0"})).fingerprint
    assert one != opened(tmp_path / "1", llama({"output.weight": "Q4_1"})).fingerprint


def test_the_order_of_metadata_is_no_matter(tmp_path):
    pairs = {"general.x": 1, "general.y": value(U64, 2)}
    prints = {
        opened(tmp_path / str(n), llama({}, dict(items))).fingerprint
        for n, items in enumerate((pairs.items(), list(pairs.items())[::-1]))
    }
    assert len(prints) == 1


def test_only_the_file_is_hashed(tmp_path):
    checkpoint = opened(tmp_path, llama({}))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "modeling.py").write_text("")
    assert list(checkpoint.hash_files()) == ["x.gguf"]

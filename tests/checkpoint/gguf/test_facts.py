"""What metadata says: types, defaults, lists, and what nobody asked for."""

from pathlib import Path

import numpy as np
import pytest
from support.gguf.headers import facts

from scoremode.checkpoint.gguf.facts import Facts, flag, integer, real
from scoremode.checkpoint.gguf.header import GgufHeader, GgufTensor
from scoremode.errors import CheckpointError, UnsupportedModel


def test_a_float32_is_the_shortest_number_that_it_stands_for():
    found = facts({"a": float(np.float32(1e-5)), "b": 0.1, "c": 8})
    assert found.get(real("a")) == 1e-5
    # One of 64 bits is what it is.
    assert found.get(real("b")) == 0.1
    assert found.get(real("c")) == 8.0


def test_what_is_missing_or_of_another_type():
    found = facts({"a": "x" * 200, "b": True, "n": float("nan")})
    assert found.get(integer("none", 7)) == 7
    with pytest.raises(CheckpointError, match=r"the metadata has no llama.none$"):
        found.get(integer("none"))
    with pytest.raises(CheckpointError, match=r"llama.a is 'x{79}…, not a whole number$"):
        found.get(integer("a"))
    with pytest.raises(CheckpointError, match=r"llama.b is True, not a number"):
        found.get(real("b"))
    with pytest.raises(CheckpointError, match=r"llama.b is True, not a whole number"):
        found.get(integer("b"))
    with pytest.raises(CheckpointError, match=r"llama.n is nan, not a finite number"):
        found.get(real("n"))


def test_one_value_a_layer():
    found = facts({"block_count": 3, "same": np.full(3, 5), "differ": np.array([4, 5, 6])})
    assert found.get(integer("same")) == 5
    assert found.per_layer(integer("differ")) == [4, 5, 6]
    assert found.per_layer(integer("none")) is None
    with pytest.raises(UnsupportedModel, match=r"llama.differ is a list \(\[4, 5, 6\]\), not one"):
        found.get(integer("differ"))
    with pytest.raises(CheckpointError, match=r"not a value for each layer"):
        facts({"block_count": 2, "differ": np.array([4, 5, 6])}).per_layer(integer("differ"))
    with pytest.raises(CheckpointError, match=r"not true or false each"):
        found.per_layer(flag("differ"))


def test_no_value_for_no_layer():
    found = facts({"block_count": 0, "none": np.empty(0, np.int32)})
    with pytest.raises(UnsupportedModel, match=r"llama.none is a list \(\[\]\), not one value"):
        found.get(integer("none"))
    with pytest.raises(
        CheckpointError, match=r"llama.none is a list \(\[\]\), not a value for each"
    ):
        found.per_layer(integer("none"))


def test_values_that_are_expected():
    found = facts({"attention.causal": False})
    found.expect(integer("none"), 0)
    with pytest.raises(UnsupportedModel, match=r"llama.attention.causal is False: only True"):
        found.expect(flag("attention.causal"), True)


def test_what_nobody_asked_for():
    found = facts({"block_count": 3, "unheard.of": 1, "harmless": 2})
    found.ignore(["harmless"])
    own = [name.removeprefix("llama.") for name in found.header.metadata if "llama." in name]
    for name in set(own) - {"unheard.of", "harmless"}:
        found.get(real(name))
    assert found.unasked() == ["llama.unheard.of"]
    assert found.layers == 3


def test_values_of_a_tensor(tmp_path: Path):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"head" + np.array([1.0, 2.5, np.inf], "<f4").tobytes())

    def tensor(**changes):
        return GgufTensor("t", file, "F32", (2,), 8, 4)._replace(**changes)

    def values(info):
        return Facts(GgufHeader({}, []), "llama", {"t": info}).values("t")

    assert values(tensor()).tolist() == [1.0, 2.5]
    with pytest.raises(CheckpointError, match="not finite"):
        values(tensor(begin=8))
    with pytest.raises(CheckpointError, match="shorter"):
        values(tensor(begin=12))
    with pytest.raises(CheckpointError, match=r"tensor t is F16 \[2\], not a few F32"):
        values(tensor(type="F16"))


@pytest.mark.parametrize(
    ("key", "value", "matters"),
    [
        ("prism.hadamard.block_size", 32, True),
        ("prism.hadamard.version", 1, True),
        ("who.knows", 1.5, True),
        ("who.knows", "a rule", True),
        ("who.version", 2, True),
        ("general.rotation", "hadamard", True),
        ("quantize.rotated", True, True),
        ("adapter.lora.alpha", 16.0, True),
        ("diffusion.shift_logits", True, True),
        ("general.sampling.temp", 0.6, False),
        ("general.base_model.0.repo_url", "x", False),
        ("quantize.imatrix.chunks_count", 100, False),
        ("tokenizer.chat_template.tool_use", "x", False),
        ("split.count", 1, False),
        ("clip.has_vision_encoder", False, False),
        ("mradermacher.convert_type", "hf", False),
        ("somebody.quantized_by", "somebody", False),
        ("somebody.source.url", "x", False),
        ("llama.attention.sliding_window", 0, False),
        ("llama.attention.sliding_window", 4096, True),
        ("llama.attention.max_alibi_bias", 0.0, False),
        ("llama.unheard_of", 0, True),
    ],
)
def test_keys_that_may_change_what_weights_mean(key, value, matters):
    found = Facts(GgufHeader({key: value}, []), "llama", {})
    assert found.unasked() == ([key] if matters else [])

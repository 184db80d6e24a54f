"""Mixtures whose experts are in blocks, against files of the same values in float32; and what other
versions and options of llama.cpp's tools write."""

import numpy as np
import pytest
from support.gguf.golden import in_blocks, make_pair, rewrite
from support.gguf.models import MODELS
from support.gguf.round_trip import difference

from scoremode.checkpoint.files import open_checkpoint
from scoremode.schemes.fused_experts import Stacked
from scoremode.schemes.resolve import resolve

MIXTURES = [n for n in MODELS if "moe" in n or n.startswith(("mixtral", "gpt_oss", "deepseek"))]


@pytest.mark.parametrize("name", MIXTURES)
def test_packed_experts_score_as_their_values_in_float32(name, tmp_path):
    kind = "MXFP4" if name == "gpt_oss" else "Q8_0"
    _, file = make_pair(tmp_path, name)
    packed = in_blocks(file, tmp_path / "packed.gguf", kind)
    schemes = resolve(open_checkpoint(str(packed))).quantized.values()
    assert sum(isinstance(scheme, Stacked) for scheme in schemes) >= 3
    dense = in_blocks(file, tmp_path / "dense.gguf", kind, dense=True)
    assert difference(dense, packed) < 1e-5
    assert difference(dense, file) > 1e-4


@pytest.mark.parametrize("kind", [None, "Q8_0"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_gates_and_ups_in_one_tensor(name, kind, tmp_path):
    """As the converter's --fuse-gate-up-exps has them."""

    def fuse(values, tensors):
        for tensor in [n for n in tensors if "ffn_gate_exps" in n]:
            gate, kind = tensors.pop(tensor)
            up, _ = tensors.pop(tensor.replace("gate", "up"))
            tensors[tensor.replace("gate", "gate_up")] = np.concatenate((gate, up), axis=1), kind

    _, file = make_pair(tmp_path, name)
    if kind:
        file = in_blocks(file, tmp_path / "packed.gguf", kind)
    assert difference(file, rewrite(file, tmp_path / "fused.gguf", fuse)) < 1e-5


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_keys_and_values_in_one_tensor(kind, tmp_path):
    """As converters before April 2025 have DeepSeek's."""

    def join(values, tensors):
        for tensor in [n for n in tensors if "attn_k_b" in n]:
            keys, values_ = tensors.pop(tensor)[0], tensors.pop(tensor.replace("k_b", "v_b"))[0]
            whole = np.concatenate((keys.swapaxes(1, 2), values_), axis=1)
            whole = np.ascontiguousarray(whole.reshape(-1, whole.shape[-1]))
            tensors[tensor.replace("k_b", "kv_b")] = whole, "F32"
        own = "deepseek2.attention."
        values[f"{own}head_count_kv"] = values[f"{own}head_count"]
        for part in ("key", "value"):
            values[f"{own}{part}_length"] = values.pop(f"{own}{part}_length_mla")

    _, file = make_pair(tmp_path, "deepseek_v3")
    old = rewrite(file, tmp_path / "old.gguf", join)
    assert difference(file, old) < 1e-5
    if kind:
        packed = in_blocks(old, tmp_path / "packed.gguf", kind)
        dense = in_blocks(old, tmp_path / "dense.gguf", kind, dense=True)
        assert difference(dense, packed) < 1e-5


def test_a_shared_experts_gate_without_its_axis_of_one(tmp_path):
    """As llama-quantize writes it."""

    def flatten(values, tensors):
        for tensor in [n for n in tensors if "ffn_gate_inp_shexp" in n]:
            tensors[tensor] = tensors[tensor][0].reshape(-1), "F32"

    _, file = make_pair(tmp_path, "qwen2_moe")
    assert difference(file, rewrite(file, tmp_path / "flat.gguf", flatten)) == 0

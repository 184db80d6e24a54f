"""Whole models of torchao against dense ones of the same weights."""

import json
import re

import numpy as np
import pytest
import torch
from engine_helpers import make_engine, score
from models import edit_config, edit_tensors, make_checkpoint, random_plan
from safetensors.torch import load_file, save_file

LINEAR = re.compile(r"(_proj|experts\.\d+\.\w+)\.weight$")
DTYPE = {"_type": "torch.dtype", "_data": "bfloat16"}
ROW = {"granularity": {"_type": "PerRow", "_data": {"dim": -1}}}


def make_pair(folder, name: str, kind: str, dynamic: bool):
    packed, dense = folder / "packed", folder / "dense"
    for target in (packed, dense):
        make_checkpoint(target, name, dtype=torch.bfloat16)
    tensors, metadata = load_file(packed / "model.safetensors"), {"format": "pt"}
    weights = {}
    for key in [key for key in tensors if LINEAR.search(key)]:
        exact = tensors.pop(key).float()
        scale = exact.abs().amax(1, keepdim=True) / (127 if kind == "Int8" else 448)
        codes = exact / scale
        codes = codes.round().char() if kind == "Int8" else codes.to(torch.float8_e4m3fn)
        module = key.removesuffix(".weight")
        tensors[f"{module}._weight_qdata"], tensors[f"{module}._weight_scale"] = codes, scale
        inputs = {"_type": f"QuantizeTensorTo{kind}Kwargs", "_data": ROW} if dynamic else None
        data = {"block_size": [1, exact.shape[1]], "dtype": DTYPE, "act_quant_kwargs": inputs}
        metadata[key] = json.dumps({"_type": f"{kind}Tensor", "_data": data})
        weights[key] = (codes.float() * scale).bfloat16()
    save_file(tensors, packed / "model.safetensors", metadata=metadata)
    edit_tensors(dense, lambda tensors: tensors.update(weights))
    edit_config(packed, quantization_config={"quant_method": "torchao"})
    return packed, dense


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("name", "kind"), [("llama", "Int8"), ("qwen3_moe", "Float8")])
def test_equals_the_dense_one_to_the_bit(name, kind, dynamic, tmp_path):
    packed, dense = make_pair(tmp_path, name, kind, dynamic)
    plan = random_plan()
    for dtype in ("float32", "bfloat16"):
        ours = score(make_engine(packed, dtype=dtype, arithmetic="weights"), plan)
        theirs = score(make_engine(dense, dtype=dtype), plan)
        assert np.array_equal(ours.logprob, theirs.logprob)
        assert theirs.logprob.std() > 0.5
    engine = make_engine(packed, dtype="float32")
    declared = "weights+activations" if dynamic else "weights"
    assert engine.describe()["arithmetic"] == declared
    if dynamic:
        assert 0 < np.abs(score(engine, plan).logprob - theirs.logprob).mean() < 3

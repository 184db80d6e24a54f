"""Kernels of a layer's elementwise parts against the library's own modules, and what stays eager."""

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.fused_cases import DEVICE, LyingRMSNorm, dtypes, layer, random, run
from support.models import library_model, make_checkpoint, random_plan
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

pytest.importorskip("triton", reason="needs Triton")

from scoremode.engines.torch.fused import modules, proofs
from scoremode.engines.torch.fused.modules import fuse, fuse_modules
from scoremode.engines.torch.weights.expert_weights import is_experts

# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


# The parts of each that have kernels.
FAMILIES = {
    "llama": ["LlamaDecoderLayer", "LlamaMLP", "LlamaRMSNorm", "apply_rotary_pos_emb"],
    "qwen3": ["Qwen3DecoderLayer", "Qwen3MLP", "Qwen3RMSNorm", "apply_rotary_pos_emb"],
    "gemma2": ["Gemma2MLP", "Gemma2RMSNorm", "apply_rotary_pos_emb"],
    "phi3": ["Phi3MLP", "Phi3RMSNorm", "apply_rotary_pos_emb"],
    "olmo2": ["Olmo2MLP", "Olmo2RMSNorm", "apply_rotary_pos_emb"],
    "mixtral": [
        "MixtralDecoderLayer",
        "MixtralExperts",
        "MixtralRMSNorm",
        "apply_rotary_pos_emb",
    ],
    "gpt_oss": ["GptOssDecoderLayer", "GptOssExperts", "GptOssRMSNorm", "apply_rotary_pos_emb"],
}
# Its experts return the router's scores as well; the interpreter has none of CUDA's tanh.
EAGER = {"GptOssDecoderLayer", *(["Gemma2MLP"] if DEVICE.type == "cpu" else [])}


@dtypes
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_computes_alike(name, dtype, tmp_path):
    folder = make_checkpoint(tmp_path, name, dtype=dtype)
    attention = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"
    model = library_model(folder, dtype, attention).to(DEVICE)
    ids = torch.from_numpy(np.random.default_rng(0).integers(3, 100, (2, 20))).to(DEVICE)
    with torch.no_grad():
        eager = model(input_ids=ids, use_cache=False).logits
        described = fuse_modules([model], DEVICE, dtype)
        ours = model(input_ids=ids, use_cache=False).logits
    outcomes = described.describe()
    assert list(outcomes) == FAMILIES[name]
    assert {n for n, outcome in outcomes.items() if outcome != "triton"} == EAGER & set(outcomes)
    # A norm that rounded to another short number moves the logits by their last bits.
    error = (ours.double() - eager.double()).abs()
    assert error.max() < 32 * torch.finfo(dtype).eps
    assert error.mean() < 4 * torch.finfo(dtype).eps


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the engine has fused its own there")
def test_an_engine_on_a_cpu_can_be_fused(tmp_path):
    engine = make_engine(make_checkpoint(tmp_path, "llama", dtype=torch.float16), dtype="float16")
    plan = random_plan(windows=2)
    eager = score(engine, plan).logprob
    skeleton = engine.parts.skeleton
    what = fuse_modules([skeleton.model, *skeleton.layers], DEVICE, torch.float16)
    ours = score(engine, plan).logprob
    assert what.describe() == dict.fromkeys(FAMILIES["llama"], "triton")
    assert np.abs(ours - eager).max() < 0.02
    assert np.array_equal(score(engine, plan).logprob, ours)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the engine has fused its own there")
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "llama4_text"])
def test_experts_have_one_kernel_for_their_gates(name, tmp_path, monkeypatch):
    """Mixtral's are stored apart, gpt-oss' as one, and Llama 4's have a forward that we gave them."""
    folder = make_checkpoint(tmp_path, name, dtype=torch.float16)
    engine = make_engine(folder, dtype="float16")
    plan = random_plan(windows=2)
    eager = score(engine, plan).logprob
    experts = [m for layer in engine.parts.skeleton.layers for m in layer.modules()]
    experts = [m for m in experts if is_experts(m)]
    what = fuse_modules(experts, DEVICE, torch.float16)
    assert what.describe()[type(experts[0]).__name__] == "triton"
    for module in experts:
        monkeypatch.setattr(module, "_apply_gate", None)
    ours = score(engine, plan).logprob
    assert np.abs(ours - eager).max() < 0.02


def test_only_the_instance_changes():
    ours, other = layer(), layer()
    before = run(other)
    function = modeling_llama.apply_rotary_pos_emb
    forwards = [type(m).forward for m in ours.modules()]
    what = fuse_modules([ours], DEVICE, torch.float16)
    assert set(what.describe().values()) == {"triton"}
    assert modeling_llama.apply_rotary_pos_emb is function
    assert [type(m).forward for m in ours.modules()] == forwards
    assert not any("forward" in vars(m) for m in other.modules())
    assert torch.equal(run(other), before)
    assert (run(ours) - before).abs().max() <= 0.01 * before.abs().max()
    assert what.describe() == dict.fromkeys(FAMILIES["llama"], "triton")


def test_what_alike_modules_were_proven_to_compute_is_proven_once(monkeypatch):
    calls = []
    prove = proofs.prove_norm

    def counted(*args):
        calls.append(1)
        return prove(*args)

    monkeypatch.setattr(modules, "prove_norm", counted)
    norms = [LlamaRMSNorm(32).half(), LlamaRMSNorm(32).half(), LlamaRMSNorm(16).half()]
    norms += [LlamaRMSNorm(32, eps=1e-3).half(), LyingRMSNorm(32).half()]
    fuse_modules([nn.ModuleList(norms).to(DEVICE)], DEVICE, torch.float16)
    assert len(calls) == 4
    x = random(4, 32, dtype=torch.float16) * 0.01
    expected = functional.rms_norm(x.float(), [32], eps=1e-3)
    torch.testing.assert_close(norms[3](x).float(), expected, rtol=2e-3, atol=1e-6)


def test_a_replaced_forward_and_no_triton_are_told(monkeypatch):
    norm = LlamaRMSNorm(32).half()
    norm.forward = lambda x: x
    what = fuse_modules([norm], DEVICE, torch.float16)
    assert what.describe() == {"LlamaRMSNorm": "eager (its forward was replaced)"}
    monkeypatch.setattr(modules, "is_missing", lambda: "No module named 'triton'")
    what = fuse_modules([LlamaMLP(LlamaConfig(hidden_size=32))], DEVICE, torch.float16)
    assert what.describe() == {"LlamaMLP": "eager (No module named 'triton')"}


def test_a_cpu_and_float32_keep_the_librarys(tmp_path):
    engine = make_engine(make_checkpoint(tmp_path, "llama"))
    for device, dtype in (("cpu", torch.float16), ("cuda", torch.float32)):
        assert fuse(engine.parts.skeleton, torch.device(device), dtype).describe() == {}
    assert not any("forward" in vars(m) for x in engine.parts.skeleton.layers for m in x.modules())

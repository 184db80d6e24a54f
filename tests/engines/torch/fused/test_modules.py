"""Kernels of a layer's elementwise parts against the library's own modules, and what stays eager."""

import copy

import numpy as np
import pytest
import torch
from engine_helpers import make_engine, score
from models import library_model, make_checkpoint, random_plan
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

pytest.importorskip("triton", reason="needs Triton")

from scoremode.engines.torch.fused import forwards, kernels, modules, proofs
from scoremode.engines.torch.fused.modules import fuse, fuse_modules
from scoremode.engines.torch.fused.proofs import ACTIVATIONS, NORMS, NotFused, differing

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Triton's interpreter cuts a number off where it should round it to bfloat16.
DTYPES = [torch.float16, *([torch.bfloat16] if DEVICE.type == "cuda" else [])]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
# Widths of layers: a power of two, none, and one that is not even a multiple of a load.
WIDTHS = [64, 200, 33]


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x.to(DEVICE, dtype)


@dtypes
@pytest.mark.parametrize("form", NORMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_norm_equals_its_formula(form, width, dtype):
    x, w = random(3, 70, width, dtype=dtype), random(width, dtype=dtype, seed=1)
    y, same = kernels.rms_norm(x, w, 1e-5, kernels.NormForm[form])
    assert same is x
    assert differing(y, NORMS[form](x, w, 1e-5), places=2) <= 0.001


@dtypes
def test_a_norm_follows_the_layout_of_its_input(dtype):
    w = random(16, dtype=dtype, seed=1)
    wide = random(2, 5, 3, 24, dtype=dtype)
    for x in (wide[..., :16].transpose(1, 2), wide[..., 8:].contiguous().transpose(0, 2)):
        y, _ = kernels.rms_norm(x, w, 1e-6, 0)
        assert differing(y, NORMS["rounded"](x, w, 1e-6), places=2) <= 0.01
        order = sorted(range(4), key=lambda d, x=x: -x.stride(d))
        assert y.permute(order).is_contiguous()


@dtypes
def test_a_norm_takes_the_sum_with_the_residual_along(dtype):
    x, residual = random(3, 7, 48, dtype=dtype), random(3, 7, 48, dtype=dtype, seed=1)
    w = random(48, dtype=dtype, seed=2)
    y, total = kernels.rms_norm(x, w, 1e-5, 0, residual)
    assert torch.equal(total, residual + x)
    assert differing(y, NORMS["rounded"](residual + x, w, 1e-5), places=2) <= 0.01


@dtypes
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("width", [2500, 33])
def test_a_gated_product_equals_its_formula(name, width, dtype):
    both = random(2, 3, 2 * width, dtype=dtype)
    gated, up = both.chunk(2, -1)
    exact = ACTIVATIONS[name](gated) * up
    y = kernels.gate(gated, up, kernels.Activation[name])
    if DEVICE.type == "cuda":
        # Triton's error function is not torch's in a few last places; a proof then keeps eager's.
        assert differing(y, exact) <= (0.005 if name == "gelu" else 0)
    # The interpreter has numpy's exponential, and none of CUDA's tanh.
    torch.testing.assert_close(y, exact, rtol=4e-3, atol=1e-3)
    own = gated.contiguous()
    assert kernels.gate(own, up, kernels.Activation[name], own) is own
    assert torch.equal(own, y)


@dtypes
@pytest.mark.parametrize("heads", [(4, 2), (19, 1)])
def test_a_rotation_equals_the_librarys(heads, dtype):
    qkv = random(2, 5, sum(heads) + 1, 24, dtype=dtype)
    q, k, _ = (x.transpose(1, 2) for x in qkv.split([*heads, 1], dim=2))
    cos, sin = random(2, 2, 5, 24, dtype=dtype, seed=1)
    for c, s in ((cos, sin), (cos[:1], sin[:1])):
        ours = kernels.rotate(q, k, c, s, rounded=True)
        for a, b in zip(ours, modeling_llama.apply_rotary_pos_emb(q, k, c, s), strict=True):
            assert torch.equal(a, b)
            assert a.transpose(1, 2).is_contiguous()


def test_equal_is_counted_in_last_bits():
    one = torch.ones(4, dtype=torch.float16)
    next_one = torch.nextafter(one, one * 2)
    assert differing(one, one) == 0
    assert differing(torch.cat([one, one]), torch.cat([one, next_one])) == 0.5
    assert differing(one, torch.nextafter(next_one, one * 2)) == float("inf")
    assert differing(one, torch.nextafter(next_one, one * 2), places=2) == 1
    assert differing(-one, one) == float("inf")
    assert differing(one, one.bfloat16()) == float("inf")
    assert differing(one, one[:2]) == float("inf")
    nan = one * float("nan")
    assert differing(nan, nan) == 0
    assert differing(nan, one) == float("inf")


# The parts of each that have kernels.
FAMILIES = {
    "llama": ["LlamaDecoderLayer", "LlamaMLP", "LlamaRMSNorm", "apply_rotary_pos_emb"],
    "qwen3": ["Qwen3DecoderLayer", "Qwen3MLP", "Qwen3RMSNorm", "apply_rotary_pos_emb"],
    "gemma2": ["Gemma2MLP", "Gemma2RMSNorm", "apply_rotary_pos_emb"],
    "phi3": ["Phi3MLP", "Phi3RMSNorm", "apply_rotary_pos_emb"],
    "olmo2": ["Olmo2MLP", "Olmo2RMSNorm", "apply_rotary_pos_emb"],
    "mixtral": ["MixtralDecoderLayer", "MixtralRMSNorm", "apply_rotary_pos_emb"],
}
# The interpreter has none of CUDA's tanh.
EAGER = {"Gemma2MLP"} if DEVICE.type == "cpu" else set()


@dtypes
@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_computes_alike(name, dtype, tmp_path):
    folder = make_checkpoint(tmp_path, name, dtype=dtype)
    attention = "eager" if name == "gemma2" else "sdpa"
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
    skeleton = engine._parts.skeleton
    what = fuse_modules([skeleton.model, *skeleton.layers], DEVICE, torch.float16)
    ours = score(engine, plan).logprob
    assert what.describe() == dict.fromkeys(FAMILIES["llama"], "triton")
    assert np.abs(ours - eager).max() < 0.02
    assert np.array_equal(score(engine, plan).logprob, ours)


def layer(kind: type[LlamaDecoderLayer] = LlamaDecoderLayer) -> LlamaDecoderLayer:
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_attention_heads=4)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    module = kind(config, 0).to(DEVICE, torch.float16).eval()
    return module.requires_grad_(False)


def run(module: LlamaDecoderLayer) -> torch.Tensor:
    x = random(2, 6, 32, dtype=torch.float16)
    tables = tuple(random(2, 1, 6, 8, dtype=torch.float16, seed=3))
    return module(x, position_embeddings=tables)


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


def test_weights_are_read_when_a_kernel_runs():
    module = layer()
    with torch.device("meta"):
        empty = LlamaDecoderLayer(module.self_attn.config, 0).half().eval()
    fuse_modules([empty], DEVICE, torch.float16)
    for seed in (1, 2):
        for i, (name, parameter) in enumerate(module.named_parameters()):
            parameter.copy_(random(*parameter.shape, dtype=torch.float16, seed=seed + 9 * i) * 0.2)
            path, _, last = name.rpartition(".")
            empty.get_submodule(path)._parameters[last] = parameter
        difference = (run(empty) - run(module)).abs().max()
        assert difference <= 0.01 * run(module).abs().max()


class LyingRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states) * 1.01


class OtherEpsRMSNorm(LlamaRMSNorm):
    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 2 * self.variance_epsilon)
        return self.weight * x.to(hidden_states.dtype)


class UnroundedRMSNorm(LlamaRMSNorm):
    """Exact but for one float32 rounding in the middle: no formula of ours."""

    def forward(self, hidden_states):
        x = hidden_states
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LyingMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * 1.01)


class AfterwardsMLP(LlamaMLP):
    def forward(self, x):
        return super().forward(x) + 1


class NoDownMLP(LlamaMLP):
    def forward(self, x):
        return self.act_fn(self.gate_proj(x)) * self.up_proj(x)


class SwappedMLP(LlamaMLP):
    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)) * self.gate_proj(x))


class OtherInputMLP(LlamaMLP):
    def forward(self, x):
        return super().forward(x * 2)


class FailingMLP(LlamaMLP):
    def forward(self, x):
        raise ValueError("not today")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (LyingRMSNorm, "computes something else"),
        (OtherEpsRMSNorm, "computes something else"),
        (UnroundedRMSNorm, "computes something else"),
        (LyingMLP, "computes something else"),
        (AfterwardsMLP, "computes something else"),
        (NoDownMLP, "computes something else"),
        (SwappedMLP, "computes something else"),
        (OtherInputMLP, "its linears are given something else"),
        (FailingMLP, "ValueError: not today"),
    ],
)
def test_a_class_that_computes_something_else_stays_eager(kind, reason):
    config = LlamaConfig(hidden_size=32, intermediate_size=48)
    module = (kind(config) if issubclass(kind, LlamaMLP) else kind(32)).to(DEVICE).half()
    what = fuse_modules([module], DEVICE, torch.float16)
    assert what.describe() == {kind.__name__: f"eager ({reason})"}
    assert "forward" not in vars(module)


class ScaledLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        return super().forward(hidden_states, **kwargs) * 1.01


class ForgetfulLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        hidden = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **kwargs)[0]
        return self.mlp(self.post_attention_layernorm(hidden))


class LaterLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, position_ids=None, **kwargs):
        return super().forward(hidden_states, position_ids=position_ids + 1, **kwargs)


class MaskingLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, attention_mask=None, **kwargs):
        mask = "mine" if attention_mask is None else attention_mask
        return super().forward(hidden_states, attention_mask=mask, **kwargs)


class TupleLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, use_cache=False, **kwargs):
        out = super().forward(hidden_states, **kwargs)
        return (out, None) if use_cache else out


class TwiceLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        self.mlp(hidden_states)
        return super().forward(hidden_states, **kwargs)


class BetweenLayer(LlamaDecoderLayer):
    def forward(self, hidden_states, **kwargs):
        normed = self.input_layernorm(hidden_states)
        hidden = hidden_states + self.self_attn(hidden_states=normed, **kwargs)[0]
        return hidden + self.mlp(self.post_attention_layernorm(hidden * 2))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (BetweenLayer, "computes something else"),
        (ScaledLayer, "computes something else"),
        (ForgetfulLayer, "TypeError: "),
        (LaterLayer, "TypeError: "),
        (MaskingLayer, "its attention is given something else"),
        (TupleLayer, "computes something else"),
        (TwiceLayer, "its parts are not called once each"),
    ],
)
def test_a_layer_that_does_more_stays_eager(kind, reason):
    module = layer(kind)
    what = fuse_modules([module], DEVICE, torch.float16).describe()
    assert what.pop(kind.__name__).startswith(f"eager ({reason}")
    assert "forward" not in vars(module)
    assert set(what.values()) == {"triton"}


def test_a_layer_hands_its_arguments_on():
    module = layer()
    fuse_modules([module], DEVICE, torch.float16)
    calls = []

    def attention(**kwargs):
        calls.append(kwargs)
        return kwargs["hidden_states"], None

    module.self_attn.forward = attention
    x = random(1, 3, 32, dtype=torch.float16)
    cache, mask = object(), object()
    y = module(x, mask, past_key_values=cache, other=5)
    (call,) = calls
    assert call["attention_mask"] is mask and call["past_key_values"] is cache
    assert call["other"] == 5 and call["use_cache"] is False and call["position_ids"] is None
    hidden = x + module.input_layernorm(x)
    assert torch.equal(y, hidden + module.mlp(module.post_attention_layernorm(hidden)))


@pytest.mark.parametrize("width", [8, 16])
def test_another_rotation_stays_eager(width, monkeypatch):
    def backwards(q, k, cos, sin):
        return rotation(q, k, cos, -sin)

    rotation = modeling_llama.apply_rotary_pos_emb
    for function in (interleaved, backwards, lambda q, k, cos, sin: (q, k, cos)):
        with pytest.raises(NotFused):
            proofs.prove_rotation(function, torch.float16, torch.float16, width, DEVICE)
    module = layer()
    expected = copy.deepcopy(module)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", interleaved)
    what = fuse_modules([module.self_attn], DEVICE, torch.float16)
    assert torch.equal(run(module), run(expected))
    assert what.describe() == {"apply_rotary_pos_emb": "eager (differs from the kernel)"}


def test_a_rebound_function_keeps_all_but_one_name():
    inside = 2

    def call(x, y=3, *, z=5):
        return scale(x) * y * z * inside

    other = forwards.rebound(call, "scale", lambda x: 10 * x)
    assert other(1) == 300
    assert call(1) == 30


def scale(x):
    return x


def test_calls_unlike_those_proven_are_the_librarys():
    norm = LlamaRMSNorm(32).to(DEVICE)
    norm.weight = nn.Parameter(random(32, dtype=torch.float16), False)
    what = fuse_modules([norm], DEVICE, torch.float16)
    assert what.describe() == {"LlamaRMSNorm": "triton"}
    x = random(4, 32, dtype=torch.float32)
    assert torch.equal(norm(x), type(norm).forward(norm, x))
    both = "triton and eager (a call unlike those proven)"
    assert what.describe() == {"LlamaRMSNorm": both}


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
        assert fuse(engine._parts.skeleton, torch.device(device), dtype).describe() == {}
    assert not any("forward" in vars(m) for x in engine._parts.skeleton.layers for m in x.modules())

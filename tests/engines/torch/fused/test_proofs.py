"""Proofs refuse what computes something else."""

import copy

import pytest
import torch
from torch.nn.functional import silu
from transformers import LlamaConfig
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.gpt_oss.modeling_gpt_oss import apply_rotary_pos_emb as gpt_oss_rotation
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

pytest.importorskip("triton", reason="needs Triton")
from support.fused_cases import DEVICE, LyingRMSNorm, layer, run

from scoremode.engines.torch.fused import proofs
from scoremode.engines.torch.fused.modules import fuse_modules
from scoremode.engines.torch.fused.proofs import Gate, NotFused, differing

# The interpreter's numpy warns of infinities, which some of the inputs are.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


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


class Experts(torch.nn.Module):
    """As transformers' own, with some gate."""

    def __init__(self, apply_gate, concatenated=True):
        super().__init__()
        self.is_concatenated, self.limit, self.alpha = concatenated, 7.0, 1.702
        self._apply_gate = apply_gate


def halves(whole):
    return whole.chunk(2, -1)


def in_turns(whole):
    return whole[..., ::2], whole[..., 1::2]


def clamped(gated, up):
    return gated.clamp(max=7.0), up.clamp(-7.0, 7.0)


def swish(gated, up):
    return (up + 1) * (gated * torch.sigmoid(gated * 1.702))


@pytest.mark.parametrize(
    ("apply_gate", "concatenated", "expected"),
    [
        (lambda x: silu(halves(x)[0]) * halves(x)[1], True, Gate("silu")),
        (lambda x: silu(clamped(*halves(x))[0]) * clamped(*halves(x))[1], True, Gate("silu", 7.0)),
        (lambda x: swish(*clamped(*in_turns(x))), False, Gate("swish, up plus one", 7.0, 1.702)),
        (lambda x: swish(*clamped(*halves(x))), True, Gate("swish, up plus one", 7.0, 1.702)),
    ],
)
def test_gates_of_experts_are_told(apply_gate, concatenated, expected):
    assert proofs.prove_gate(Experts(apply_gate, concatenated), torch.float16, DEVICE) == expected


@pytest.mark.parametrize(
    ("apply_gate", "concatenated", "reason"),
    [
        # Up where the gate should be, and the other way of lying.
        (lambda x: silu(halves(x)[1]) * halves(x)[0], True, "computes something else"),
        (lambda x: swish(*clamped(*in_turns(x))), True, "computes something else"),
        # Clamped behind the activation (Step 3.7), only on one side, not at all below.
        (
            lambda x: silu(halves(x)[0]).clamp(max=7.0) * halves(x)[1],
            True,
            "computes something else",
        ),
        (lambda x: silu(clamped(*halves(x))[0]) * halves(x)[1], True, "computes something else"),
        (
            lambda x: silu(clamped(*halves(x))[0]) * halves(x)[1].clamp(max=7.0),
            True,
            "computes something else",
        ),
        # Not rounded in between (BEAM).
        (
            lambda x: (silu(halves(x)[0].float()) * halves(x)[1].float()).to(x.dtype),
            True,
            "computes something else",
        ),
        (lambda x: x[..., :-1], True, "computes something else"),
        (lambda x: silu(halves(x)[0]) * halves(x)[1], None, "doesn't say how gates and ups lie"),
    ],
)
def test_other_gates_of_experts_stay_eager(apply_gate, concatenated, reason):
    with pytest.raises(NotFused, match=reason):
        proofs.prove_gate(Experts(apply_gate, concatenated), torch.float16, DEVICE)


def test_tables_for_half_a_head_turn_both():
    """gpt-oss'."""
    args = (gpt_oss_rotation, torch.float16, torch.float16, 16, DEVICE)
    assert proofs.prove_rotation(*args, halves=True) is True
    with pytest.raises(NotFused):
        proofs.prove_rotation(*args)

    def backwards(q, k, cos, sin):
        return gpt_oss_rotation(q, k, cos, -sin)

    with pytest.raises(NotFused):
        proofs.prove_rotation(backwards, *args[1:], halves=True)

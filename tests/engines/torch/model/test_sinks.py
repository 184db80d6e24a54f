"""Attention with sinks: the flash kernel's share of it, and that models find it."""

import pytest
import torch
from support.engine import make_engine, score
from support.models import ARCHITECTURES, make_checkpoint, random_plan
from torch import nn

from scoremode.engines.torch.model import attention as sinks
from scoremode.engines.torch.model import build
from scoremode.engines.torch.model.attention import SINKS, attend_with_sinks, choose_sinks

CPU = torch.device("cpu")


def plain_flash(query, key, value, scaling, sliding_window):
    """What the kernel returns, from the definition."""
    heads = query.shape[2] // key.shape[2]
    q, k, v = (states.transpose(1, 2).double() for states in (query, key, value))
    scores = q @ k.repeat_interleave(heads, 1).transpose(2, 3) * scaling
    place = torch.arange(q.shape[2])
    behind = place[:, None] - place
    seen = behind >= 0
    if sliding_window is not None:
        seen &= behind < sliding_window
    scores = scores.masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(heads, 1)
    return out.transpose(1, 2).to(query.dtype), scores.logsumexp(-1).float()


def states(length: int = 40) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((2, 4, length, 16), (2, 2, length, 16), (2, 2, length, 16))
    return [torch.randn(size, generator=generator) for size in sizes]


class Sinks(nn.Module):
    def __init__(self, values: torch.Tensor):
        super().__init__()
        self.sinks = values
        self.num_key_value_groups = 2
        self.training = False


@pytest.mark.parametrize("window", [None, 1, 7, 40, 100])
def test_it_is_the_librarys_eager_attention(window, monkeypatch):
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    monkeypatch.setattr(sinks, "_flash", plain_flash)
    query, key, value = states()
    module = Sinks(torch.tensor([-30.0, 0.5, 3.0, 30.0]))
    behind = torch.arange(40)[:, None] - torch.arange(40)
    hidden = (behind < 0) | (behind >= (window or 40))
    mask = torch.zeros(1, 1, 40, 40).masked_fill(hidden, -torch.inf)
    expected, _ = eager_attention_forward(module, query, key, value, mask, 0.3)
    found, _ = attend_with_sinks(
        module, query, key, value, None, scaling=0.3, s_aux=module.sinks, sliding_window=window
    )
    assert (found - expected).abs().max() < 1e-6 and expected.abs().max() > 1


def test_narrow_values_are_padded_for_the_kernel(monkeypatch):
    monkeypatch.setattr(sinks, "_flash", plain_flash)
    query, key, value = states()
    module, aux = Sinks(torch.zeros(4)), torch.zeros(4)
    whole, _ = attend_with_sinks(module, query, key, value, None, scaling=0.3, s_aux=aux)
    narrow, _ = attend_with_sinks(module, query, key, value[..., :8], None, scaling=0.3, s_aux=aux)
    assert narrow.shape[-1] == 8 and torch.equal(narrow, whole[..., :8])


@pytest.mark.parametrize("name", ["gpt_oss", "granite_swa", "granitemoe_swa"])
def test_a_model_scores_the_same(name, tmp_path, monkeypatch):
    """Windows longer than the sliding ones."""
    settings = ARCHITECTURES["gpt_oss" if "moe" in name else "llama"] | {"sliding_window": 7}
    monkeypatch.setitem(ARCHITECTURES, name, settings)
    folder, plan = make_checkpoint(tmp_path, name), random_plan()
    eager = make_engine(folder, dtype="float32")
    assert eager.parts.skeleton.attention == "eager"
    expected = score(eager, plan).logprob
    monkeypatch.setattr(sinks, "_flash", plain_flash)
    monkeypatch.setattr(sinks, "_DTYPES", (torch.float32,))
    monkeypatch.setattr(sinks, "_runs", lambda width, *_: width == 8)
    monkeypatch.setattr(
        build, "choose_sinks", lambda m, dtype, _: choose_sinks(m, dtype, torch.device("cuda"))
    )
    flash = make_engine(folder, dtype="float32")
    assert flash.parts.skeleton.attention == SINKS
    found = score(flash, plan).logprob
    assert abs(found - expected).max() < 1e-4 and (found != expected).any()


@pytest.mark.parametrize(
    ("name", "dtype", "device"),
    [
        ("gpt_oss", torch.float32, "cuda"),
        ("gpt_oss", torch.bfloat16, "cpu"),
        ("llama", torch.bfloat16, "cuda"),
    ],
)
def test_other_dtypes_devices_and_models_stay_as_they_are(name, dtype, device, tmp_path):
    model = make_engine(make_checkpoint(tmp_path, name)).parts.skeleton.model
    before = model.config._attn_implementation
    assert not choose_sinks(model, dtype, torch.device(device))
    assert model.config._attn_implementation == before


def test_a_gpu_without_the_kernel_stays_eager(tmp_path, monkeypatch):
    """As torch's refuses one before Ampere."""

    def refuse(*_):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    for flash, runs in ((plain_flash, True), (refuse, False)):
        monkeypatch.setattr(sinks, "_flash", flash)
        assert sinks._runs(8, torch.float32, CPU) is runs
    model = make_engine(make_checkpoint(tmp_path, "gpt_oss")).parts.skeleton.model
    monkeypatch.setattr(sinks, "_runs", lambda *_: False)
    before = model.config._attn_implementation
    assert not choose_sinks(model, torch.bfloat16, torch.device("cuda"))
    assert model.config._attn_implementation == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("window", [None, 1, 100, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernel_gives_attention_and_its_sums(window, dtype):
    given = [s.transpose(1, 2).to("cuda", dtype) for s in states(1000)]
    out, sums = sinks._flash(*given, 0.3, window)
    expected, expected_sums = plain_flash(*(s.cpu() for s in given), 0.3, window)
    assert (out.cpu().float() - expected.float()).abs().max() < 0.02
    assert (sums.cpu() - expected_sums).abs().max() < 1e-4

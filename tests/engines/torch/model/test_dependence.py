"""What of a forward depends on its ids, and that a batch without the model's forward scores alike."""

import numpy as np
import pytest
import torch
from models import ARCHITECTURES, MIXTURES, make_checkpoint, random_plan
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache
from transformers.models.llama.modeling_llama import LlamaModel, LlamaRotaryEmbedding

from scoremode.checkpoint.files import open_checkpoint
from scoremode.engines.base import Schedule
from scoremode.engines.torch.engine import TorchEngine, TorchOptions
from scoremode.engines.torch.model import skeleton
from scoremode.engines.torch.model.dependence import Dependence, is_plain
from scoremode.results.scores import concatenate

CAUSAL = sorted((set(ARCHITECTURES) | set(MIXTURES)) - {"bert", "electra"})
# What the embedding gives goes through more before their layers.
MORE = {"bloom", "gpt2", "granite", "granitemoe", "inkling2_text", "opt"}


def watch(compute, source=None):
    source = torch.arange(12).view(3, 4) if source is None else source
    with Dependence(source) as watching:
        out = compute(source)
    return watching, out


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: x.float().mean(),
        lambda x: torch.arange(4) * x,
        lambda x: torch.ones(12)[x],
        lambda x: x.T[1:2].expand(5, 3),
        lambda x: torch.nn.Parameter((x + 1).float(), requires_grad=False),
        lambda x: (x + 1).data.view(-1),
        lambda x: (torch.zeros(2), {"mask": [x != 0]}),
        lambda x: torch.where(x > 3, 1, 0).cumsum(-1),
        lambda x: x.new_empty((2, 2)),
    ],
)
def test_what_is_computed_from_it_depends_on_it(compute):
    watching, out = watch(compute)
    assert watching.depends(out)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: torch.arange(x.shape[1]),
        lambda x: torch.ones(x.shape, device=x.device).cumsum(-1),
        lambda x: [torch.zeros(5) for _ in range(100)],
        lambda x: (None, "sdpa", True, 4),
    ],
)
def test_what_follows_from_its_shape_does_not(compute):
    watching, out = watch(compute)
    assert not watching.leaked and not watching.depends(out)


def test_memory_of_what_is_gone_is_not_taken_for_it():
    """An allocator gives the memory of a temporary to the next tensor of its size."""

    def compute(x):
        for _ in range(50):
            (x + 1).mul(2)
        return [torch.ones(3, 4, dtype=torch.int64) for _ in range(50)]

    watching, out = watch(compute)
    assert not watching.depends(out)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x == 3).any()),
        lambda x: torch.equal(x, x.clone()),
        lambda x: x.nonzero(),
        lambda x: x[x > 3],
        lambda x: torch.unique(x),
        lambda x: torch.zeros(3, 4, dtype=torch.int64).copy_(x),
        lambda x: torch.zeros(3, 5)[:, 1:].copy_(x),
        lambda x: torch.add(x, 1, out=torch.zeros(3, 4, dtype=torch.int64)),
    ],
)
def test_values_that_can_not_be_followed_are_told(compute):
    watching, _ = watch(compute)
    assert watching.leaked


class Wrapper(torch.Tensor):
    """A tensor whose values are in another one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return Wrapper(func(*(a.inner if isinstance(a, Wrapper) else a for a in args)))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: (Wrapper(x) + 1).inner,
        lambda x: torch.func.jvp(lambda r: r * 2, (x.float(),), (torch.ones(3, 4),)),
    ],
)
def test_tensors_without_memory_of_their_own_are_told(compute):
    watching, _ = watch(compute)
    assert watching.leaked


@pytest.mark.parametrize("value", [lambda: 0, DynamicCache(), Wrapper(torch.ones(2)), object()])
def test_what_may_hold_more_is_not_plain(value):
    assert not is_plain({"a": (torch.ones(2), [value])})
    assert is_plain({"a": (torch.ones(2), [None, 1, True, 0.5, "sdpa", torch.float16])})


def test_values_that_reach_another_device_are_told():
    watching = Dependence(torch.ones(2, device="meta"))
    watching.note(torch.ones(2))
    assert watching.leaked


def test_a_pause_hides_what_is_done_meanwhile():
    source = torch.arange(4)
    with Dependence(source) as watching:
        watching.is_paused = True
        assert bool((source > 2).any())
        watching.is_paused = False
    assert not watching.leaked


@pytest.fixture
def forwards(monkeypatch):
    """The number of the model's forwards, with ids watched on a CPU as on a GPU."""
    watches = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(skeleton.Skeleton, "watches", watches, raising=False)
    forward, count = skeleton.Skeleton._forward, []

    def counting(self, ids):
        count.append(tuple(ids.shape))
        return forward(self, ids)

    monkeypatch.setattr(skeleton.Skeleton, "_forward", counting)
    return count


def score(folder, plan, dtype):
    engine = TorchEngine(open_checkpoint(str(folder)), TorchOptions(device="cpu", dtype=dtype))
    return concatenate(list(engine.score(plan, Schedule(pass_windows=4, batch_windows=2))))


@pytest.mark.parametrize("name", CAUSAL)
def test_scores_are_the_same_bits_without_the_models_forward(name, tmp_path, request):
    folder = make_checkpoint(tmp_path, name)
    plan = random_plan(windows=12)
    usual = score(folder, plan, "float32")
    count = request.getfixturevalue("forwards")
    watched = score(folder, plan, "float32")
    assert np.array_equal(usual.logprob, watched.logprob)
    assert np.array_equal(usual.top1, watched.top1)
    batches = [shape for shape in count if shape[0] == 2 and shape[1] > 16]
    # Once before the layers, and once after them.
    assert len(batches) >= 7 if name in MORE else len(batches) == 2, batches


def test_a_cache_of_one_batch_is_no_other_batchs(tmp_path, request, monkeypatch):
    """Such as Gemma 4's keys and values that layers share, or a cache made without being asked for."""
    folder, plan, forward = (
        make_checkpoint(tmp_path, "llama"),
        random_plan(windows=12),
        LlamaModel.forward,
    )

    def caching(self, **kwargs):
        return forward(self, **kwargs | {"past_key_values": DynamicCache(config=self.config)})

    monkeypatch.setattr(LlamaModel, "forward", caching)
    usual = score(folder, plan, "float32")
    request.getfixturevalue("forwards")
    assert np.array_equal(usual.logprob, score(folder, plan, "float32").logprob)


@pytest.mark.parametrize("kind", ["mamba", "falcon_mamba"])
def test_layers_may_return_another_dtype_than_the_heads(kind, tmp_path, request):
    """Their residuals are float32, and cast after the final norm."""
    config = AutoConfig.for_model(
        kind, hidden_size=32, num_hidden_layers=2, vocab_size=101, state_size=4
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    usual = score(tmp_path, random_plan(), "bfloat16")
    request.getfixturevalue("forwards")
    assert np.array_equal(usual.logprob, score(tmp_path, random_plan(), "bfloat16").logprob)


@pytest.mark.parametrize(
    "scales",
    [
        lambda ids, states: states.shape[1] > 2,
        lambda ids, states: states.shape[1] > 18,
        lambda ids, states: bool((ids == 5).any()),
        lambda ids, states: bool((ids == 5).all()),
        lambda ids, states: bool(states.abs().max() > 4),
        lambda ids, states: (ids == 5).any(),
    ],
)
def test_what_else_comes_after_the_layers_is_never_left_out(scales, tmp_path, request, monkeypatch):
    """Though only some lengths, some ids or some states show it."""
    folder, plan = make_checkpoint(tmp_path, "llama"), random_plan(windows=12)
    forward = LlamaModel.forward

    def scaling(self, input_ids, **kwargs):
        out = forward(self, input_ids=input_ids, **kwargs)
        if scales(input_ids, out.last_hidden_state):
            out.last_hidden_state = out.last_hidden_state * 2
        return out

    monkeypatch.setattr(LlamaModel, "forward", scaling)
    usual = score(folder, plan, "float32")
    request.getfixturevalue("forwards")
    assert np.array_equal(usual.logprob, score(folder, plan, "float32").logprob)


def test_what_the_embedding_keeps_of_its_ids_is_followed(tmp_path, request, monkeypatch):
    folder, plan = make_checkpoint(tmp_path, "llama"), random_plan(windows=12)
    look_up, rotary = torch.nn.Embedding.forward, LlamaRotaryEmbedding.forward
    kept = []

    def keeping(self, ids):
        rows = look_up(self, ids)
        kept[:] = [rows[..., :1].float().mean()]
        return rows

    def turning(self, x, position_ids):
        cos, sin = rotary(self, x, position_ids)
        return cos + kept[0], sin

    monkeypatch.setattr(torch.nn.Embedding, "forward", keeping)
    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", turning)
    usual = score(folder, plan, "float32")
    request.getfixturevalue("forwards")
    assert np.array_equal(usual.logprob, score(folder, plan, "float32").logprob)

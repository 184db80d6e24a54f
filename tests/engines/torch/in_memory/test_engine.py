"""A module in memory against the torch engine on its saved checkpoint: the same bits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine, score
from support.models import library_model, make_checkpoint, random_plan

from scoremode.checkpoint.virtual import ModuleInMemory
from scoremode.engines.base import Extras
from scoremode.engines.torch.engine import ModelReference
from scoremode.engines.torch.in_memory import InMemoryEngine
from scoremode.errors import UnsupportedModel
from scoremode.results.scores import concatenate

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def live(module, folder: Path, batch_windows=None) -> InMemoryEngine:
    folder.mkdir(exist_ok=True)
    return InMemoryEngine(ModuleInMemory.of(module, folder), None, batch_windows)


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "gemma2", "gpt2", "mixtral", "cohere", "granite", "phi3", "gpt_neox"]
)
def test_scores_are_the_checkpoint_s(name, tmp_path):
    """Head scales, softcaps, tied heads, biases, experts."""
    folder = make_checkpoint(tmp_path / "model", name)
    plan = random_plan()
    engine = make_engine(folder, dtype="float32", batch_windows=2, attention="eager")
    module = library_model(folder, torch.float32, "eager")
    ours = live(module, tmp_path / "live", 2)
    wanted, found = score(engine, plan), score(ours, plan)
    # Experts are summed in another order by the library.
    limit = 2e-5 if name == "mixtral" else 2e-6
    np.testing.assert_allclose(found.logprob, wanted.logprob, rtol=0, atol=limit)
    assert np.array_equal(found.target, wanted.target)
    said = ours.describe()
    assert said["head"]["softcap"] == engine.describe()["head"]["softcap"]
    assert said["head"]["scale"] == pytest.approx(engine.describe()["head"]["scale"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trained_model_has_the_same_bits(demo, dtype, tmp_path):
    plan = random_plan(24, 9, 6, 500)
    name = str(dtype).removeprefix("torch.")
    engine = make_engine(demo / "model", dtype=name, batch_windows=4)
    ours = live(library_model(demo / "model", dtype), tmp_path, 4)
    wanted, found = score(engine, plan).columns(), score(ours, plan).columns()
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


@needs_cuda
@pytest.mark.parametrize(
    ("name", "attention"),
    # Gemma 2's softcapped scores are eager's alone.
    [("demo", "sdpa"), ("mixtral", "sdpa"), ("gemma2", "eager")],
)
def test_on_a_gpu_it_has_the_checkpoint_s_bits_in_float32(demo, name, attention, tmp_path):
    folder = demo / "model" if name == "demo" else make_checkpoint(tmp_path / "model", name)
    plan = random_plan(256, 9, 60, 90)
    more = {"attention": attention} if attention == "eager" else {}
    engine = make_engine(folder, dtype="float32", batch_windows=2, device="cuda", **more)
    module = library_model(folder, torch.float32, attention).cuda()
    wanted = score(engine, plan).columns()
    found = score(live(module, tmp_path / "live", 2), plan).columns()
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


@needs_cuda
def test_on_a_gpu_bfloat16_is_rounded_once_more_or_less(demo, tmp_path):
    """The checkpoint runs by fused kernels, the module by the library's."""
    plan = random_plan(256, 9, 60, 500)
    engine = make_engine(demo / "model", dtype="bfloat16", batch_windows=2, device="cuda")
    module = library_model(demo / "model", torch.bfloat16).cuda()
    wanted, found = score(engine, plan), score(live(module, tmp_path / "live", 2), plan)
    off = found.logprob - wanted.logprob
    assert np.sqrt((off**2).mean()) < 0.01 and abs(float(off.mean())) < 1e-3


def test_against_a_base_the_comparison_is_the_checkpoint_s(demo, tmp_path):
    plan = random_plan(24, 9, 6, 500)
    module = library_model(demo / "model", torch.float32)
    with torch.no_grad():
        module.model.layers[1].mlp.down_proj.weight.mul_(1.1)
    module.save_pretrained(tmp_path / "saved")
    klds = []
    for engine in (
        live(module, tmp_path / "live", 4),
        make_engine(tmp_path / "saved", dtype="float32", batch_windows=4),
    ):
        base = make_engine(demo / "model", dtype="float32", batch_windows=4)
        schedule = engine.schedule(plan)
        extras = Extras(ModelReference(base, plan, schedule), full=True)
        klds.append(concatenate(list(engine.score(plan, schedule, extras=extras))).against)
    assert klds[0].kld.max() > 0
    assert np.array_equal(klds[0].kld, klds[1].kld) and np.array_equal(klds[0].jsd, klds[1].jsd)


def test_the_module_is_left_as_it_was(demo, tmp_path):
    module = library_model(demo / "model", torch.float32).train()
    module.model.layers[0].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = [part.training for part in module.modules()]
    random = torch.get_rng_state()
    score(live(module, tmp_path), random_plan(24, 2, 0, 500))
    assert [part.training for part in module.modules()] == modes
    after = module.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not module.lm_head._forward_pre_hooks and "forward" not in vars(module.lm_head)
    assert all(p.grad is None for p in module.parameters())


def test_a_model_that_sees_ahead_is_refused(demo, tmp_path):
    module = library_model(demo / "model", torch.float32, "eager")
    own = module.model.forward

    def sees_all(*args, **kwargs):
        out = own(*args, **kwargs)
        mean = out.last_hidden_state.mean(1, keepdim=True)
        out.last_hidden_state = out.last_hidden_state + mean
        return out

    module.model.forward = sees_all
    with pytest.raises(UnsupportedModel, match="sees what it should predict"):
        score(live(module, tmp_path), random_plan(24, 2, 0, 500))


def test_a_head_that_is_more_than_a_matrix_is_refused(demo, tmp_path):
    module = library_model(demo / "model", torch.float32)
    own = module.lm_head.forward
    module.lm_head.forward = lambda x: own(x.round(decimals=1))
    with pytest.raises(UnsupportedModel, match="more than a matrix"):
        score(live(module, tmp_path), random_plan(24, 2, 0, 500))

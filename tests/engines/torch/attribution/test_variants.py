"""Variants have the bits of the mixtures that they stand for, whatever the units are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.engine import make_engine
from support.families.packed_experts import FORMATS, make_packed
from support.models import edit_tensors, make_checkpoint, random_plan

from scoremode.checkpoint.files import open_checkpoint
from scoremode.demo.quantize import VARIANTS, quantize_folder
from scoremode.engines.base import Extras
from scoremode.engines.torch.attribution.units import find_units
from scoremode.engines.torch.attribution.variants import Variants
from scoremode.engines.torch.engine import ModelReference, build_engine
from scoremode.engines.torch.options import TorchOptions
from scoremode.errors import EngineError
from scoremode.results.scores import concatenate
from scoremode.schemes.mixing import Take, mixed

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def pair_kld(own, other, names, base, plan, **options):
    """KLD from `base` of the checkpoint `own` with the modules `names` of `other`, as a run has it."""
    # Mixtral's modules are called otherwise in its files.
    old = "block_sparse_moe.experts" if own.config["model_type"] == "mixtral" else "mlp.experts"
    takes = [Take(name.replace("mlp.experts", old), other, "--swap") for name in names]
    engine = build_engine(mixed(own, takes), TorchOptions(**{"device": "cpu"} | options))
    schedule = engine.schedule(plan)
    extras = Extras(ModelReference(base, plan, schedule))
    return concatenate(list(engine.score(plan, schedule, extras=extras))).against.kld


def compare(folders: tuple[Path, Path], by: str, plan, **options) -> list[str]:
    """Holds all variants of the two checkpoints, base and model, against mixtures; the units' names."""
    base, model = (make_engine(folder, **options) for folder in folders)
    own, other = (open_checkpoint(str(folder)) for folder in folders)
    units = find_units(base, model, by)
    found = Variants(base, model, units).run(plan, model.schedule(plan))
    for unit in units:
        names = [unit.name] if unit.whole else unit.modules
        klds = {d: np.concatenate(parts) for d, parts in found[unit.name].kld.items()}
        wanted = {
            "alone": pair_kld(own, other, names, base, plan, **options),
            "without": pair_kld(other, own, names, base, plan, **options),
        }
        for direction, kld in wanted.items():
            assert np.array_equal(klds[direction], kld), (unit.name, direction)
        # Without the only unit there is the model is the base.
        assert klds["alone"].max() > 0 and (klds["without"].max() > 0) == (len(units) > 1)
    return [unit.name for unit in units]


@pytest.mark.parametrize("variant", ["W4A16-g32", "NVFP4", "W8A8"])
@pytest.mark.parametrize("by", ["layer", "module", "kind"])
def test_of_a_trained_llama(demo, variant, by, tmp_path):
    (form,) = [v for v in VARIANTS if v.name == variant]
    quantize_folder(demo / "model", tmp_path / "quant", form)
    plan = random_plan(24, 3, 6, 500)
    names = compare((demo / "model", tmp_path / "quant"), by, plan)
    assert len(names) == {"layer": 3, "module": 21, "kind": 7}[by]


@pytest.mark.parametrize("by", ["layer", "module", "kind"])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_are_one_module(name, by, tmp_path):
    packed, _ = make_packed(tmp_path, name, FORMATS[0], torch.float32)
    base = make_checkpoint(tmp_path / "base", name)
    names = compare((base, packed), by, random_plan(), dtype="float32")
    assert any("experts" in n for n in names) or by == "layer"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_embedding_and_head_are_units(name, tmp_path):
    """Stored in another dtype, which is another format, too."""
    base, model = (make_checkpoint(tmp_path / n, name) for n in ("base", "model"))

    def halve(tensors):
        for key in tensors:
            if any(part in key for part in ("embed", "wte", "lm_head", "layers.1.", "h.1.")):
                tensors[key] = tensors[key].to(torch.bfloat16)

    edit_tensors(model, halve)
    names = compare((base, model), "module", random_plan(), dtype="float32")
    assert any("emb" in n or "wte" in n for n in names) and len(names) > 3
    assert ("lm_head" in names) == (name == "llama")


@needs_cuda
@pytest.mark.parametrize("variant", ["W4A16-g32", "NVFP4", "FP8_DYNAMIC", "W8A8"])
@pytest.mark.parametrize(
    ("by", "place"),
    [
        ("layer", "device"),
        ("layer", "host"),
        ("layer", "disk"),
        ("kind", "device"),
        ("module", "host"),
    ],
)
def test_on_a_gpu(demo, variant, by, place, tmp_path):
    """With its fused kernels, and wherever layers lie."""
    (form,) = [v for v in VARIANTS if v.name == variant]
    quantize_folder(demo / "model", tmp_path / "quant", form)
    plan = random_plan(256, 9, 60, 500)
    options = {"device": "cuda", "place": place, "dtype": "bfloat16", "batch_windows": 2}
    compare((demo / "model", tmp_path / "quant"), by, plan, **options)


@needs_cuda
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_experts_on_a_gpu(name, tmp_path):
    packed, _ = make_packed(tmp_path, name, FORMATS[0], torch.float32)
    base = make_checkpoint(tmp_path / "base", name)
    plan = random_plan()
    for by in ("layer", "module"):
        compare((base, packed), by, plan, dtype="bfloat16", device="cuda")


def test_parts_of_a_pass_have_the_same_bits(demo, tmp_path):
    """A run's micro-batches, however many are in memory together."""
    (form,) = [v for v in VARIANTS if v.name == "W4A16-g32"]
    quantize_folder(demo / "model", tmp_path / "quant", form)
    plan = random_plan(24, 31, 6, 500)
    folders = (demo / "model", tmp_path / "quant")
    base, model = (make_engine(folder, batch_windows=2) for folder in folders)
    units = find_units(base, model, "layer")
    schedule = model.schedule(plan)
    found = []
    for most in (plan.lengths.size, 1):
        variants = Variants(base, model, units)
        few = replace(schedule, pass_windows=max(2, most))
        moved: list[float] = []
        result = variants.run(plan, few, moved.append)
        assert sum(moved) == pytest.approx(variants.passes, rel=0.35)
        found.append({n: np.concatenate(f.kld["alone"]) for n, f in result.items()})
        assert all(0 < f.local.to_json()["relative_error"] < 1 for f in result.values())
    assert all(np.array_equal(found[0][n], found[1][n]) for n in found[0])


@pytest.mark.parametrize("by", ["layer", "module"])
def test_alone_is_the_same_by_itself_and_with_states_that_are_known(demo, by, tmp_path):
    """What a recipe asks for: the model's own states are not needed, and the base's final ones are the
    run's."""
    (form,) = [v for v in VARIANTS if v.name == "W4A16-g32"]
    quantize_folder(demo / "model", tmp_path / "quant", form)
    plan = random_plan(24, 11, 6, 500)
    base, model = (make_engine(f, batch_windows=2) for f in (demo / "model", tmp_path / "quant"))
    units, schedule = find_units(base, model, by), model.schedule(plan)
    assert len(schedule.passes(plan)) == 1
    kept: dict = {}
    reference = ModelReference(base, plan, schedule, kept=kept)
    whole = concatenate(list(model.score(plan, schedule, extras=Extras(reference))))
    found = []
    for directions, final in ((["alone", "without"], None), (["alone"], kept)):
        variants = Variants(base, model, units, directions, final)
        moved: list[float] = []
        found.append(variants.run(plan, schedule, moved.append))
        assert sum(moved) == pytest.approx(variants.passes, rel=1e-9)
    assert sum(map(len, kept.values())) == len(whole)
    for unit in units:
        both, alone = (f[unit.name] for f in found)
        klds = [np.concatenate(each.kld["alone"]) for each in (both, alone)]
        assert np.array_equal(*klds) and not alone.kld["without"]
        assert both.local.to_json() == alone.local.to_json()
        assert both.accumulated.to_json()["relative_error"] > 0 and alone.accumulated is None


def test_the_same_weights_are_nothing_to_attribute(demo):
    engines = [make_engine(demo / "model") for _ in range(2)]
    with pytest.raises(EngineError, match="there is nothing to attribute"):
        find_units(*engines, "layer")
